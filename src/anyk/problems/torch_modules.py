"""PyTorch modules: any module, any loss.

Only parameters are the model. A buffer (a running mean, say) is whatever the module had at the start while a partial
gradient is computed, and what the forward pass does to it is dropped: replies must not depend on what a worker did
before. Where running statistics are needed, to evaluate, they are computed anew from the training data.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from anyk.checks import check
from anyk.errors import BadInput, MissingPackage, RunFailed
from anyk.problems.base import Vector, cut, problem_text
from anyk.problems.digest import digest_of
from anyk.problems.splits import Dirichlet, checked
from anyk.problems.sums import check_loss, check_parts, has_entries, telling
from anyk.problems.torch_data import Arrays, Items, samples_of
from anyk.problems.torch_partitions import (
    Network,
    TorchPartitions,
    dtype_of,
    even_ends,
    kept_buffers,
    norms_of,
    pieces_of,
    trained,
)
from anyk.problems.torch_random import drawing

if TYPE_CHECKING:
    import torch

_RENEWED = 1024  # items over which running statistics are computed to evaluate, where items have to be read
_EVALUATED = 512  # samples that a forward pass has at most where nobody said how many fit into memory
_TRIED = 2  # samples that module and loss are tried on; batch norm cannot do with one

Metric = Callable[[Any, Any], float]


def _accuracy(outputs: torch.Tensor, targets: torch.Tensor, ignored: int | None = None) -> float:
    """Share of targets that have the largest output; classes are the second axis, as in torch's losses, or the last."""
    classes = 1 if outputs.shape[:1] + outputs.shape[2:] == targets.shape else -1
    right = outputs.argmax(dim=classes) == targets
    return float((right if ignored is None else right[targets != ignored]).double().mean())


def _mse(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    return float(((outputs.double().reshape(targets.shape) - targets) ** 2).mean())


class TorchProblem:
    """A PyTorch module with a loss; see :class:`~anyk.problems.base.Problem`.

    The objective is ``(1/N) sum of sample losses + (l2/2) |w|^2`` over the module's trainable parameters, flattened in
    the order of ``module.parameters()``; a shared parameter counts once, and frozen ones (``requires_grad=False``) stay
    as they are. The model begins as ``module`` is when this is called; :meth:`module_at` gives a module back.

    - ``loss(outputs, targets)`` gives a batch's mean or its sum, as ``reduction`` says (left out: what the loss says
      of itself, as torch's do, else ``"mean"``). A mean must be that over the samples alike; for one with class weights
      use a sum. One that is not is refused, here or at the first gradient of a partition. The mean of torch's
      ``CrossEntropyLoss`` and ``NLLLoss`` over the targets that are not ignored (``ignore_index``) is that over all of
      them in the data set, however they are spread over partitions.
    - ``dataset``: inputs and targets as a tuple of tensors or arrays, ``(X, y)``, each with one entry for each sample;
      or a map-style data set. Arrays exist once on a machine, and numbers with a fraction become what the parameters
      are; a data set is pickled to workers as it is and read item by item. ``held_out`` likewise.
    - ``device``: where workers compute (``"cuda"`` spreads them over the machine's devices) and, if it has one, the
      driver evaluates. ``precision="bf16"`` runs module and loss under ``torch.autocast``.
    - ``microbatch``: samples computed at once at most, where a partition does not fit into memory.
    - ``metrics``: functions of (outputs, targets) for all held-out samples, by name; the first one is the run's, and
      ``better`` says whether high is good. Left out: ``accuracy`` for targets that are whole numbers, else ``mse``.
    - ``split``: how samples are spread over partitions by their labels (:class:`~anyk.problems.Dirichlet` or its spec),
      if not as they come; for arrays whose targets are one whole number each.

    Workers compute in training mode from the module's initial buffers, and drop what the forward pass does to them:
    batch norm normalises with the batch at hand. For evaluation running statistics are computed anew over the
    training data, as ``torch.optim.swa_utils.update_bn`` does; of a data set that is read item by item, over 1,024 of
    its items (by :meth:`module_at`, over all). The loss of such a data set is not evaluated unless
    :class:`anyk.Evaluate` asks for it. Random layers draw by the model, the partition and the
    rows, so that replicas agree; what the items of a data set draw from the global generators of torch, NumPy and
    Python is seeded by the model and the item. Where several workers hold a partition their gradients are compared, at
    the start and now and then.

    Raises :class:`~anyk.errors.BadInput` for what cannot work: module and loss are tried on up to 32 samples first.

    >>> import torch
    >>> X = torch.randn(40, 3)
    >>> problem = TorchProblem(torch.nn.Linear(3, 2), torch.nn.CrossEntropyLoss(), (X, (X[:, 0] > 0).long()))
    >>> problem.dimension, problem.metric
    (8, 'accuracy')
    >>> optimizer = anyk.optimizers.GD(lr=0.1)
    >>> run = anyk.train(problem, "frc:load=2", anyk.clusters.Simulated(4), optimizer=optimizer, steps=3)
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
        split: Dirichlet | str | None = None,
    ) -> None:
        _check_options(device, precision, l2, microbatch)
        mean = _is_mean(loss, reduction)
        try:
            own = copy.deepcopy(module).cpu()
            own.zero_grad(set_to_none=True)
        except Exception as error:
            raise BadInput(f"the module cannot be copied: {error}") from None
        self._network = Network(own, loss, device=device, precision=precision, mean=mean)
        _check_norms(own)
        ignored = _ignored(loss)
        parameters = trained(own)
        self.dtype = dtype_of(parameters)
        self.shapes = [tuple(parameter.shape) for parameter in parameters]
        self.dimension = sum(parameter.numel() for parameter in parameters)
        self.l2 = float(l2)
        self._data = samples_of(dataset, "the data set", self.dtype)
        unlabelled = "the targets are not an array of one whole number for each sample"
        self.uneven = checked(split, None if self._data.labels is not None else unlabelled)
        self._held_out = None if held_out is None else samples_of(held_out, "held_out", self.dtype)
        self._microbatch = microbatch
        self.samples = len(self._data)
        if mean and ignored is not None:
            self._count_targets(ignored)
        self._last: tuple[Vector, Network, torch.device, int] | None = None
        targets = self._try()
        plain = {"mse": _mse} if targets.is_floating_point() else {"accuracy": partial(_accuracy, ignored=ignored)}
        self._metrics: dict[str, Metric] = dict(plain if metrics is None else metrics)
        if not self._metrics:
            raise BadInput("metrics must name at least one function, or be left out")
        self.metric = next(iter(self._metrics))
        self.better: Literal["higher", "lower"] = better or ("lower" if self.metric in ("mse", "loss") else "higher")
        if self._held_out is not None:
            self._check_held_out(self._held_out, own_metrics=metrics is not None)

    def __repr__(self) -> str:
        return problem_text(self)

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
        except RunFailed as error:  # an item that cannot be read
            raise BadInput(str(error)) from None
        except Exception as error:
            raise BadInput(
                f"module and loss fail on the first {some} samples: {type(error).__name__}: {error}"
            ) from None
        self._try_loss(tried._network)
        return tried._held[0][-1]

    def _try_loss(self, network: Network) -> None:
        """Refuse a loss of several samples that is not the mean, or the sum, of theirs, where that can be told."""
        import torch

        targets = [self._data.arrays[-1]] if isinstance(self._data, Arrays) else []
        for rows in telling(targets, self.samples, self._microbatch):
            of = f"samples {', '.join(map(str, rows))}"
            try:
                batch = self._data.tensors(rows, "cpu")
                with drawing(0, torch.device("cpu")), kept_buffers(network.module), torch.no_grad():
                    outputs = network.outputs(batch)
                    network.loss_and_times(outputs, batch[-1])
                    if has_entries(outputs, len(rows)):
                        check_loss(network, outputs, batch[-1], of)
                    else:
                        check_parts(network, batch, of)
            except BadInput:
                raise
            except RunFailed as error:
                raise BadInput(str(error)) from None
            except Exception:  # samples that lie apart need not fit together; what fails in a run is said there
                continue

    def _count_targets(self, ignored: int) -> None:
        """Make the mean over targets that are not ignored one over those of the whole data set: a sum, divided."""
        if isinstance(self._data, Items):
            self._network.unknown = ignored
            return
        targets = self._data.arrays[-1]
        count = int(np.count_nonzero(targets != ignored))
        if targets.dtype.kind == "f" or count == targets.size:
            return
        if not count:
            raise BadInput(f"the loss ignores every target: all are {ignored} (ignore_index)")
        network = self._network
        network.loss = copy.copy(network.loss)
        network.loss.reduction = "sum"
        network.mean, network.times = False, self.samples / count

    def _check_held_out(self, data: Arrays | Items, *, own_metrics: bool) -> None:
        """Say that the metric does not suit what the module gives, before a run and not after it."""
        import torch

        network = copy.deepcopy(self._network)
        network.module.eval()
        try:
            batch = data.tensors(slice(0, min(_TRIED, len(data))), "cpu")
            with torch.no_grad():
                outputs = network.outputs(batch)
        except BadInput:
            raise
        except Exception as error:
            raise BadInput(f"the module fails on held_out: {type(error).__name__}: {error}") from None
        if not isinstance(outputs, torch.Tensor):
            raise BadInput(f"a metric needs outputs that are one tensor, the module gives {type(outputs).__name__}")
        fits = (
            outputs.dim() == batch[-1].dim() + 1 if self.metric == "accuracy" else outputs.numel() == batch[-1].numel()
        )
        if not (own_metrics or fits):
            raise BadInput(
                f"{self.metric} cannot be computed from outputs of shape {tuple(outputs.shape)} and targets of shape "
                f"{tuple(batch[-1].shape)}; give metrics={{name: function}}"
            )

    def split(self, partitions: int, shares: Sequence[int] | None = None) -> TorchPartitions:
        """See :class:`~anyk.problems.base.Problem`; raises when there are fewer samples than partitions."""
        ends, data = cut(self.samples, partitions, shares), self._data
        if self.uneven is not None and isinstance(data, Arrays) and data.labels is not None:
            data = data.arranged(self.uneven.order(data.labels, ends))
        return TorchPartitions(self._network, data, ends, self._microbatch)

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
        return copy.deepcopy(self._at(w, whole=True)[0].module).cpu()

    @property
    def evaluated_on(self) -> Literal["train", "held_out"] | None:
        """See :class:`~anyk.problems.base.Problem`: a data set that is read item by item is not read for the loss."""
        if isinstance(self._data, Arrays):
            return "train"
        return None if self._held_out is None else "held_out"

    def sampled(self, samples: int) -> Self:
        """See :class:`~anyk.problems.base.Problem`; running statistics are then those of the sample, too."""
        made = copy.copy(self)
        made._data = self._data.some(samples, "train")
        made.samples = len(made._data)
        if self._held_out is not None:
            made._held_out = self._held_out.some(samples, "held out")
        made._last = None
        return made

    def digest(self) -> str | None:
        """See :class:`~anyk.problems.base.Problem`; of a data set that is read item by item the arrays it holds."""
        both = (self._data, self._held_out)
        parts = [data.arrays if isinstance(data, Arrays) else getattr(data, "data", None) for data in both]
        return digest_of(*parts, *(() if self.uneven is None else self.uneven.told))

    def recipe(self) -> dict[str, Any] | None:
        """None: it is made in Python."""
        return None

    def _at(self, w: Vector, *, whole: bool = False) -> tuple[Network, torch.device]:
        """The network at ``w``, ready to evaluate, and its device; the last is kept, as loss and metrics share it.

        ``whole``: running statistics are of all the training data, also where that is read item by item.
        """
        import torch

        data = self._data
        if isinstance(data, Items) and not whole:
            data = data.some(_RENEWED, "statistics")
        last = self._last
        if last is not None and np.array_equal(last[0], w) and last[3] == len(data):
            return last[1:3]
        network = copy.deepcopy(self._network)
        if network.device.startswith("cuda") and not torch.cuda.is_available():
            network.device = "cpu"  # the driver's machine need not have what workers have
        flat = torch.tensor(np.asarray(w, dtype=self.dtype))
        for parameter, piece in zip(trained(network.module), pieces_of(flat, self.shapes), strict=True):
            parameter.data = piece
        device = network.move()
        self._renew_statistics(network, device, data)
        network.module.eval()
        self._last = w.copy(), network, device, len(data)
        return network, device

    def _renew_statistics(self, network: Network, device: torch.device, data: Arrays | Items) -> None:
        """Running means and variances over some data, as ``update_bn`` has them."""
        import torch

        norms = norms_of(network.module)
        if not norms:
            return
        momenta = [norm.momentum for norm in norms]
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # the plain mean over all batches
        network.module.train()
        with torch.no_grad(), drawing(0, device):
            for batch in self._batches(data, device):
                network.outputs(batch)
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum

    def _batches(self, data: Arrays | Items, device: torch.device) -> Iterator[tuple[torch.Tensor, ...]]:
        for a, b in pairwise(even_ends(len(data), self._microbatch or _EVALUATED)):
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
    check(l2, float, "l2")
    check(microbatch, int | None, "microbatch")
    if precision == "fp16":
        raise BadInput("precision 'fp16' needs loss scaling, which is not supported; use 'bf16'")
    if precision not in (None, "bf16"):
        raise BadInput(f"precision must be None or 'bf16', got {precision!r}")
    if not 0.0 <= l2 < float("inf"):
        raise BadInput(f"l2 must be a finite number of at least 0, got {l2:g}")
    if microbatch is not None and microbatch < 1:
        raise BadInput(f"microbatch must be at least 1 sample, got {microbatch}")


def _check_norms(module: torch.nn.Module) -> None:
    """Refuse running statistics that nothing would compute."""
    from torch.nn.modules.instancenorm import _InstanceNorm

    for name, part in module.named_modules():
        if isinstance(part, _InstanceNorm) and part.track_running_stats:
            raise BadInput(
                f"layer '{name}' is an instance norm with running statistics, which are computed anew for batch norms "
                "alone; give it track_running_stats=False"
            )


def _ignored(loss: Any) -> int | None:
    """The target that a loss of torch's ignores."""
    import torch

    known = isinstance(loss, (torch.nn.CrossEntropyLoss, torch.nn.NLLLoss))
    return int(loss.ignore_index) if known else None


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
        raise BadInput("the loss has parameters of its own, which would not be trained; make them part of the module")
    return reduction == "mean"
