"""A PyTorch module's gradients on flat vectors, as workers compute them."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from anyk.base.arrays import NO_GRADIENT, DType, Floats, Vector
from anyk.base.errors import BadInput
from anyk.base.plain import ByName
from anyk.problems.base import Ends, Index
from anyk.problems.batches import Batches, Put
from anyk.problems.data.sample_batches import Batch, PartitionSamples, Rows, Samples
from anyk.problems.generators import cuda_generators, preserved_generators, seeded_generators
from anyk.problems.replicas import ROWS, TOGETHER, Sketch, Trial, model_like, scales_of, seed_of_draws, trial_rows
from anyk.problems.surroundings import Variables, variables_of
from anyk.problems.torch.hooks import without_hooks
from anyk.problems.torch.module_checks import check_loss, check_samples
from anyk.problems.torch.network import (
    LARGE,
    Network,
    loss_sum,
    map_tensors,
    normalises_batches,
    put_kept,
    tensors_in,
    trainable_parameters,
)
from anyk.problems.torch.tensor_samples import tensor_over
from anyk.problems.values import Leaves, Values

if TYPE_CHECKING:
    import torch

DEFAULT_MICROBATCH = 512  # largest number of samples of a forward pass if ``microbatch`` is not set
_PART = 1 << 16  # numbers of a gradient that are passed on at a time
_SPARSE = 1 << 24  # parameters of a module that is tried at a model most of which is zeros, which take no memory


class DeviceSamples(Samples):
    """Samples of one partition in tensors on a device."""

    in_memory = True

    def __init__(self, batch: Batch, samples: int, weights: Floats | None = None) -> None:
        self._batch, self._samples, self.weights = batch, samples, weights

    def __len__(self) -> int:
        return self._samples

    def batch(self, rows: Rows, key: int = 0) -> Batch:
        """Return some rows of every tensor."""
        if isinstance(rows, slice):
            complete = rows.stop - rows.start == self._samples
            return self._batch if complete else map_tensors(self._batch, lambda tensor: tensor[rows])
        index = tensor_over(rows)
        return map_tensors(self._batch, lambda tensor: tensor[index.to(tensor.device)])


def _compute(
    network: Network,
    parameters: Sequence[torch.nn.Parameter],
    batch: Batch,
    weights: Floats | None,
    take: Callable[[int, torch.Tensor], None],
) -> Any:
    """Pass on the gradients of a batch's loss, by the numbers of the parameters; return the module's outputs."""
    inputs = [*parameters, *tensors_in(batch)]
    versions = [tensor._version for tensor in inputs]
    outputs: Any = None

    def loss() -> torch.Tensor:
        nonlocal outputs
        if network.takes_module:
            return network.loss_of(batch, weights)
        outputs = network.outputs(batch)
        return network.loss_at(outputs, batch[-1], weights)

    network.each_gradient(loss, parameters, take)
    if [tensor._version for tensor in inputs] != versions:
        raise BadInput("the module changes its inputs or parameters in place, which other workers share")
    return outputs


class TorchPartitions(Batches):
    """A module's training data in partitions; see :class:`~anyk.problems.base.Partitions`."""

    marks_unused = True

    def __init__(
        self,
        network: Network,
        data: Samples,
        ends: Ends,
        microbatch: int | None = None,
        values: Values | None = None,
    ) -> None:
        self._network = copy.deepcopy(network)
        self._values = values
        self._network.train()
        parameters = trainable_parameters(self._network.module)
        dimension = sum(parameter.numel() for parameter in parameters)
        super().__init__(data, ends, dimension=dimension, dtype=dtype_of(parameters), most=microbatch)
        self.shapes = [tuple(parameter.shape) for parameter in parameters]
        self._scales = scales_of([parameter.detach().numpy() for parameter in parameters])
        for parameter in parameters:
            parameter.data = parameter.data.new_empty(0)  # a worker's parameters are views of the model
        if normalises_batches(self._network.module):
            self.least, self._stateful = 2, "a module with batch norm"
        self._trial: Trial | None = None
        self._gradients: Counter[int] = Counter()  # computed so far, by partition

    def __getstate__(self) -> ByName:
        return super().__getstate__() | {"_gradients": Counter()}

    def load(self, partitions: Sequence[int]) -> None:
        """Move the module and the partitions' data to the device, and compare a gradient with the driver's."""
        self._network.move()
        if self.data.in_memory:
            for j in partitions:
                if j not in self._placed:
                    rows = slice(*self._bounds[j])
                    batch = self._network.on_device(self.data.batch(rows))
                    self._placed[j] = DeviceSamples(batch, self.sizes[j], self.data.weights_of(rows))
        trial, self._trial = self._trial, None
        if trial is not None:
            trial.check(self._tried, self._variables)

    def carry(self, numbers: Sequence[float], places: Sequence[int], content: Sequence[Vector]) -> None:
        """Compute the next gradients with these values."""
        assert self._values is not None
        use_leaves(self._network, self._values, self._values.decode(numbers, places, content), places)

    def compare_replicas(self) -> None:
        """Have replicas of a gradient compared during the run."""
        self.tolerance = self.rounding()

    def rounding(self) -> float:
        """Return the relative difference of gradients between kinds of processors: the root of the precision."""
        import torch

        cuda = self._network.device.startswith("cuda")
        coarsest = torch.finfo(torch.bfloat16).eps if self._network.precision else float(np.finfo(self.dtype).eps)
        if cuda:
            coarsest = max(coarsest, 2.0**-10)  # of TF32, in which convolutions compute by default
        return float(coarsest**0.5)

    def compare_workers(self, *, replicas: bool) -> None:
        """Have each worker's gradient of up to 8 samples compared with the driver's.

        A driver that lacks the workers' device computes nothing.
        """
        import torch

        if self._network.device.startswith("cuda") and not torch.cuda.is_available():
            return
        twin = copy.copy(self)  # the module that is sent to workers stays on the CPU
        twin._network = copy.deepcopy(self._network)
        self._trial = Trial.of(twin._tried, self.rounding(), replicas=replicas, variables=self._variables())

    def _variables(self) -> Variables:
        """Return the variables that the user's code reads."""
        network = self._network
        roots = {"the loss": network.loss, "the module": network.module, "count": network.count}
        return variables_of({**roots, **self.data.code})

    def tried_with(self, network: Network, most: int) -> Floats:
        """Return a sketch of the gradient of the first samples, or of more, as computed with another network."""
        other = copy.copy(self)
        other._network = network
        return other._tried(most)

    def _tried(self, most: int = ROWS) -> Floats:
        head, (first, last) = self.data.head, self._bounds[0]
        rows = trial_rows(most, min(head.tried, self.sizes[0]))  # without opening a file
        chosen = PartitionSamples(data=head, partition=0, first=first, last=last, rows=rows, requested_rows=rows)
        for sparse in (True, False) if self.dimension >= _SPARSE else (False,):
            found = Sketch()
            self.put_sum(model_like(self._scales, self.dtype, sparse=sparse), chosen, found.add)
            if np.isfinite(found.sums).all() and found.sums.any():  # norms of parameters of zeros, for one, are not
                break
        return found.sums

    def gradient_sum(self, w: Vector, chosen: PartitionSamples) -> Vector:
        """Return the sum of the gradients of the chosen samples.

        Dropout draws by ``key``, the partition and the rows, a data set's items by ``key`` and the item.
        Every worker computes with the problem's number of threads, as bits depend on it.
        """
        import torch

        parameters = self._set_parameters(w)
        total = torch.zeros(self.dimension, dtype=parameters[0].dtype, device=parameters[0].device)
        pieces = pieces_of(total, self.shapes)

        def add(number: int, gradient: torch.Tensor, factor: float) -> None:
            pieces[number].add_(gradient, alpha=factor)  # not applied to the loss, which may be bf16

        for number in self._without_gradient(parameters, chosen, add):
            pieces[number].fill_(NO_GRADIENT)
        return total.cpu().numpy()

    def put_sum(self, w: Vector, chosen: PartitionSamples, put: Put) -> None:
        import torch

        in_one_batch = self.most is None or chosen.size <= self.most
        if self.dimension < LARGE or self._network.move().type != "cpu" or not in_one_batch:
            super().put_sum(w, chosen, put)
            return
        parameters = self._set_parameters(w)
        starts = np.cumsum([0, *map(prod, self.shapes)]).tolist()
        zero = torch.zeros((), dtype=parameters[0].dtype)

        def put_one(number: int, gradient: torch.Tensor, factor: float) -> None:
            # bits are those of gradient_sum
            if gradient.layout != torch.strided:
                gradient, factor = torch.zeros_like(parameters[number]).add_(gradient, alpha=factor), 1.0
            flat = gradient.reshape(-1)
            for first in range(0, len(flat), _PART):
                part = torch.add(zero, flat[first : first + _PART], alpha=factor)
                put(starts[number] + first, part.numpy())

        for number in self._without_gradient(parameters, chosen, put_one):
            size = starts[number + 1] - starts[number]
            put(starts[number], np.broadcast_to(self.dtype.type(NO_GRADIENT), size))

    def _without_gradient(
        self,
        parameters: Sequence[torch.nn.Parameter],
        chosen: PartitionSamples,
        take: Callable[[int, torch.Tensor, float], None],
    ) -> list[int]:
        """Pass on gradients of batches, with the factors that they have in the sum of the chosen samples' gradients.

        Return the numbers of the parameters that the loss does not use.
        """
        network = self._network
        device = network.move()
        without = set(range(len(parameters)))
        bits = self.key
        number = self._gradients[chosen.partition] + 1
        # the loss is checked at the first gradient; with mini-batches also at the 2nd, 4th, …
        looks = number == 1 or (chosen.requested_rows is not None and number.bit_count() == 1)
        of = f"samples of partition {chosen.partition}"
        with (
            _threads(network.threads),
            seeded_generators(seed_of_draws(bits, chosen.partition, chosen.rows), device),
            preserved_buffers(network.module),
        ):
            for sample_batch in chosen.parts(self.most, bits):
                batch = network.on_device(sample_batch.batch)
                factor = network.loss_factor(batch, sample_batch.size, sample_batch.weights)
                if not factor:
                    continue

                def take_one(i: int, gradient: torch.Tensor, factor: float = factor) -> None:
                    take(i, gradient, factor)
                    without.discard(i)

                outputs = _compute(network, parameters, batch, sample_batch.weights, take_one)
                if looks and not network.opaque:
                    with preserved_generators(cuda_generators(device)):  # random numbers of the loss leave no trace
                        check_loss(network, outputs, batch[-1], f"{sample_batch.size} {of}")
            if looks and network.opaque:
                self._check_single_samples(chosen, of)
        self._gradients[chosen.partition] = number
        return sorted(without)

    def _check_single_samples(self, chosen: PartitionSamples, of: str) -> None:
        """Refuse a loss whose gradient of several samples is not the sum of theirs, by computing it for single ones."""
        most = min(TOGETHER, chosen.size, self.most or chosen.size)
        some = np.unique(np.linspace(0, chosen.size - 1, most).astype(np.intp))

        def batch_of(places: Index) -> Batch:
            return self._network.on_device(chosen.batch(some[places], self.key))

        check_samples(self._network, batch_of, len(some), f"{len(some)} {of}")

    def loss_sum(self, w: Vector, chosen: PartitionSamples) -> float:
        """Return the sum of the losses in evaluation mode."""
        network = self._network
        self._set_parameters(w)
        evaluated = chosen._replace(data=chosen.data.evaluated)
        network.module.eval()
        try:
            with _threads(network.threads), preserved_buffers(network.module):
                return loss_sum(network, evaluated.parts(self.most or DEFAULT_MICROBATCH))
        finally:
            network.train()

    def _set_parameters(self, w: Vector) -> list[torch.nn.Parameter]:
        """Move the module to its device, if it is not there, and return its parameters, which are set to ``w``."""
        flat = tensor_over(w).to(self._network.move())
        parameters = trainable_parameters(self._network.module)
        for parameter, piece in zip(parameters, pieces_of(flat, self.shapes), strict=True):
            parameter.data = piece
        return parameters


def use_leaves(network: Network, values: Values, leaves: Leaves, places: Sequence[int]) -> None:
    """Compute with these values; kept arrays at ``places`` are written into the module, all others are the initial."""
    network.set_values(values.build(leaves))
    tensors = {name: leaves.arrays[index] for index in places if (name := values.array_name(index)) in values.kept}
    put_kept(network, tensors)


def dtype_of(parameters: Sequence[torch.Tensor]) -> DType:
    """Return the number type of all parameters, float32 or float64; raise if they have no common one."""
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
    """Return views of a flat tensor, one for each parameter."""
    import torch

    parts = torch.split(flat, [prod(shape) for shape in shapes])
    return [piece.view(shape) for piece, shape in zip(parts, shapes, strict=True)]


def has_parameters(module: torch.nn.Module, w: Vector) -> bool:
    """Return whether a module's parameters are ``w``."""
    first = 0
    for parameter in trainable_parameters(module):
        piece = w[first : first + parameter.numel()]
        if not np.array_equal(parameter.detach().cpu().numpy().reshape(-1), piece):
            return False
        first += piece.size
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


def modes_of(module: torch.nn.Module, modes: Sequence[bool] | None = None) -> dict[str, str]:
    """Return the modes of a module's parts as variables; none if it is in evaluation mode as a whole.

    ``modes``: whether each part is in training mode, if not as now.
    """
    if not module.training:
        return {}
    words = {True: "training mode", False: "evaluation mode"}
    names, now = zip(*((name, layer.training) for name, layer in module.named_modules()), strict=True)
    return {
        f"the mode of the module.{name}": words[mode] for name, mode in zip(names, modes or now, strict=False) if name
    }


@contextmanager
def as_initial(module: torch.nn.Module, initial: torch.nn.Module, initial_modes: Sequence[bool]) -> Iterator[None]:
    """Let a module compute with the frozen parameters and the buffers of another, without hooks of its parameters.

    ``initial_modes``: whether each part was in training mode when the other was copied from it; parts that still are in
    the same, or in evaluation mode with the whole module, compute in the mode of the other's part.
    """
    parameters = [(parameter, parameter.data, parameter.requires_grad) for parameter in module.parameters()]
    modes = [(layer, layer.training) for layer in module.modules()]
    # a loop's dictionaries compute running statistics when they are read
    computed = [(layer, layer._buffers) for layer in module.modules() if type(layer._buffers) is not dict]
    try:
        for layer, buffers in computed:
            layer._buffers = dict(dict.items(buffers))
        with preserved_buffers(module), without_hooks(module.parameters()):
            for (parameter, *_), initial_parameter in zip(parameters, initial.parameters(), strict=True):
                parameter.requires_grad_(initial_parameter.requires_grad)
                if not parameter.requires_grad:
                    parameter.data = initial_parameter.data.to(parameter.device)
            for buffer, initial_buffer in zip(module.buffers(), initial.buffers(), strict=True):
                buffer.copy_(initial_buffer)
            evaluating = not module.training
            for (layer, mode), initial_part, was in zip(modes, initial.modules(), initial_modes, strict=True):
                if evaluating or mode == was:
                    layer.training = initial_part.training
            yield
    finally:
        for layer, buffers in computed:
            layer._buffers = buffers
        for parameter, data, trained in parameters:
            parameter.data = data
            parameter.requires_grad_(trained)
        for layer, training in modes:
            layer.training = training


@contextmanager
def preserved_buffers(module: torch.nn.Module) -> Iterator[None]:
    """Restore the buffers that a forward pass changes."""
    buffers = [(layer, name, buffer) for layer in module.modules() for name, buffer in layer._buffers.items()]
    for layer, name, buffer in buffers:
        layer._buffers[name] = None if buffer is None else buffer.clone()
    try:
        yield
    finally:
        for layer, name, buffer in buffers:
            layer._buffers[name] = buffer
