"""Steps of slices of a model by PyTorch's optimisers, for several threads at a time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from anyk.base.arrays import Vector, lacks_gradient
from anyk.optimizers.steps import State
from anyk.optimizers.torch_groups import give_state, take_state

if TYPE_CHECKING:
    import torch

    # pieces of parameters with their gradients, the index of each one's parameter, and their optimiser's state
    _Pieces = tuple[list[torch.Tensor], list[int], State]

EVALUATIONS = "seen"  # the key in a state of the values of evaluations, in order


class SliceStepper:
    """Steps slices of the model ``w`` into ``out``, each by an optimiser of the pieces of parameters that lie in it.

    ``make``: makes this optimiser from the pieces and the indices of their parameters. ``state``: of the whole model;
    the arrays of parameters that have not been stepped before (``fresh``) have no content yet. ``ends``: the coordinate
    at which each parameter starts, and the length of the model. ``unused``: the parameters that may lack a gradient.
    """

    def __init__(
        self,
        make: Callable[[Sequence[torch.Tensor], Sequence[int]], Any],
        *,
        w: Vector,
        out: Vector,
        state: State,
        fresh: Collection[int],
        ends: Sequence[int],
        unused: Collection[int],
    ) -> None:
        from torch import from_numpy

        self._tensor_of = from_numpy
        self._make, self._w, self._out, self._state = make, w, out, state
        self._fresh, self._ends, self._unused = frozenset(fresh), ends, unused
        self.skipped: set[int] = set()  # parameters that had no gradient
        self.arrays: dict[int, dict[str, Vector]] = defaultdict(dict)  # of the state, by parameter and name
        for key, array in state.items():
            if key != EVALUATIONS:
                parameter, _, name = key.partition(".")
                # numbers as they were before the step of any slice
                self.arrays[int(parameter)][name] = array.copy() if ":" in name else array

    def step(self, coordinates: slice, gradient: Vector) -> None:
        """Step a slice of the model."""
        self._out[coordinates] = self._w[coordinates]
        pieces, parameters, state = self._pieces_in(coordinates.start, coordinates.stop, gradient)
        if not pieces:
            return
        optimizer = self._make(pieces, parameters)
        if self._fresh:
            keys = [key for key in state if parameters[int(key.partition(".")[0])] not in self._fresh]
            give_state(optimizer, pieces, {key: state[key] for key in keys})
        else:
            give_state(optimizer, pieces, state)
        optimizer.step()
        for key, array in take_state(optimizer, pieces).items():
            number, _, name = key.partition(".")
            if ":" in name:
                self._state[f"{parameters[int(number)]}.{name}"][:] = array  # the same from all pieces
            elif not np.may_share_memory(array, state[key]):
                state[key][:] = array

    def drop_skipped(self) -> None:
        """Drop the state of parameters that have not had a gradient yet."""
        never = {str(parameter) for parameter in self.skipped & self._fresh}
        for key in [key for key in self._state if key.partition(".")[0] in never]:
            del self._state[key]

    def _pieces_in(self, start: int, stop: int, gradient: Vector) -> _Pieces:
        """Return the pieces of parameters between two coordinates, but for parameters without a gradient."""
        ends, tensor_of, out = self._ends, self._tensor_of, self._out
        pieces: list[torch.Tensor] = []
        parameters: list[int] = []
        state: State = {}
        for parameter in range(bisect_right(ends, start) - 1, bisect_left(ends, stop)):
            begin = ends[parameter]
            first, last = max(begin, start), min(ends[parameter + 1], stop)
            slope = gradient[first - start : last - start]
            if lacks_gradient(slope, unused=parameter in self._unused):
                self.skipped.add(parameter)
                continue
            piece = tensor_of(out[first:last])
            piece.grad = tensor_of(slope)
            for name, array in self.arrays[parameter].items():
                state[f"{len(pieces)}.{name}"] = (
                    array.copy() if ":" in name else array.reshape(-1)[first - begin : last - begin]
                )
            pieces.append(piece)
            parameters.append(parameter)
        return pieces, parameters, state
