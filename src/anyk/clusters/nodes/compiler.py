"""A stand-in for PyTorch's compiler in agents, which compile nothing."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

_NAME = "torch._dynamo"


def _unchanged(function: Callable[..., Any], *_: object, **__: object) -> Callable[..., Any]:
    return function


class _StandIn(ModuleType):
    """What torch's optimisers ask of the compiler outside compiled code: nothing. Anything else has it imported."""

    graph_break = staticmethod(lambda: None)
    disable = staticmethod(_unchanged)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        _remove(self)
        return getattr(importlib.import_module(_NAME), name)


def _remove(stand_in: _StandIn) -> None:
    import torch

    if sys.modules.get(_NAME) is stand_in:
        del sys.modules[_NAME]
    if vars(torch).get("_dynamo") is stand_in:
        del torch._dynamo


@contextmanager
def without_compiler() -> Iterator[None]:
    """Let PyTorch's optimisers step without importing its compiler, which takes 70 MB and seconds.

    A compiler that is there already stays, and one that is needed is imported.

    >>> with without_compiler():
    ...     pass
    """
    if "torch" not in sys.modules or _NAME in sys.modules:
        yield
        return
    import torch

    stand_in = _StandIn(_NAME)
    sys.modules[_NAME] = torch._dynamo = stand_in
    try:
        yield
    finally:
        _remove(stand_in)
