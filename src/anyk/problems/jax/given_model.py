"""The user's model, and whether it is still what it was when a problem was made of it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from anyk.base.arrays import Array, Floats
from anyk.base.errors import BadInput
from anyk.problems.data.sample_batches import Samples
from anyk.problems.digests import digest_of
from anyk.problems.given import ANEW
from anyk.problems.jax.model_loss import SEED, JaxNetwork
from anyk.problems.jax.pytrees import Held, Model, Trainable, in_modes, is_module, model_of, modes_of
from anyk.problems.replicas import Sketch, model_like, trial_rows
from anyk.problems.surroundings import Variables, variables_of
from anyk.problems.watch import Computing, compare_copies, other_numbers, rounding

_LISTED = 3  # names that a sentence lists at most
_KEPT = 8  # compiled programs

_programs: dict[tuple[str, str], Any] = {}  # compiled, by their texts and devices; the one used last at the end


class GivenModel:
    """The ``params`` and ``trainable`` that a problem was given, with digests of their arrays at that time."""

    def __init__(self, params: Any, trainable: Trainable) -> None:
        self._params, self._trainable, self._modes = params, trainable, modes_of(params)
        self._before = {name: (array.shape, digest_of(array)) for name, (_, array) in self._numbers().items()}
        self._variables_before = self.variables()

    def now(self) -> Model:
        """Return the model as it is now; if it is in evaluation mode as a whole, in the modes that it had."""
        return model_of(in_modes(self._params, self._modes), self._trainable)

    def variables(self, *, arrays: bool = True) -> Variables:
        """Return the variables of the model as it is now, without trained parameters."""
        roots = {"params": self._params} if is_module(self._params) else {}
        if arrays:
            roots |= {name: array for name, (kind, array) in self._numbers().items() if kind == "fixed"}
        return variables_of(roots, arrays=arrays)

    def _numbers(self) -> dict[str, tuple[str, Array]]:
        """Return the arrays as they are now, and whether they are trained or fixed, by name."""
        numbers: dict[str, tuple[str, Array]] = {}
        seen: Counter[str] = Counter()
        for path, kind, array in model_of(self._params, self._trainable).kinds():
            name = f"the {kind} parameter '{path}'"
            seen[name] += 1
            numbers[name if seen[name] == 1 else f"{name} ({seen[name]})"] = kind, array
        return numbers

    def check_unchanged(self, network: JaxNetwork, constants: Held, head: Samples, *, begins: bool) -> list[str]:
        """Raise :class:`~anyk.BadInput` if the model has changed; return a sentence on other numbers.

        ``network`` and ``constants``: what the problem made of the model. ``begins``: whether a run begins with the
        problem's initial parameters.
        """
        try:
            numbers = self._numbers()
        except BadInput as error:
            raise BadInput(f"params has changed since the problem was made: {error}; {ANEW}") from None
        if numbers.keys() != self._before.keys():
            some = ", ".join(sorted(numbers.keys() ^ self._before.keys())[:_LISTED])
            raise BadInput(f"params has other arrays than when the problem was made ({some}); {ANEW}")
        for name, (_, array) in numbers.items():
            shape, _ = self._before[name]
            if array.shape != shape:
                raise BadInput(
                    f"{name} of params was of shape {shape} when the problem was made and is of shape {array.shape} "
                    f"now; {ANEW}"
                )

        def copied_sketch(rows: int) -> Floats:
            return sketch_of(network.with_model(network.model), constants, head, rows)

        def sketch(rows: int) -> Floats:
            model = self.now()
            present = constants if model.state is None else constants._replace(state=model.state)
            return sketch_of(network.with_model(model), present, head, rows)

        compare_copies(
            Computing(lambda: self._variables_before, copied_sketch),
            Computing(self.variables, sketch),
            rounding(network.dtype),
            "params",
        )
        other = [
            name
            for name, (kind, array) in numbers.items()
            if (begins or kind == "fixed") and digest_of(array) != self._before[name][1]
        ]
        return [] if not other else [other_numbers(other, "params")]


def sketch_of(network: JaxNetwork, constants: Held, head: Samples, rows: int) -> Floats:
    """Return a sketch of the gradient of at most so many rows, for which the loss is traced anew."""
    import jax

    batch = head.batch(trial_rows(rows, head.tried))
    w = model_like(network.scales, network.dtype)
    return Sketch.of(np.asarray(call_compiled(jax.grad(network.total), w, constants, batch, SEED)))


def call_compiled(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function gives as ``jax.jit`` has it, traced anew, but compiled only if its program is a new one.

    Nearly always it is the one of before, and compiling takes ten times as long as tracing.
    """
    import jax

    traced = jax.jit(lambda *values: function(*values), keep_unused=True).trace(*arguments)  # of a new function
    lowered = traced.lower()
    if traced.jaxpr.consts:  # closed-over arrays, which may be large
        return lowered.compile()(*arguments)
    program = lowered.as_text()
    inputs = re.search(r"func\.func public @main\((.*)", program)
    count = len(jax.tree.leaves(arguments))
    if inputs is None or len(re.findall(r"%arg\d+:", inputs[1])) != count or "callback" in program:
        return lowered.compile()(*arguments)  # its text does not tell all that it computes with
    key = program, str(jax.device_put(0.0).devices())
    compiled = _programs.pop(key, None) or lowered.compile()
    _programs[key] = compiled
    if len(_programs) > _KEPT:
        del _programs[next(iter(_programs))]
    return compiled(*arguments)
