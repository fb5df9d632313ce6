"""PyTorch modules: any module, any loss, and gradients on flat vectors.

Only parameters are the model. A buffer (a running mean, say) is whatever the module had at the start while a partial
gradient is computed, and what the forward pass does to it is dropped: replies must not depend on what a worker did
before. Where running statistics are needed, to evaluate, they are computed anew from the training data.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any, Literal
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from anyk import keyed
from anyk.errors import BadInput, MissingPackage
from anyk.problems.base import Index, Vector, cut

if TYPE_CHECKING:
    import torch

_EVALUATED = 512  # samples that a forward pass has at most where nobody said how many fit into memory
_TRIED = 2  # samples that module and loss are tried on; batch norm cannot do with one

Metric = Callable[[Any, Any], float]
Rows = slice | Index


class _Alias:
    """A read-only array as one that may be written: torch has no read-only tensors, and warns."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.__array_interface__ = array.__array_interface__ | {"data": (array.ctypes.data, False)}
        self._array = array


def tensor_over(array: NDArray[Any]) -> torch.Tensor:
    """A tensor on an array's own memory; nobody may write to one that was read-only."""
    import torch

    return torch.from_numpy(array if array.flags.writeable else np.asarray(_Alias(array)))


class Arrays:
    """Samples as arrays with equal first axis: the module's inputs, then the targets."""

    def __init__(self, arrays: Sequence[Any], name: str, dtype: np.dtype[Any]) -> None:
        if len(arrays) < 2:
            raise BadInput(f"{name} must be inputs and targets, (X, y), got {len(arrays)} array")
        self.arrays = [_array(array, name, dtype) for array in arrays]
        if self.arrays[-1].dtype.kind in "iu":
            self.arrays[-1] = self.arrays[-1].astype(np.int64, copy=False)  # what torch's losses take classes as
        lengths = [len(array) for array in self.arrays]
        if len(set(lengths)) > 1:
            raise BadInput(f"the arrays of {name} must have one entry for each sample, got {lengths} entries")

    def __len__(self) -> int:
        return len(self.arrays[0])

    def tensors(self, rows: Rows, device: torch.device | str) -> tuple[torch.Tensor, ...]:
        """Some samples; on the CPU those of a slice lie where the arrays do."""
        return tuple(tensor_over(array[rows]).to(device) for array in self.arrays)


class Items:
    """Samples of a map-style data set, read when they are needed: ``data[i]`` is (inputs …, target)."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def tensors(self, rows: Rows, device: torch.device | str) -> tuple[torch.Tensor, ...]:
        """Some samples, as torch's own loader puts them together."""
        from torch.utils.data import default_collate

        numbers = range(rows.start, rows.stop) if isinstance(rows, slice) else rows.tolist()
        return tuple(part.to(device) for part in default_collate([self.data[i] for i in numbers]))


def _array(array: Any, name: str, dtype: np.dtype[Any]) -> NDArray[Any]:
    """As NumPy, so that it is sent once to a machine; numbers with a fraction as the parameters have them."""
    import torch

    if isinstance(array, torch.Tensor):
        array = array.detach().cpu()
        array = (array.to(torch.float32) if array.dtype in (torch.bfloat16, torch.float16) else array).numpy()
    array = np.asarray(array)
    if array.ndim == 0 or array.dtype.kind not in "biuf":
        raise BadInput(
            f"{name} must hold arrays of numbers with a row for each sample, got {array.dtype} {array.shape}"
        )
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            raise BadInput(f"{name} must hold finite numbers")
        array = array.astype(dtype, copy=False)
    return np.ascontiguousarray(array)


def _samples(data: Any, name: str, dtype: np.dtype[Any]) -> Arrays | Items:
    import torch

    if hasattr(data, "tensors") and isinstance(data.tensors, tuple):  # torch's TensorDataset
        data = data.tensors
    if isinstance(data, (tuple, list)):
        return Arrays(data, name, dtype)
    if not (hasattr(data, "__getitem__") and hasattr(data, "__len__")) or isinstance(
        data, (str, dict, np.ndarray, torch.Tensor)
    ):
        raise BadInput(
            f"{name} must be a pair (X, y) of tensors or arrays, or a data set with a length and items by number, got "
            f"{type(data).__name__}"
        )
    if not len(data):
        raise BadInput(f"{name} is empty")
    return Items(data)


class Network:
    """A module, its loss and how they are computed: what worker and driver have in common."""

    def __init__(self, module: torch.nn.Module, loss: Any, *, device: str, precision: str | None, mean: bool) -> None:
        self.module, self.loss, self.device, self.precision, self.mean = module, loss, device, precision, mean

    def move(self) -> torch.device:
        """Go to the device and say which it is: of several CUDA devices each worker takes the next."""
        import torch

        device = torch.device(self.device)
        if device.type == "cuda":
            if not torch.cuda.is_available():
                raise BadInput(f"there is no device '{self.device}' here: torch finds no CUDA; use device='cpu'")
            if self.device == "cuda":
                number = int(os.environ.get("ANYK_WORKER", "0")) % torch.cuda.device_count()
                device = torch.device("cuda", number)
        for part in (self.module, self.loss):
            if isinstance(part, torch.nn.Module):
                part.to(device)
        return device

    def outputs(self, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """What the module makes of a batch's inputs."""
        import torch

        kind = batch[-1].device.type
        with torch.autocast(kind, dtype=torch.bfloat16, enabled=self.precision is not None):
            made: torch.Tensor = self.module(*batch[:-1])
        return made

    def loss_of(self, batch: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, int]:
        """What the loss says of a batch, and by what that is to be multiplied to be the sum of its sample losses."""
        import torch

        outputs = self.outputs(batch)
        with torch.autocast(batch[-1].device.type, dtype=torch.bfloat16, enabled=self.precision is not None):
            loss = self.loss(outputs, batch[-1])
        if not isinstance(loss, torch.Tensor) or loss.dim():
            shape = f"shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise BadInput(f"the loss must give one number for a batch, its mean or sum, got {shape}")
        return loss, len(batch[-1]) if self.mean else 1


class TorchPartitions:
    """A module's training data in partitions; see :class:`~anyk.problems.base.Partitions`."""

    def __init__(
        self, network: Network, samples: Arrays | Items, ends: NDArray[np.int64], microbatch: int | None = None
    ) -> None:
        self.sizes = tuple(np.diff(ends).tolist())
        self._samples, self._bounds, self._microbatch = samples, list(pairwise(ends.tolist())), microbatch
        self._network = copy.deepcopy(network)
        parameters = trained(self._network.module.train())
        self.shapes = [tuple(parameter.shape) for parameter in parameters]
        self.dtype = dtype_of(parameters)
        self.dimension = sum(parameter.numel() for parameter in parameters)
        for parameter in parameters:
            parameter.data = parameter.data.new_empty(0)  # a worker's lie where the model does
        self._held: dict[int, tuple[torch.Tensor, ...]] = {}
        self._device: torch.device | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_held": {}, "_device": None}

    def load(self, partitions: Sequence[int]) -> None:
        """See :class:`~anyk.problems.base.Partitions`; module and data go to the device."""
        self._device = device = self._device or self._network.move()
        if isinstance(self._samples, Arrays):
            new = [j for j in partitions if j not in self._held]
            self._held |= {j: self._samples.tensors(slice(*self._bounds[j]), device) for j in new}

    def support(self, partition: int) -> Index | None:
        """All coordinates."""
        del partition
        return None  # as opposed to an index of some

    def partial_gradient(self, partition: int, w: Vector, rows: Index | None = None, /) -> Vector:
        """See :class:`~anyk.problems.base.Partitions`.

        Draws of random layers (dropout) are keyed by the bits of ``w``, the partition and the rows, so that all who
        hold a partition draw alike. One thread computes: bits depend on how many do.
        """
        import torch

        if self._device is None:
            self.load(())
        assert self._device is not None
        module = self._network.module
        parameters = trained(module)
        flat = tensor_over(w).to(self._device)
        for parameter, piece in zip(parameters, _pieces(flat, self.shapes), strict=True):
            parameter.data = piece
        total = torch.zeros(self.dimension, dtype=flat.dtype, device=self._device)
        pieces = _pieces(total, self.shapes)
        with _one_thread(), _drawing(_key(w, partition, rows), self._device), _kept_buffers(module):
            for batch in self._batches(partition, rows):
                given = [*parameters, *batch]
                versions = [tensor._version for tensor in given]
                loss, times = self._network.loss_of(batch)
                parts = torch.autograd.grad(loss, parameters, allow_unused=True)
                if [tensor._version for tensor in given] != versions:
                    raise BadInput("the module changes its inputs or parameters in place, which other workers share")
                for piece, part in zip(pieces, parts, strict=True):
                    if part is not None:
                        piece.add_(part, alpha=times)  # and not the loss times that: it may be bf16
        gradient: Vector = total.cpu().numpy()
        return gradient

    def _batches(self, partition: int, rows: Index | None) -> Iterator[tuple[torch.Tensor, ...]]:
        """The samples of a partition or these of its rows, as many at once as a microbatch has."""
        assert self._device is not None
        first, last = self._bounds[partition]
        held = self._held.get(partition)
        size = last - first if rows is None else len(rows)
        for a, b in pairwise(_ends(size, self._microbatch or size)):
            if held is None:
                some = slice(first + a, first + b) if rows is None else rows[a:b] + first
                yield self._samples.tensors(some, self._device)
            elif rows is None:
                yield tuple(tensor[a:b] for tensor in held)
            else:
                chosen = tensor_over(rows[a:b]).to(self._device)
                yield tuple(tensor[chosen] for tensor in held)


def trained(module: torch.nn.Module) -> list[torch.nn.Parameter]:
    """The parameters that are the model: shared ones once, frozen ones not."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def dtype_of(parameters: Sequence[torch.Tensor]) -> np.dtype[Any]:
    """The one number type of all, float32 or float64."""
    import torch

    kinds = {parameter.dtype for parameter in parameters}
    if not kinds:
        raise BadInput("the module has no parameter to train: none requires a gradient")
    if len(kinds) > 1 or not kinds <= {torch.float32, torch.float64}:
        names = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))
        raise BadInput(
            f"the parameters must all be float32 or all float64, got {names}; for mixed precision use precision='bf16'"
        )
    return np.dtype(str(kinds.pop()).removeprefix("torch."))


def _pieces(flat: torch.Tensor, shapes: Sequence[tuple[int, ...]]) -> list[torch.Tensor]:
    """Views of a flat tensor, one for each parameter."""
    import torch

    parts: Any = torch.split(flat, [prod(shape) for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def _ends(size: int, most: int) -> list[int]:
    """Where batches of at most ``most`` samples end, as even as possible: batch norm cannot do with a last one of 1."""
    ends: list[int] = cut(size, -(-size // min(size, most))).tolist()
    return ends


def _key(w: Vector, partition: int, rows: Index | None) -> int:
    """The seed of what is drawn: the sum of the model's bits is one pass over it, and differs where they do."""
    words: NDArray[Any] = np.ascontiguousarray(w).view(np.uint32 if w.dtype.itemsize == 4 else np.uint64)
    bits = int(np.add.reduce(words, dtype=np.uint64))
    chosen = -1 if rows is None else crc32(np.asarray(rows, dtype=np.int64).tobytes())
    return int(keyed.generator(bits, "module", partition, chosen).integers(2**63))


@contextmanager
def _drawing(seed: int, device: torch.device) -> Iterator[None]:
    """Torch's draws from a seed; those of everybody else go on as if nothing had been drawn."""
    import torch

    generators: list[Any] = [torch.default_generator]
    if device.type == "cuda":
        generators.append(torch.cuda.default_generators[device.index or 0])
    states = [generator.get_state() for generator in generators]
    for generator in generators:  # torch.manual_seed does this too, and much that takes longer than a small gradient
        generator.manual_seed(seed)
    try:
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


@contextmanager
def _one_thread() -> Iterator[None]:
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _kept_buffers(module: torch.nn.Module) -> Iterator[None]:
    """Put back what a forward pass changes in buffers."""
    kept = [(part, name, buffer) for part in module.modules() for name, buffer in part._buffers.items()]
    for part, name, buffer in kept:
        part._buffers[name] = None if buffer is None else buffer.clone()
    try:
        yield
    finally:
        for part, name, buffer in kept:
            part._buffers[name] = buffer


def _accuracy(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    """Share of targets that have the largest output; classes are the second axis, as in torch's losses, or the last."""
    classes = 1 if outputs.shape[:1] + outputs.shape[2:] == targets.shape else -1
    return float((outputs.argmax(dim=classes) == targets).double().mean())


def _mse(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    return float(((outputs.double().reshape(targets.shape) - targets) ** 2).mean())


class TorchProblem:
    """A PyTorch module with a loss; see :class:`~anyk.problems.base.Problem`.

    The objective is ``(1/N) sum of sample losses + (l2/2) |w|^2`` over the module's trainable parameters, flattened in
    the order of ``module.parameters()``; a shared parameter counts once, and frozen ones (``requires_grad=False``) stay
    as they are. The model begins as ``module`` is when this is called; :meth:`module_at` gives a module back.

    - ``loss(outputs, targets)`` gives a batch's mean or its sum, as ``reduction`` says (left out: what the loss says
      of itself, as torch's do, else ``"mean"``). A mean must be that over the samples alike; for one with class weights
      or ignored targets use a sum.
    - ``dataset``: inputs and targets as a tuple of tensors or arrays, ``(X, y)``, each with one entry for each sample;
      or a map-style data set. Arrays exist once on a machine, and numbers with a fraction become what the parameters
      are; a data set is pickled to workers as it is and read item by item. ``held_out`` likewise.
    - ``device``: where workers compute (``"cuda"`` spreads them over the machine's devices) and, if it has one, the
      driver evaluates. ``precision="bf16"`` runs module and loss under ``torch.autocast``.
    - ``microbatch``: samples computed at once at most, where a partition does not fit into memory.
    - ``metrics``: functions of (outputs, targets) for all held-out samples, by name; the first one is the run's, and
      ``better`` says whether high is good. Left out: ``accuracy`` for targets that are whole numbers, else ``mse``.

    Workers compute in training mode from the module's initial buffers, and drop what the forward pass does to them:
    batch norm normalises with the batch at hand. For evaluation running statistics are computed anew over the
    training data, as ``torch.optim.swa_utils.update_bn`` does. Random layers draw by the model, the partition and the
    rows, so that replicas agree.

    Raises :class:`~anyk.errors.BadInput` for what cannot work: module and loss are tried on two samples first.

    >>> import torch
    >>> X = torch.randn(40, 3)
    >>> problem = TorchProblem(torch.nn.Linear(3, 2), torch.nn.CrossEntropyLoss(), (X, (X[:, 0] > 0).long()))
    >>> problem.dimension, problem.metric
    (8, 'accuracy')
    >>> run = anyk.train(problem, "frc:load=2", anyk.clusters.Simulated(4), steps=3)
    >>> problem.module_at(run.model)(X).shape
    torch.Size([40, 2])
    """

    def __init__(
        self,
        module: torch.nn.Module,
        loss: Callable[[Any, Any], Any],
        dataset: Any,
        *,
        held_out: Any = None,
        l2: float = 0.0,
        device: str = "cpu",
        precision: Literal["bf16"] | None = None,
        reduction: Literal["mean", "sum"] | None = None,
        microbatch: int | None = None,
        metrics: Mapping[str, Metric] | None = None,
        better: Literal["higher", "lower"] | None = None,
    ) -> None:
        _check_options(device, precision, l2, microbatch)
        mean = _is_mean(loss, reduction)
        try:
            own = copy.deepcopy(module).cpu()
            own.zero_grad(set_to_none=True)
        except Exception as error:
            raise BadInput(f"the module cannot be copied: {error}") from None
        self._network = Network(own, loss, device=device, precision=precision, mean=mean)
        parameters = trained(own)
        self.dtype = dtype_of(parameters)
        self.shapes = [tuple(parameter.shape) for parameter in parameters]
        self.dimension = sum(parameter.numel() for parameter in parameters)
        self.l2 = float(l2)
        self._data = _samples(dataset, "the data set", self.dtype)
        self._held_out = None if held_out is None else _samples(held_out, "held_out", self.dtype)
        self._microbatch = microbatch
        self.samples = len(self._data)
        self._last: tuple[Vector, Network, torch.device] | None = None
        targets = self._try()
        plain = {"mse": _mse} if targets.is_floating_point() else {"accuracy": _accuracy}
        self._metrics: dict[str, Metric] = dict(plain if metrics is None else metrics)
        if not self._metrics:
            raise BadInput("metrics must name at least one function, or be left out")
        self.metric = next(iter(self._metrics))
        self.better: Literal["higher", "lower"] = better or ("lower" if self.metric in ("mse", "loss") else "higher")
        if self._held_out is not None:
            self._check_held_out(self._held_out, own_metrics=metrics is not None)

    def _try(self) -> torch.Tensor:
        """Compute a gradient on a copy of some samples; returns their targets."""
        some = min(_TRIED, self.samples)
        try:
            network = copy.copy(self._network)
            network.device = "cpu"
            tried = TorchPartitions(network, self._data, cut(some, 1))
            tried._held[0] = tuple(tensor.clone() for tensor in self._data.tensors(slice(0, some), "cpu"))
            tried.partial_gradient(0, self.initial())
        except BadInput:
            raise
        except Exception as error:
            raise BadInput(
                f"module and loss fail on the first {some} samples: {type(error).__name__}: {error}"
            ) from None
        return tried._held[0][-1]

    def _check_held_out(self, data: Arrays | Items, *, own_metrics: bool) -> None:
        """Say that the metric does not suit what the module gives, before a run and not after it."""
        import torch

        batch = data.tensors(slice(0, min(_TRIED, len(data))), "cpu")
        network = copy.deepcopy(self._network)
        network.module.eval()
        try:
            with torch.no_grad():
                outputs = network.outputs(batch)
        except Exception as error:
            raise BadInput(f"the module fails on held_out: {type(error).__name__}: {error}") from None
        if not isinstance(outputs, torch.Tensor):
            raise BadInput(f"a metric needs outputs that are one tensor, the module gives {type(outputs).__name__}")
        fits = (
            outputs.dim() == batch[-1].dim() + 1 if self.metric == "accuracy" else outputs.numel() == batch[-1].numel()
        )
        if not (own_metrics or fits):
            raise BadInput(
                f"{self.metric} cannot be told from outputs of shape {tuple(outputs.shape)} and targets of shape "
                f"{tuple(batch[-1].shape)}; give metrics={{name: function}}"
            )

    def split(self, partitions: int, shares: Sequence[int] | None = None) -> TorchPartitions:
        """See :class:`~anyk.problems.base.Problem`; raises when there are fewer samples than partitions."""
        return TorchPartitions(self._network, self._data, cut(self.samples, partitions, shares), self._microbatch)

    def initial(self) -> Vector:
        """The parameters that the module was given with, as one vector."""
        import torch

        flat = torch.cat([parameter.detach().reshape(-1) for parameter in trained(self._network.module)])
        w: Vector = flat.numpy()
        return w

    def loss(self, w: Vector) -> float:
        """The objective at ``w``, in evaluation mode: without dropout, with running statistics."""
        import torch

        network, device = self._at(w)
        with torch.no_grad():
            found = [network.loss_of(batch) for batch in self._batches(self._data, device)]
        return sum(float(loss) * times for loss, times in found) / self.samples + 0.5 * self.l2 * float(w @ w)

    def metrics(self, w: Vector) -> dict[str, float]:
        """See :class:`~anyk.problems.base.Problem`."""
        import torch

        if self._held_out is None:
            return {}
        network, device = self._at(w)
        with torch.no_grad():
            found = [(network.outputs(batch).cpu(), batch[-1].cpu()) for batch in self._batches(self._held_out, device)]
        outputs, targets = (torch.cat(parts) for parts in zip(*found, strict=True))
        return {name: float(metric(outputs, targets)) for name, metric in self._metrics.items()}

    def module_at(self, w: Vector) -> torch.nn.Module:
        """A module with the parameters ``w`` (length d) and running statistics that suit them, in evaluation mode."""
        return copy.deepcopy(self._at(w)[0].module).cpu()

    def recipe(self) -> dict[str, Any] | None:
        """None: it is made in Python."""
        return None

    def _at(self, w: Vector) -> tuple[Network, torch.device]:
        """The network at ``w``, ready to evaluate, and its device; the last is kept, as loss and metrics share it."""
        import torch

        last = self._last
        if last is not None and np.array_equal(last[0], w):
            return last[1:]
        network = copy.deepcopy(self._network)
        if network.device.startswith("cuda") and not torch.cuda.is_available():
            network.device = "cpu"  # the driver's machine need not have what workers have
        flat = torch.tensor(np.asarray(w, dtype=self.dtype))
        for parameter, piece in zip(trained(network.module), _pieces(flat, self.shapes), strict=True):
            parameter.data = piece
        device = network.move()
        self._renew_statistics(network, device)
        network.module.eval()
        self._last = w.copy(), network, device
        return network, device

    def _renew_statistics(self, network: Network, device: torch.device) -> None:
        """Running means and variances over the training data, as ``update_bn`` has them."""
        import torch
        from torch.nn.modules.batchnorm import _BatchNorm

        norms = [part for part in network.module.modules() if isinstance(part, _BatchNorm) and part.track_running_stats]
        if not norms:
            return
        momenta = [norm.momentum for norm in norms]
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # the plain mean over all batches
        network.module.train()
        with torch.no_grad(), _drawing(0, device):
            for batch in self._batches(self._data, device):
                network.outputs(batch)
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum

    def _batches(self, data: Arrays | Items, device: torch.device) -> Iterator[tuple[torch.Tensor, ...]]:
        for a, b in pairwise(_ends(len(data), self._microbatch or _EVALUATED)):
            yield data.tensors(slice(a, b), device)


def _check_options(device: str, precision: str | None, l2: float, microbatch: int | None) -> None:
    try:
        import torch
    except ImportError:
        raise MissingPackage("PyTorch", "torch", "TorchProblem") from None
    try:
        known = torch.device(device).type in ("cpu", "cuda")
    except RuntimeError:
        known = False
    if not known:
        raise BadInput(f"device must be 'cpu', 'cuda' or 'cuda:0', got '{device}'")
    if precision == "fp16":
        raise BadInput("precision 'fp16' would need its losses scaled, which is not done; use 'bf16'")
    if precision not in (None, "bf16"):
        raise BadInput(f"precision must be None or 'bf16', got {precision!r}")
    if not 0.0 <= l2 < float("inf"):
        raise BadInput(f"l2 must be a finite number of at least 0, got {l2:g}")
    if microbatch is not None and microbatch < 1:
        raise BadInput(f"microbatch must be at least 1 sample, got {microbatch}")


def _is_mean(loss: Any, reduction: str | None) -> bool:
    """Whether the loss gives a batch's mean; refuses a mean that is not one over samples alike."""
    import torch

    said = getattr(loss, "reduction", None)
    if reduction is not None and said in ("mean", "sum") and reduction != said:
        raise BadInput(f"reduction is '{reduction}', but the loss says that it gives the {said}")
    reduction = reduction or said or "mean"
    if reduction not in ("mean", "sum"):
        raise BadInput(f"the loss of a batch must be its mean or its sum, got reduction '{reduction}'")
    weighted = isinstance(loss, (torch.nn.CrossEntropyLoss, torch.nn.NLLLoss)) and loss.weight is not None
    if weighted and reduction == "mean":
        raise BadInput("a weighted mean of losses is not the mean of the samples'; give the loss reduction='sum'")
    if isinstance(loss, torch.nn.Module) and any(parameter.requires_grad for parameter in loss.parameters()):
        raise BadInput("the loss has parameters of its own, which nobody would train; make them part of the module")
    return reduction == "mean"
