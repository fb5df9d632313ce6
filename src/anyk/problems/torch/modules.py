"""PyTorch modules: any module, any loss.

The model consists of parameters alone. A partial gradient is computed from the module's initial buffers, and the
forward pass's changes to them are dropped: replies must not depend on a worker's earlier tasks. The running statistics
of batch norm, needed to evaluate, are computed anew from the training data; other state that depends on earlier forward
passes is refused (:func:`~anyk.problems.torch.forward_state.check_forward`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from anyk.errors import BadInput, RunFailed, as_bad_input, describe_error, explaining
from anyk.problems.base import NO_HELD_OUT, Better, Index, Vector, cut, even_ends
from anyk.problems.data.reader_processes import map_in_processes
from anyk.problems.data.sample_batches import Arrays, Batch, Samples
from anyk.problems.data.shards.shard_samples import ShardSamples
from anyk.problems.data.splits import Dirichlet, build_split
from anyk.problems.data.streams import NO_LOSS
from anyk.problems.digest import digest_of
from anyk.problems.linear.scaling import checked_l2
from anyk.problems.model_files import load_copy, write_model_file
from anyk.problems.network_problem import NetworkProblem
from anyk.problems.replicas import TOGETHER, trial_groups
from anyk.problems.torch.forward_state import check_forward
from anyk.problems.torch.generators import drawing
from anyk.problems.torch.loss_checks import (
    check_loss,
    check_module,
    check_options,
    check_samples,
    has_entries,
    ignored_by,
    is_mean,
    takes_module,
)
from anyk.problems.torch.module_partitions import (
    AT_ONCE,
    Placed,
    TorchPartitions,
    dtype_of,
    is_at,
    kept_buffers,
    norms_of,
    pieces_of,
)
from anyk.problems.torch.network import (
    Metric,
    Network,
    check_metrics,
    compute_metrics,
    counted,
    default_metrics,
    mapped,
    tensors_in,
    trained,
)
from anyk.problems.torch.tensor_samples import (
    Apart,
    Items,
    Reading,
    known_of,
    labels_of,
    samples_of,
    tensor_over,
)

if TYPE_CHECKING:
    import torch

_RENEWED = 1024  # items from which running statistics are computed to evaluate, if items have to be read
_TRIED = 2  # samples on which module and loss are tried; batch norm needs two


class TorchProblem(NetworkProblem):
    """A PyTorch module with a loss; see :class:`~anyk.problems.base.Problem`.

    The objective is ``(1/N) sum of sample losses + (l2/2) |w|^2`` over the module's trainable parameters, flattened in
    the order of ``module.parameters()``; a shared parameter counts once, and frozen parameters
    (``requires_grad=False``) do not change. The initial model is a copy of ``module``; :meth:`module_at` returns a
    module.

    - ``loss``: a function of ``(outputs, targets)``, or of ``(module, batch)`` if its first parameter is called
      ``module`` or ``model`` (``lambda model, batch: model(**batch).loss``). It returns a batch's mean or its sum, as
      ``reduction`` specifies (default: the loss's own ``reduction``, which torch's losses have, else ``"mean"``). A
      mean must weigh all samples alike; with class weights use a sum. Any other mean is refused, here or at the first
      gradient of a partition, with mini-batches also at later gradients. The mean of torch's ``CrossEntropyLoss`` and
      ``NLLLoss`` over targets that are not ignored (``ignore_index``) becomes the mean over all such targets of the
      data set, however they are spread over partitions.
    - ``count``: a function of a batch that returns the number of terms over which ``loss`` is a mean, if these are not
      the samples: ``lambda batch: (batch["labels"][:, 1:] != -100).sum()``. The objective is then the sum of all terms
      of the data set divided by their number; they are counted in one pass over the data.
    - ``dataset``: inputs and targets as a tuple of tensors or arrays, ``(X, y)``, with one entry per sample; or a
      map-style data set. Arrays exist once on a machine, and floating-point numbers are converted to the type of the
      parameters; a data set is pickled to workers unchanged and read item by item. For ``loss(module, batch)`` also
      arrays by name, ``{"input_ids": …, "labels": …}``, and any items that ``collate_fn`` (default: torch's) combines;
      it must not draw random numbers. Or :class:`~anyk.data.Shards`, files that the driver never opens: the number
      columns of tables are one tensor, integer targets are classes. Or :class:`~anyk.data.Stream` or torch's
      ``IterableDataset``: samples without an end.
    - ``held_out``: held-out samples in the same forms, except streams.
    - ``device``: where workers compute (``"cuda"`` spreads them over the machine's devices) and, if it has one, the
      driver evaluates. ``precision="bf16"`` runs module and loss under ``torch.autocast``.
    - ``microbatch``: the largest number of samples computed together, if more do not fit into memory; gradients are
      accumulated and sent once. With shards the default is 512. ``threads``: the number of threads with which each
      worker computes gradients, on all clusters; the last digits depend on it, so that it is part of the problem.
      ``num_workers``: processes that each worker starts to read the items of a map-style data set, as torch's
      ``DataLoader`` does; bits do not depend on it.
    - ``transform``: a function of an item of a data set, or of a stream's sample, that returns the sample to train on,
      such as an augmentation; ``eval_transform`` returns the sample to evaluate, also for held-out items. By default
      items are used unchanged. Running statistics are computed from training samples.
    - ``metrics``: functions of (outputs, targets) for all held-out samples, by name; the first one is the run's metric,
      and ``better`` specifies whether higher or lower is better. Default: ``accuracy`` for integer targets, else
      ``mse``. With ``loss(module, batch)`` they are functions of (module, batch), averaged over the samples (or the
      terms that ``count`` returns); default: ``loss`` of the held-out samples.
    - ``split``: how samples are spread over partitions by their labels (:class:`~anyk.problems.Dirichlet` or its spec),
      by default in their order; for arrays whose targets are one integer each.

    Workers compute in training mode from the module's initial buffers, and drop the changes of a forward pass: batch
    norm normalises with the current batch; other state that a forward pass changes is refused by name. For evaluation,
    running statistics are computed anew over the training data, as ``torch.optim.swa_utils.update_bn`` does; if it is
    read item by item, over 1,024 of its items (by :meth:`module_at`, over all). The loss of such a data set is not
    evaluated unless :class:`anyk.Evaluate` asks for it. Random layers draw by the model's version, the partition and
    the rows, so that replicas agree; random numbers of a data set's items, from the global generators of torch, NumPy
    and Python, are seeded by the version and the item. Where several workers compute a partition their gradients are
    compared, at the start and now and then.

    Raises :class:`~anyk.errors.BadInput` for problems that cannot be trained: module and loss are first tried on up to
    32 samples.

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

    shapes: list[tuple[int, ...]]
    _last: tuple[Network, torch.device, int] | None = None  # at the last model, with the size of its statistics' data

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
        threads: int = 1,
        num_workers: int = 0,
        metrics: Mapping[str, Metric] | None = None,
        better: Better | None = None,
        split: Dirichlet | str | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        transform: Callable[[Any], Any] | None = None,
        eval_transform: Callable[[Any], Any] | None = None,
        count: Callable[[Any], Any] | None = None,
    ) -> None:
        device = str(device)  # torch.device, too
        functions = {"collate_fn": collate_fn, "transform": transform, "eval_transform": eval_transform, "count": count}
        check_options(device, precision, microbatch, threads, num_workers, better, functions)
        free = takes_module(loss)
        mean = is_mean(loss, reduction)
        check_module(module)
        with as_bad_input("the module cannot be copied", Exception):
            own = copy.deepcopy(module).cpu()
            own.zero_grad(set_to_none=True)
        self._network = Network(
            own, loss, device=device, precision=precision, mean=mean, takes_module=free, count=count, threads=threads
        )
        self.module, self._given = module, list(module.parameters())
        ignored = ignored_by(loss)
        parameters = trained(own)
        self.dtype = dtype_of(parameters)
        self.shapes = [tuple(parameter.shape) for parameter in parameters]
        self.dimension = sum(parameter.numel() for parameter in parameters)
        self.l2 = checked_l2(l2)
        reading = Reading(collate_fn, free, transform, eval_transform)
        data = samples_of(dataset, "the data set", self.dtype, reading)
        unlabelled = "the targets are not an array of one whole number for each sample"
        self.uneven = build_split(split, None if labels_of(data) is not None else unlabelled)
        other = None
        if held_out is not None:
            other = known_of(held_out, "held_out", self.dtype, reading.evaluated)
        elif eval_transform is not None and not isinstance(data.head, Items):
            reading.evaluated.refuse_arrays("the data set", "arrays or shards")
        self._set_samples(data, other)
        if isinstance(data, Items):
            data.processes = num_workers
        elif num_workers:
            raise BadInput("num_workers read the items of a map-style data set, which this is not; leave it out")
        if isinstance(data, ShardSamples):
            microbatch = microbatch or AT_ONCE  # a partition need not fit into memory
        self._microbatch = microbatch
        if count is not None:
            self._count_terms(count)
        elif mean and ignored is not None:
            self._count_targets(ignored)
        batch = self._try()
        self._metrics = default_metrics(self._network, batch, ignored) if metrics is None else check_metrics(metrics)
        self.metric = next(iter(self._metrics))
        self.better = better or ("lower" if self.metric in ("mse", "loss") else "higher")
        if self._held_out is not None:
            self._check_held_out(self._held_out, own_metrics=metrics is not None)
        elif metrics is not None:
            raise BadInput(NO_HELD_OUT)

    def _try(self) -> Batch:
        """Compute a gradient on a copy of some samples; return the copy."""
        head = self._data.head
        some = min(_TRIED, len(head))
        # RunFailed: an item that cannot be read
        with explaining(f"module and loss fail on the first {some} samples", alone=RunFailed):
            network = copy.copy(self._network)
            network.device = "cpu"
            batch = mapped(head.batch(slice(0, some)), lambda tensor: tensor.clone())
            tried = TorchPartitions(network, Placed(batch, some), cut(some, 1))
            tried.partial_gradient(0, self.initial())
        check_forward(self._network, [batch, *self._others(batch, some)])
        self._try_loss(tried._network)
        return batch

    def _others(self, batch: Batch, some: int) -> list[Batch]:
        """Return a list with a second batch of ``some`` samples; empty if there is none of the same shapes."""
        if self._data.head.tried < 2 * some:
            return []
        try:
            other = self._data.head.batch(slice(some, 2 * some))
        except Exception:  # a run reports what fails
            return []
        shapes = [[tensor.shape for tensor in tensors_in(one)] for one in (batch, other)]
        return [other] if shapes[0] == shapes[1] else []

    def _try_loss(self, network: Network) -> None:
        """Refuse a loss of several samples that is not the mean, or the sum, of their losses."""
        import torch

        head = self._data.head
        targets = head.arrays if network.takes_module else head.arrays[-1:]
        for rows in trial_groups(targets, head.tried, self._microbatch or TOGETHER):
            of = f"samples {', '.join(map(str, rows))}"

            def batch_of(chosen: Index, rows: Index = rows) -> Batch:
                return head.batch(rows[chosen])

            try:
                with drawing(0, torch.device("cpu")), kept_buffers(network.module), torch.no_grad():
                    if network.opaque:
                        check_samples(network, batch_of, len(rows), of)
                        continue
                    batch = head.batch(rows)
                    network.times(batch, len(rows))
                    outputs = network.outputs(batch)
                    network.loss_at(outputs, batch[-1])
                    if has_entries(outputs, len(rows)):
                        check_loss(network, outputs, batch[-1], of)
                    else:
                        check_samples(network, batch_of, len(rows), of)
            except BadInput:
                raise
            except Apart:
                continue
            except RunFailed as error:
                raise BadInput(str(error)) from None
            except Exception:  # samples from different places need not fit together; a run reports what fails
                continue

    def _count_terms(self, count: Callable[[Any], Any]) -> None:
        """Make the loss a mean over the terms of the whole data set, in a pass over it."""
        if self.endless:
            raise BadInput("count is taken of all training data, and a stream has no end; leave it out")
        most = self._microbatch or AT_ONCE
        with explaining("count fails on the data set", alone=RunFailed):
            if isinstance(self._data, ShardSamples):
                ends = even_ends(self.samples, -(-self.samples // 64))
                total = sum(
                    map(float, map_in_processes(partial(_terms, count, self._data, most), list(pairwise(ends))))
                )
            else:
                total = sum(counted(count, part.batch) for part in self._data.parts(0, self.samples, most=most))
        if not total:
            raise BadInput("count finds no term in the whole data set: there is nothing to learn from")
        self._network.scale = self.samples / total

    def _count_targets(self, ignored: int) -> None:
        """Turn the mean over targets that are not ignored into the sum divided by their number in the data set."""
        if not self._data.in_memory:
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
        network.mean, network.scale = False, self.samples / count

    def _check_held_out(self, data: Samples, *, own_metrics: bool) -> None:
        """Refuse a metric that does not suit the module's outputs, before a run and not after it."""
        import torch

        network, some = copy.deepcopy(self._network), min(_TRIED, len(data))
        network.module.eval()
        try:
            batch = data.batch(slice(0, some))
            with torch.no_grad():
                if network.takes_module:
                    network.loss_of(batch)
                    return
                outputs = network.outputs(batch)
        except BadInput:
            raise
        except RunFailed as error:
            raise BadInput(f"held_out: {error}") from None
        except Exception as error:
            raise BadInput(f"the module fails on held_out: {describe_error(error)}") from None
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
        """Divide the samples into partitions; raise :class:`~anyk.errors.BadInput` if there are fewer."""
        ends, data = cut(self.samples, partitions, shares), self._data
        if self.uneven is not None and isinstance(data, Arrays) and (labels := labels_of(data)) is not None:
            data = data.select_rows(self.uneven.order(labels, ends))
        return TorchPartitions(self._network, data, ends, self._microbatch)

    def initial(self) -> Vector:
        """Return the parameters of the given module, as one vector."""
        import torch

        return torch.cat([parameter.detach().reshape(-1) for parameter in trained(self._network.module)]).numpy()

    def loss(self, w: Vector) -> float:
        """Return the objective at ``w``, in evaluation mode: without dropout, with running statistics."""
        import torch

        if self.endless:
            raise BadInput(NO_LOSS)
        network, device = self._at(w)
        total = 0.0
        with torch.no_grad():
            for batch, size in self._batches(self._data.evaluated, device):
                if times := network.times(batch, size):
                    total += float(network.loss_of(batch)) * times
        return total / self.samples + 0.5 * self.l2 * float(w @ w)

    def metrics(self, w: Vector) -> dict[str, float]:
        import torch

        if self._held_out is None:
            return {}
        network, device = self._at(w)
        with torch.no_grad():
            return compute_metrics(network, self._metrics, self._batches(self._held_out, device))

    def module_at(self, w: Vector) -> torch.nn.Module:
        """Return a module with parameters ``w`` (length d) and matching running statistics, in evaluation mode."""
        return copy.deepcopy(self._at(w, whole=True)[0].module).cpu()

    def write_model(self, w: Vector, file: Path) -> None:
        """Write the module at ``w`` as safetensors, with the names of its ``state_dict()``, as runs do.

        If a data set is read item by item, running statistics are computed from 1,024 of its items.
        """
        from safetensors.torch import save_model

        module = self._at(w)[0].module
        write_model_file(file, lambda name, metadata: save_model(module, name, metadata={"format": "pt"} | metadata))

    def load_state_dict(self, source: Any) -> None:
        """Begin with the state of a run, its folder, a safetensors file or a module's ``state_dict()``.

        Raises :class:`~anyk.errors.BadInput` if it is not a state of the problem's module.
        """
        w = getattr(source, "model", None)
        if w is None:
            module = load_copy(self._network.module, source)
        elif np.shape(w) == (self.dimension,):
            module = copy.deepcopy(self._at(np.asarray(w))[0].module).cpu()
        else:
            raise BadInput(f"the run's model has {np.size(w):,} parameters, the problem's module {self.dimension:,}")
        self._network = copy.copy(self._network)
        self._network.module, self._last = module, None

    def places_of(self, parameters: Sequence[torch.Tensor]) -> list[int | None]:
        """Return the places of the given module's parameters in the model, None for frozen ones; raise for others."""
        frozen = {
            id(p)
            for p, own in zip(self._given, self._network.module.parameters(), strict=True)
            if not own.requires_grad
        }
        places: dict[int, int | None] = dict.fromkeys(frozen)
        places |= {id(p): place for place, p in enumerate(p for p in self._given if id(p) not in frozen)}
        for parameter in parameters:
            if id(parameter) not in places:
                raise BadInput(
                    f"the optimiser has a parameter of shape {tuple(parameter.shape)} that is none of the problem's "
                    "module; make both of the same module"
                )
        return [places[id(parameter)] for parameter in parameters]

    def digest(self) -> str | None:
        """Return a digest of the data; for a data set that is read item by item, of the arrays in it."""
        both = (self._data, self._held_out)
        parts = [None if data is None else data.arrays if data.in_memory else data.mark for data in both]
        return digest_of(*parts, *(() if self.uneven is None else self.uneven.digest_arrays))

    def _at(self, w: Vector, *, whole: bool = False) -> tuple[Network, torch.device]:
        """Return the network at ``w``, ready to evaluate, and its device; the last is cached for loss and metrics.

        ``whole``: compute running statistics from all training data, even if it is read item by item.
        """
        import torch

        self._check_model(w)
        data = self._data
        if norms_of(self._network.module) and (data.endless or not (whole or data.in_memory)):
            data = data.some(_RENEWED, "statistics")
        data = data.head
        last, self._last = self._last, None
        if last is not None and is_at(last[0].module, w) and last[2] == len(data):
            self._last = last
            return last[:2]
        del last
        flat = tensor_over(np.ascontiguousarray(w, dtype=self.dtype))
        arrays = {}
        for parameter, piece in zip(trained(self._network.module), pieces_of(flat, self.shapes), strict=True):
            arrays[id(parameter)] = torch.nn.Parameter(piece.clone())  # views of one tensor cannot be saved one by one
        network = copy.deepcopy(self._network, arrays)  # without copies of the old parameters
        if network.device.startswith("cuda") and not torch.cuda.is_available():
            network.device = "cpu"  # the driver's machine need not have what workers have
        device = network.move()
        self._renew_statistics(network, device, data)
        network.module.eval()
        self._last = network, device, len(data)
        return network, device

    def _renew_statistics(self, network: Network, device: torch.device, data: Samples) -> None:
        """Compute running means and variances over some data, as ``update_bn`` does."""
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
            for batch, _ in self._batches(data, device):
                network.forward(batch)
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum

    def _batches(self, data: Samples, device: torch.device) -> Iterator[tuple[Batch, int]]:
        for part in data.parts(0, len(data), most=self._microbatch or AT_ONCE):
            yield mapped(part.batch, lambda tensor: tensor.to(device)), part.size


def _terms(count: Callable[[Any], Any], data: Samples, most: int, run: tuple[int, int]) -> bytes:
    """Return the number of terms that ``count`` returns for a run of samples, as text."""
    return str(sum(counted(count, part.batch) for part in data.parts(*run, most=most))).encode()
