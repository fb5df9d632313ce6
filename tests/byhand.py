"""Strategies told events by hand."""

from __future__ import annotations

from typing import Any

from anyk.protocol import Running, Strategy


class ByHand(Running):
    """A strategy and its state, whose fields can be looked at as if they were one."""

    def __init__(self, strategy: Strategy) -> None:
        super().__init__(strategy)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("strategy", "state", "on"):
            raise AttributeError(name)
        for owner in (self.state, getattr(self.state, "work", None), getattr(self.state, "crew", None), self.strategy,
                      self.strategy.layout):  # fmt: skip
            if owner is not None and hasattr(owner, name):
                return getattr(owner, name)
        raise AttributeError(name)
