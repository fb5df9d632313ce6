"""What workers do for a PyTorch problem: a module's gradients on flat vectors, from arrays that all share."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from anyk import keyed
from anyk.errors import BadInput
from anyk.problems.base import Index, Vector, even_ends
from anyk.problems.data.streams import NO_PARTS
from anyk.problems.replicas import ROWS, Trial, model_like, seed_of_draws
from anyk.problems.sums import TOGETHER, check_loss, check_samples
from anyk.problems.torch.generators import cuda_generators, drawing, kept_generators
from anyk.problems.torch.network import Batch, Network, mapped, tensors_in
from anyk.problems.torch.samples import ArrayRuns, Arrays, Rows, Samples, Sharded, Streamed, tensor_over

if TYPE_CHECKING:
    import torch

AT_ONCE = 512  # samples that a forward pass has at most where nobody said how many fit into memory


class TorchPartitions:
    """A module's training data in partitions; see :class:`~anyk.problems.base.Partitions`."""

    def __init__(
        self,
        network: Network,
        samples: Samples,
        ends: NDArray[np.int64],
        microbatch: int | None = None,
    ) -> None:
        self.sizes = tuple(np.diff(ends).tolist())
        self._samples, self._bounds, self._microbatch = samples, list(pairwise(ends.tolist())), microbatch
        self._network = copy.deepcopy(network)
        parameters = trained(self._network.module.train())
        self.shapes = [tuple(parameter.shape) for parameter in parameters]
        self.dtype = dtype_of(parameters)
        self.dimension = sum(parameter.numel() for parameter in parameters)
        self._scales = [
            (parameter.numel(), float(parameter.detach().mean()), float(parameter.detach().std(correction=0)))
            for parameter in parameters
            if parameter.numel()
        ]
        for parameter in parameters:
            parameter.data = parameter.data.new_empty(0)  # a worker's lie where the model does
        self._held: dict[int, Batch] = {}
        self._device: torch.device | None = None
        self._trial: Trial | None = None
        self._given: Counter[int] = Counter()  # gradients so far, by partition
        self.tolerance = 0.0
        self._first = 0  # the number of its first partition among all
        self._spanned = 1  # how many partitions of the strategy's each of its own is

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_held": {}, "_device": None, "_given": Counter()}

    def load(self, partitions: Sequence[int]) -> None:
        """See :class:`~anyk.problems.base.Partitions`; module and data go to the device."""
        self._device = device = self._device or self._network.move()
        if isinstance(self._samples, Arrays):
            new = [j for j in partitions if j not in self._held]
            self._held |= {j: self._samples.tensors(slice(*self._bounds[j]), device) for j in new}
        trial, self._trial = self._trial, None
        if trial is None:
            return
        try:
            gradient = self._tried()
        except Exception:  # which the run itself will report
            return
        trial.check(gradient)

    def piece(self, first: int, last: int) -> TorchPartitions:
        """See :class:`~anyk.problems.base.Partitions`; the module is shared."""
        made = copy.copy(self)
        made._bounds = [(self._bounds[first][0], self._bounds[last][1])]
        made.sizes = (sum(self.sizes[first : last + 1]),)
        made._first, made._held, made._given = first, {}, Counter()
        made._spanned = last - first + 1
        return made

    def _with(self, samples: Samples, partition: int) -> TorchPartitions:
        """The same for other samples in the place of a partition's."""
        made = copy.copy(self)
        made._samples, made._bounds, made.sizes = samples, [(0, len(samples))], (len(samples),)
        made._first, made._held = self._first + partition, {}
        made._given = Counter([] if self._looks(partition, drawn=True) else [0])
        return made

    def only(self, partitions: Sequence[int]) -> TorchPartitions:
        """See :class:`~anyk.problems.base.Partitions`; data sets of items go whole, as only they know what is where,
        and so do streams."""
        if not isinstance(self._samples, Arrays):
            return self
        made = copy.copy(self)
        made._samples = ArrayRuns(self._samples, [self._bounds[j] for j in sorted(partitions)])
        return made

    def compare_replicas(self) -> None:
        """See :class:`~anyk.problems.base.Partitions`; a driver that lacks the workers' device computes nothing.

        The gradient tried is that of up to 8 samples of partition 0. What may differ legitimately, between kinds of
        processors, is taken to be the square root of the precision at most.
        """
        import torch

        cuda = self._network.device.startswith("cuda")
        coarsest = torch.finfo(torch.bfloat16).eps if self._network.precision else float(np.finfo(self.dtype).eps)
        if cuda:
            coarsest = max(coarsest, 2.0**-10)  # of TF32, in which convolutions compute by default
        self.tolerance = coarsest**0.5
        if cuda and not torch.cuda.is_available():
            return
        own = copy.copy(self)  # the module that is sent to workers stays on the CPU
        own._network, own._held, own._given = copy.deepcopy(self._network), {}, Counter()
        self._trial = Trial.of(own._tried, self.tolerance)

    def _tried(self) -> Vector:
        if isinstance(self._samples, Streamed):
            head = self._with(self._samples.head, 0)
            return head.partial_gradient(0, model_like(self._scales, self.dtype), np.arange(min(ROWS, *head.sizes)))
        known = self._samples.tried if isinstance(self._samples, Sharded) else ROWS  # without opening a file
        rows = np.arange(min(ROWS, known, self.sizes[0]))
        return self.partial_gradient(0, model_like(self._scales, self.dtype), rows)

    def support(self, partition: int) -> Index | None:
        """All coordinates."""
        del partition
        return None  # as opposed to an index of some

    def partial_gradient(self, partition: int, w: Vector, rows: Index | None = None, /) -> Vector:
        """See :class:`~anyk.problems.base.Partitions`.

        Draws of random layers (dropout) are keyed by the bits of ``w``, the partition and the rows, those of a data
        set's items by the bits of ``w`` and the item, so that all who hold a partition draw alike. As many threads
        compute as the problem says, on every worker: bits depend on how many do.
        """
        import torch

        if self._device is None:
            self.load(())
        assert self._device is not None
        if isinstance(self._samples, Streamed):
            first = self._first + partition
            drawn = self._samples.drawn(range(first, first + self._spanned), rows)
            found = self._with(drawn, partition).partial_gradient(0, w)
            self._given[partition] += 1
            return found
        module = self._network.module
        parameters = self._placed(w)
        total = torch.zeros(self.dimension, dtype=parameters[0].dtype, device=self._device)
        pieces = pieces_of(total, self.shapes)
        bits = keyed.digest(np.ascontiguousarray(w))
        looks = self._looks(partition, drawn=rows is not None)
        with (
            _threads(self._network.threads),
            drawing(seed_of_draws(bits, self._first + partition, rows), self._device),
            kept_buffers(module),
        ):
            for batch, size in self._batches(partition, rows, bits):
                times = self._network.times(batch, size)
                if not times:
                    continue
                given = [*parameters, *tensors_in(batch)]
                versions = [tensor._version for tensor in given]
                outputs = None if self._network.takes_module else self._network.outputs(batch)
                loss = self._network.loss_of(batch) if outputs is None else self._network.loss_at(outputs, batch[-1])
                parts = torch.autograd.grad(loss, parameters, allow_unused=True)
                if [tensor._version for tensor in given] != versions:
                    raise BadInput("the module changes its inputs or parameters in place, which other workers share")
                for piece, part in zip(pieces, parts, strict=True):
                    if part is not None:
                        piece.add_(part, alpha=times)  # and not the loss times that: it may be bf16
                if looks and not self._network.opaque:
                    self._look_at_loss(partition, outputs, batch[-1])
            if looks and self._network.opaque:
                self._look_at_samples(partition, rows, bits)
        self._given[partition] += 1
        gradient: Vector = total.cpu().numpy()
        return gradient

    def check_partial_loss(self) -> None:
        """See :class:`~anyk.problems.base.Partitions`."""
        if isinstance(self._samples, Streamed):
            raise BadInput(NO_PARTS)
        if norms_of(self._network.module):
            raise BadInput(
                "workers cannot evaluate a module with batch norm, whose running statistics are over the data of all; "
                "evaluate where='driver' or 'aside'"
            )

    def partial_loss(self, partition: int, w: Vector, rows: Index | None = None, /) -> float:
        """See :class:`~anyk.problems.base.Partitions`: in evaluation mode."""
        import torch

        if self._device is None:
            self.load(())
        network, total = self._network, 0.0
        self._placed(w)
        network.module.eval()
        try:
            with torch.no_grad(), _threads(network.threads), kept_buffers(network.module):
                for batch, size in self._evaluated()._batches(partition, rows, 0, most=AT_ONCE):
                    if times := network.times(batch, size):
                        total += float(network.loss_of(batch)) * times
        finally:
            network.module.train()
        return total

    def _evaluated(self) -> TorchPartitions:
        """The same with samples as they are evaluated."""
        assert not isinstance(self._samples, Streamed)
        made = copy.copy(self)
        made._samples, made._held, made._device = self._samples.evaluated, self._held, self._device
        return made

    def _placed(self, w: Vector) -> list[torch.nn.Parameter]:
        """The module's parameters, which are ``w`` from here on."""
        assert self._device is not None
        parameters = trained(self._network.module)
        for parameter, piece in zip(parameters, pieces_of(tensor_over(w).to(self._device), self.shapes), strict=True):
            parameter.data = piece
        return parameters

    def _looks(self, partition: int, *, drawn: bool) -> bool:
        """Whether to look at the loss: at a partition's first gradient; of mini-batches also at its 2nd, 4th, …"""
        number = self._given[partition] + 1
        return number == 1 or (drawn and number.bit_count() == 1)

    def _look_at_loss(self, partition: int, outputs: Any, targets: torch.Tensor) -> None:
        """Refuse a loss that is no sum over this partition's samples; what it draws leaves no trace."""
        assert self._device is not None
        with kept_generators(cuda_generators(self._device)):
            check_loss(self._network, outputs, targets, f"{len(targets)} samples of partition {partition}")

    def _look_at_samples(self, partition: int, rows: Index | None, bits: int) -> None:
        """As :meth:`_look_at_loss`, from a few of the samples themselves."""
        size = self.sizes[partition] if rows is None else len(rows)
        some = np.unique(np.linspace(0, size - 1, min(TOGETHER, size, self._microbatch or size)).astype(np.intp))
        check_samples(
            self._network,
            lambda chosen: self._batch(partition, some[chosen] if rows is None else rows[some[chosen]], bits),
            len(some),
            f"{len(some)} samples of partition {partition}",
        )

    def _batches(
        self, partition: int, rows: Index | None, key: int, most: int | None = None
    ) -> Iterator[tuple[Batch, int]]:
        """The samples of a partition or these of its rows, as many at once as a microbatch has, and how many."""
        first, last = self._bounds[partition]
        size = last - first if rows is None else len(rows)
        for a, b in pairwise(even_ends(size, self._microbatch or most or size)):
            yield self._batch(partition, slice(a, b) if rows is None else rows[a:b], key), b - a

    def _batch(self, partition: int, rows: Rows, key: int) -> Batch:
        """Some samples of a partition, together."""
        assert self._device is not None and not isinstance(self._samples, Streamed)
        first = self._bounds[partition][0]
        held = self._held.get(partition)
        if held is None:
            some = slice(first + rows.start, first + rows.stop) if isinstance(rows, slice) else rows + first
            return self._samples.tensors(some, self._device, key)
        if isinstance(rows, slice):
            return mapped(held, lambda tensor: tensor[rows])
        chosen = tensor_over(rows).to(self._device)
        return mapped(held, lambda tensor: tensor[chosen])


def trained(module: torch.nn.Module) -> list[torch.nn.Parameter]:
    """The parameters that are the model: shared ones once, frozen ones not."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def norms_of(module: torch.nn.Module) -> list[torch.nn.modules.batchnorm._BatchNorm]:
    """The layers of batch norm that keep running statistics."""
    from torch.nn.modules.batchnorm import _BatchNorm

    return [part for part in module.modules() if isinstance(part, _BatchNorm) and part.track_running_stats]


def dtype_of(parameters: Sequence[torch.Tensor]) -> np.dtype[Any]:
    """The one number type of all, float32 or float64; raises where there is no such one."""
    import torch
    from torch.nn.parameter import UninitializedParameter

    if any(isinstance(parameter, UninitializedParameter) for parameter in parameters):
        raise BadInput("the module is lazy and has no shapes yet; call it once on a batch before")
    kinds = {parameter.dtype for parameter in parameters}
    if not kinds:
        raise BadInput("the module has no parameter to train: none requires a gradient")
    if len(kinds) > 1 or not kinds <= {torch.float32, torch.float64}:
        names = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))
        raise BadInput(
            f"the parameters must all be float32 or all float64, got {names}; for mixed precision use precision='bf16'"
        )
    return np.dtype(str(kinds.pop()).removeprefix("torch."))


def pieces_of(flat: torch.Tensor, shapes: Sequence[tuple[int, ...]]) -> list[torch.Tensor]:
    """Views of a flat tensor, one for each parameter."""
    import torch

    parts: Any = torch.split(flat, [prod(shape) for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def is_at(module: torch.nn.Module, w: Vector) -> bool:
    """Whether a module's parameters are ``w``."""
    first = 0
    for parameter in trained(module):
        here = w[first : first + parameter.numel()]
        if not np.array_equal(parameter.detach().cpu().numpy().reshape(-1), here):
            return False
        first += here.size
    return True


@contextmanager
def _threads(number: int) -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def kept_buffers(module: torch.nn.Module) -> Iterator[None]:
    """Put back what a forward pass changes in buffers."""
    kept = [(part, name, buffer) for part in module.modules() for name, buffer in part._buffers.items()]
    for part, name, buffer in kept:
        part._buffers[name] = None if buffer is None else buffer.clone()
    try:
        yield
    finally:
        for part, name, buffer in kept:
            part._buffers[name] = buffer
