"""PyTorch modules: any module, any loss.

The model consists of parameters alone. A partial gradient is computed from the module's initial buffers, and the
forward pass's changes to them are dropped: replies must not depend on a worker's earlier tasks. The running statistics
of batch norm, needed to evaluate, are computed anew from the training data; other state that depends on earlier forward
passes is refused (:func:`~anyk.problems.torch.module_checks.check_forward`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from anyk.base.arrays import DType, Vector, lacks_gradient
from anyk.base.errors import BadInput, RunFailed, as_bad_input, describe_error, explaining
from anyk.base.made_with import MadeWith
from anyk.problems.base import NO_HELD_OUT, Better, Index, cut, even_ends
from anyk.problems.data.dataset import Dirichlet, build_split
from anyk.problems.data.reader_processes import map_in_processes
from anyk.problems.data.sample_batches import Arrays, Batch, SampleBatch, Samples
from anyk.problems.data.shards.shard_samples import ShardSamples
from anyk.problems.digests import digest_of
from anyk.problems.generators import seeded_generators
from anyk.problems.given import ANEW
from anyk.problems.linear.scaling import checked_l2
from anyk.problems.model_files import load_copy, write_model_file
from anyk.problems.network_problem import NetworkProblem, check_metrics
from anyk.problems.replicas import ROWS, TOGETHER, trial_groups
from anyk.problems.surroundings import Variables, is_read, variables_of
from anyk.problems.torch.given_module import GivenModule
from anyk.problems.torch.hooks import call_hooks, has_hooks
from anyk.problems.torch.loaders import is_loader, read_loader
from anyk.problems.torch.metrics import Metric, Metrics, check_on_trial, compute_metrics, default_metrics
from anyk.problems.torch.module_checks import (
    check_forward,
    check_loss,
    check_mixing,
    check_module,
    check_options,
    check_samples,
    check_weighted,
    has_entries,
    ignored_target,
    is_mean,
    takes_module,
)
from anyk.problems.torch.module_partitions import (
    DEFAULT_MICROBATCH,
    DeviceSamples,
    TorchPartitions,
    dtype_of,
    has_parameters,
    modes_of,
    pieces_of,
    preserved_buffers,
    use_leaves,
)
from anyk.problems.torch.network import (
    LARGE,
    Network,
    count_terms,
    kept_tensors,
    loss_sum,
    map_tensors,
    parts_of,
    tensors_in,
    trainable_parameters,
)
from anyk.problems.torch.tensor_samples import (
    CannotCombine,
    ItemReading,
    Items,
    finite_samples_of,
    labels_of,
    samples_of,
    tensor_over,
)
from anyk.problems.torch.waiting_parameters import WaitingParameters
from anyk.problems.values import Leaves, Values
from anyk.problems.watch import DATA, DATA_SET, CodeWatch, Computing, rounding

if TYPE_CHECKING:
    import torch

_STATISTICS_ITEMS = 1024  # number of items for running statistics, if a data set is read item by item
_TRIED = 2  # samples on which module and loss are tried; batch norm needs two
_IN_EVALUATION = (
    "the module was in evaluation mode as a whole, and is trained in training mode (dropout, statistics of the batch); "
    "parts that are to stay in evaluation mode are set to it after module.train()"
)
_IRREPEATABLE = (
    "module and loss give another gradient of the same samples each time, as by a random generator of their own or a "
    "value that each pass changes: each worker goes on from its own copy of it, workers cannot be compared, and a "
    "replay cannot repeat the run"
)
_WEIGHED = 3  # samples whose losses are computed one by one and from outputs together


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
      ``IterableDataset``: samples without an end. Or a map-style ``DataLoader`` of torch, whose data set, batch size,
      ``collate_fn`` and ``num_workers`` are used, and whose sampler is replaced by anyk's own draws; loaders whose
      meaning is unknown are refused.
    - ``held_out``: held-out samples in the same forms, except streams.
    - ``weights``: weights of the samples of arrays or a map-style data set, at least 0. The objective is then the
      weighted mean, ``sum w_i loss_i / sum w_i + (l2/2) |w|^2``, under every code. ``sampling="weights"`` draws the
      samples of mini-batches with replacement, in proportion to their weights, for the same objective; by default a
      sample's gradient is multiplied by its weight. ``held_out_weights``: the same for held-out samples, by which
      default metrics are weighted; functions of the user get them as ``weights``.
    - ``device``: where workers compute (``"cuda"`` spreads them over the machine's devices), and where the driver
      evaluates if its machine has such a device. ``precision="bf16"`` runs module and loss under ``torch.autocast``.
    - ``microbatch``: the largest number of samples computed together, if more do not fit into memory; gradients are
      accumulated and sent once. With shards the default is 512. ``threads``: the number of threads with which each
      worker computes gradients, on all clusters; the last digits depend on it, so that it is part of the problem.
      ``num_workers``: processes that each worker starts to read the items of a map-style data set, as torch's
      ``DataLoader`` does; results do not depend on it.
    - ``transform``: a function of an item of a data set, or of a stream's sample, that returns the sample to train on,
      such as an augmentation; ``eval_transform`` returns the sample to evaluate, also for held-out items. By default
      items are used unchanged. Running statistics are computed from training samples.
    - ``metrics``: functions of (outputs, targets) for all held-out samples, by name, or objects with ``update(outputs,
      targets)`` and ``compute()``, as torchmetrics has them, which receive batch after batch. The first one is the
      run's metric, and ``better`` specifies whether higher or lower is better (default: what the object states in
      ``higher_is_better``, else higher). With ``loss(module, batch)`` they are functions of (module, batch), averaged
      over the samples (or the terms that ``count`` returns). Default: what a loss of ``torch.nn`` determines:
      ``accuracy`` over the targets that count, for ``CrossEntropyLoss`` and ``NLLLoss`` with class numbers, and for
      ``BCEWithLogitsLoss`` and ``BCELoss`` with targets of 0 and 1; ``mse`` for ``MSELoss``. For any other loss it is
      ``held_out_loss``, the loss of the held-out samples.
    - ``values``: numbers and arrays by name that change during a run, such as the weight of a term of the loss. A
      function of the step is a schedule; a loop (:func:`anyk.rounds`) sets others (``step.values["beta"] = 0.1``). They
      travel to the workers with each version of the model. Loss and module receive those that they have a parameter
      for, ``loss(outputs, targets, beta)``, or all of them in a parameter called ``values``.
    - ``split``: how samples are spread over partitions by their labels (:class:`~anyk.problems.Dirichlet` or its spec),
      by default in their order; for arrays whose targets are one integer each.

    Workers compute in training mode from the module's initial buffers, and drop the changes of a forward pass: batch
    norm normalises with the current batch; other state that a forward pass changes is refused by name. For evaluation,
    running statistics are computed anew over the training data, as ``torch.optim.swa_utils.update_bn`` does; if it is
    read item by item, over 1,024 of its items (by :meth:`module_at`, over all). The loss of such a data set is not
    evaluated unless :class:`anyk.Evaluate` asks for it. Random layers are seeded by the model's version, the partition
    and the rows, so that replicas agree; random numbers of a data set's items, from the global generators of torch,
    NumPy and Python, are seeded by the version and the item. If several workers compute a partition, their gradients
    are compared, at the start and from time to time.

    Raises :class:`~anyk.BadInput` for problems that cannot be trained: module and loss are first tried on up to
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

    marks_unused = True
    module: MadeWith[torch.nn.Module] = MadeWith()
    shapes: list[tuple[int, ...]]
    _last: tuple[Network, int] | None = None  # last network, and samples of its statistics

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
        weights: Any = None,
        held_out_weights: Any = None,
        sampling: Literal["uniform", "weights"] = "uniform",
        values: Mapping[str, Any] | None = None,
    ) -> None:
        device = str(device)  # it may be a torch.device
        sampler, given_data = None, dataset
        if is_loader(dataset):
            given_data = dataset.dataset
            loaded = read_loader(dataset, "the data set")
            dataset, self.step_samples, self.data_remarks = loaded.data, loaded.batch, (loaded.remark,)
            num_workers = num_workers or loaded.processes
            collate_fn = _only_one(loaded.collate, collate_fn, "collate_fn")
            sampler = loaded.sampler
            if loaded.weights is not None:
                weights, sampling = _only_one(loaded.weights, weights, "weights"), "weights"
        functions = {"collate_fn": collate_fn, "transform": transform, "eval_transform": eval_transform, "count": count}
        check_options(device, precision, microbatch, threads, num_workers, better, functions)
        takes, mean = takes_module(loss), is_mean(loss, reduction)
        check_module(module)
        if not module.training:
            self.data_remarks = (*self.data_remarks, _IN_EVALUATION)
        with as_bad_input("the module cannot be copied", Exception):
            twin = copy.deepcopy(module).cpu()
            twin.zero_grad(set_to_none=True)
        self._network = Network(
            twin, loss, device=device, precision=precision, mean=mean, takes_module=takes, count=count, threads=threads
        )
        self._network.keep_modes()
        self.moving_norms = self._network.norms
        self.changing_values: Values = Values(values or {}, Values.plain(kept_tensors(twin, self.moving_norms)))
        self._network.take_values(self.changing_values.names)
        self._network.set_values(self.changing_values.build(self.changing_values.initial))
        parameters = trainable_parameters(twin)
        self.dtype = dtype_of(parameters)
        self.module, self._given = module, GivenModule(module, loss, self._network)
        self.shapes = [tuple(parameter.shape) for parameter in parameters]
        self.dimension = sum(parameter.numel() for parameter in parameters)
        self._waiting = WaitingParameters(parameters)
        self.l2 = checked_l2(l2)
        # a sum, or a mean over terms that are counted, is right for any number of samples
        reading = ItemReading(collate_fn, takes, transform, eval_transform, as_many=mean and count is None)
        data = samples_of(dataset, "the data set", self.dtype, reading)
        no_labels = "the targets are not an array of one integer for each sample"
        self.uneven = build_split(split, None if labels_of(data) is not None else no_labels)
        held_out_samples, held_out_given = None, getattr(held_out, "dataset", held_out)
        if held_out is not None:
            held_out_samples = _held_out_samples(held_out, self.dtype, reading.evaluated, data)
        elif eval_transform is not None and not isinstance(data.head, Items):
            reading.evaluated.refuse_arrays("the data set", "arrays or shards")
        self._set_samples(data, held_out_samples)
        self._set_weights(weights, held_out_weights, sampling)
        self._drawn = {"weights": weights, "sampler": sampler}  # what the user may change, by its name
        self._note_given(given_data, held_out_given, weights, held_out_weights)
        if sampler is not None:
            self._given_arrays.add(f"{DATA}'s sampler", list(vars(sampler).values()), ())
        if self._weighted:
            with explaining("the first samples cannot be read", alone=RunFailed):
                check_weighted(self._network, data.head.batch, min(_WEIGHED, len(data.head)))
        _set_processes(data, num_workers, from_loader=bool(self.step_samples))
        # a partition of shards need not fit into memory
        self._microbatch = microbatch or (DEFAULT_MICROBATCH if isinstance(data, ShardSamples) else None)
        self._set_terms(count, ignored_target(loss) if mean else None)
        self._try_gradient()
        self._set_metrics(metrics, better)
        self._waiting.rest()

    def _set_metrics(self, metrics: Mapping[str, Metric] | None, better: Better | None) -> None:
        """Set the metrics to report: the user's, or those that the loss determines; try them on held-out samples."""
        self._metrics = self._default_metrics() if metrics is None else check_metrics(metrics)
        self.metric = next(iter(self._metrics))
        self._set_better(better, self._metrics[self.metric], own=metrics is not None)
        if self._held_out is not None:
            self._check_held_out(self._held_out)
        elif metrics is not None:
            raise BadInput(NO_HELD_OUT)

    def _default_metrics(self) -> Metrics:
        """Return the metric that the loss determines."""
        data = (self._data if self._held_out is None else self._held_out).head
        if self._network.takes_module:
            return default_metrics(self._network, None)
        with explaining("held_out cannot be read", alone=RunFailed):
            rows = slice(0, len(data) if data.in_memory else min(_TRIED, len(data)))
            return default_metrics(self._network, data.batch(rows)[-1])

    def _try_gradient(self) -> None:
        """Compute a gradient on a copy of a few samples, and check module and loss."""
        import torch

        head = self._data.head
        size = min(_TRIED, len(head))
        # RunFailed: an item that cannot be read
        with explaining(f"module and loss fail on the first {size} samples", alone=RunFailed):
            network = copy.copy(self._network)
            network.device = "cpu"
            batch = map_tensors(head.batch(slice(0, size)), lambda tensor: tensor.clone())
            partitions = TorchPartitions(network, DeviceSamples(batch, size), cut(size, 1))
            w = self.initial()
            gradient = partitions.partial_gradient(0, w)
            second = partitions.partial_gradient(0, w)
            del w
            nearly = 1e-3 * float(max(np.nanmax(gradient, initial=0.0), -np.nanmin(gradient, initial=0.0)))
            pieces = range(0, gradient.size, LARGE)  # whose comparison takes less memory
            if not all(
                np.allclose(gradient[i : i + LARGE], second[i : i + LARGE], rtol=1e-3, atol=nearly, equal_nan=True)
                for i in pieces
            ):
                self.data_remarks = (*self.data_remarks, _IRREPEATABLE)
            del second
            ends = np.cumsum([prod(shape) for shape in self.shapes])[:-1]
            without = [lacks_gradient(piece) for piece in np.split(gradient, ends)]
            self.unused_parameters = frozenset(np.flatnonzero(without).tolist())
            del gradient
            with preserved_buffers(partitions._network.module), seeded_generators(0, torch.device("cpu")):
                partitions._network.find_differentiation(batch)
            found = partitions._network
            self._network.differentiates, self._network.backward = found.differentiates, found.backward
        check_forward(self._network, [batch, *self._second_batch(batch, size)])
        self._try_loss(partitions._network)

    def _second_batch(self, batch: Batch, size: int) -> list[Batch]:
        """Return a list with the next batch of ``size`` samples; empty if it does not have the same shapes."""
        if self._data.head.tried < 2 * size:
            return []
        try:
            second = self._data.head.batch(slice(size, 2 * size))
        except Exception:  # the run will report this
            return []
        shapes = [[tensor.shape for tensor in tensors_in(one_batch)] for one_batch in (batch, second)]
        return [second] if shapes[0] == shapes[1] else []

    def _try_loss(self, network: Network) -> None:
        """Refuse a loss of several samples that is not the mean, or the sum, of their losses."""
        import torch

        head = self._data.head
        targets = head.arrays if network.takes_module else head.arrays[-1:]
        for rows in trial_groups(targets, head.tried, self._microbatch or TOGETHER):
            samples = f"samples {', '.join(map(str, rows))}"

            def batch_of(places: Index, rows: Index = rows) -> Batch:
                return head.batch(rows[places])

            try:
                with (
                    seeded_generators(0, torch.device("cpu")),
                    preserved_buffers(network.module),
                    network.without_gradient(),
                ):
                    if not network.opaque:
                        batch = head.batch(rows)
                        network.loss_factor(batch, len(rows))
                        outputs = network.outputs(batch)
                        network.loss_at(outputs, batch[-1])
                        if has_entries(outputs, len(rows)):
                            check_loss(network, outputs, batch[-1], samples)
                            check_mixing(network, batch_of, len(rows), samples)
                            continue
                    check_samples(network, batch_of, len(rows), samples)
            except BadInput:
                raise
            except CannotCombine:
                continue
            except RunFailed as error:
                raise BadInput(str(error)) from None
            except Exception:  # samples may not fit into one batch; the run will report other errors
                continue

    def _set_terms(self, count: Callable[[Any], Any] | None, ignored: int | None) -> None:
        """Find out over what the loss is a mean: terms that ``count`` counts, or targets other than ``ignored``."""
        if count is not None:
            self._count_terms(count)
        elif ignored is not None:
            self._count_targets(ignored)

    def _count_terms(self, count: Callable[[Any], Any]) -> None:
        """Make the loss a mean over the terms of the whole data set, which are counted in one pass over it."""
        if self.endless:
            raise BadInput("count needs all training data, and a stream has no end; omit count")
        most = self._most_of(self._data)
        with explaining("count fails on the data set", alone=RunFailed):
            count_range = partial(_count_range, count, self._data, most)
            if isinstance(self._data, ShardSamples):
                ends = even_ends(self.samples, -(-self.samples // 64))
                counts = map_in_processes(count_range, list(pairwise(ends)))
            else:
                counts = [count_range((0, self.samples))]
            total = sum(map(float, counts))
        if not total:
            raise BadInput("count finds no term in the whole data set: there is nothing to learn from")
        self._network.scale = self.samples / total

    def _count_targets(self, ignored: int) -> None:
        """Turn the mean over targets that are not ignored into the sum divided by their number in the data set."""
        self._network.ignored = ignored
        if not self._data.in_memory:
            self._network.unknown = ignored
            return
        targets, weights = self._data.arrays[-1], self._data.weights
        count = int(np.count_nonzero(targets != ignored))
        if targets.dtype.kind == "f" or count == targets.size:
            return
        if not count:
            raise BadInput(f"the loss ignores every target: all are {ignored} (ignore_index)")
        network = self._network
        network.loss = copy.copy(network.loss)
        network.loss.reduction = "sum"
        network.mean, network.scale = False, self.samples / count
        if weights is not None:
            total = float(weights @ np.count_nonzero((targets != ignored).reshape(len(targets), -1), axis=1))
            if not total:
                raise BadInput(f"all targets of samples with a weight above 0 are {ignored}, which the loss ignores")
            network.scale = self.samples / total

    def _check_held_out(self, data: Samples) -> None:
        """Refuse a metric that does not suit the module's outputs, before the run instead of after it."""

        network = copy.deepcopy(self._network)
        network.module.eval()
        size = min(1 if network.alone else _TRIED, len(data))
        try:
            rows = slice(0, size)
            with network.without_gradient():
                check_on_trial(network, self._metrics, data.batch(rows), size, data.weights_of(rows))
        except BadInput:
            raise
        except RunFailed as error:
            raise BadInput(f"held_out: {error}") from None
        except Exception as error:
            raise BadInput(f"the module fails on held_out: {describe_error(error)}") from None

    def split(self, partitions: int, shares: Sequence[int] | None = None) -> TorchPartitions:
        """Divide the samples into partitions; raise :class:`~anyk.BadInput` if there are fewer."""
        ends, data = cut(self.samples, partitions, shares), self._data
        if self.uneven is not None and isinstance(data, Arrays) and (labels := labels_of(data)) is not None:
            data = data.select_rows(self.uneven.order(labels, ends))
        alone = data.weights is not None and self._network.alone
        most = 1 if alone else self._microbatch
        parts = TorchPartitions(self._network, data, ends, most, self.changing_values)
        parts.by_weight = self.by_weight
        self._waiting.rest()
        return parts

    def with_values(self, leaves: Leaves) -> TorchProblem:
        """Return the problem with other values, with which it is evaluated."""
        changed = [a is not b for a, b in zip(self.changing_values.initial.arrays, leaves.arrays, strict=True)]
        other = copy.copy(self)
        other._network, other._last = copy.copy(self._network), None
        places = [index for index, differs in enumerate(changed) if differs]
        if any(self.changing_values.array_name(index) in self.changing_values.kept for index in places):
            other._network = copy.deepcopy(self._network)
        use_leaves(other._network, self.changing_values, leaves, places)
        return other

    def watch_code(self) -> CodeWatch:
        """Return an object that notices if the given module, loss or data set compute something else than now."""
        data = self._data
        roots: dict[str, Any] = {"the loss": self._given.loss, "count": self._network.count, DATA: data.arrays}
        roots |= data.code
        roots |= {f"{DATA}'s {name}": value for name, value in self._drawn.items() if value is not None}
        items = data.mark if isinstance(data, Items) else ()

        def variables(*, arrays: bool = True) -> Variables:
            objects = {**roots, "the module": self.module, f"{DATA}'s length": len(items)}
            return variables_of(objects, arrays=arrays) | modes_of(self.module)

        sketch = partial(self._given.sketch, self._network, self.split(1))
        return CodeWatch(Computing(variables, sketch), self._rounding(), is_read=self._is_read)

    def _is_read(self, name: str) -> bool:
        """Return whether the loss may depend on a variable of the data, by the variable's name."""
        data = self._data
        if isinstance(data, Items):
            functions = [function for root, function in data.code.items() if root != DATA_SET]
            return is_read(data.mark, name, [*functions, self._given.loss])
        number = name.removeprefix(f"{DATA}[").removesuffix("]")
        if not (isinstance(data, Arrays) and number.isdigit()):
            return True
        array, rows = data.arrays[int(number)], np.arange(min(ROWS, len(data)))
        elsewhere = np.flatnonzero((array != array[:1]).reshape(len(array), -1).any(axis=1))
        if not elsewhere.size:
            return True
        some, changed = data.select_rows(rows), data.select_rows(rows)
        arrays = list(changed.arrays)
        arrays[int(number)] = array[np.resize(elsewhere, len(rows))]
        changed.arrays = arrays
        try:
            one, other = (
                self._given.sketch(self._network, TorchPartitions(self._network, samples, cut(len(rows), 1)), ROWS)
                for samples in (some, changed)
            )
        except Exception:  # such as a target that is out of range for its sample
            return True
        return not np.array_equal(one, other)

    def _rounding(self) -> float:
        """Return the relative difference that rounding may cause between two gradients in this process."""
        if self._given.device.type == "cpu" and self._network.precision is None:
            return rounding(self.dtype)
        return self.split(1).rounding()

    def check_unchanged(self, *, begins: bool) -> list[str]:
        """Refuse a module or data that have changed since the problem was made; return a sentence on other numbers.

        ``begins``: whether the run begins with the problem's initial parameters.
        """
        self._given_arrays.check()
        self._given.check_parts(self._network)
        if not self.endless and (length := len(self._data)) != self.samples:
            raise BadInput(
                f"the data set had {self.samples:,} samples when the problem was made and has {length:,} now; {ANEW}"
            )
        return self._given.check_unchanged(self._network, self.split(1), self._rounding(), begins=begins)

    def initial(self) -> Vector:
        """Return the parameters of the given module, as one vector."""
        import torch

        w: Vector = torch.cat(
            [parameter.detach().reshape(-1) for parameter in trainable_parameters(self._network.module)]
        ).numpy()
        self._waiting.rest()
        return w

    def _mean_loss(self, w: Vector) -> float:
        return loss_sum(self._network_at(w, lasting=False), self._parts(self._data.evaluated)) / self.samples

    def metrics(self, w: Vector) -> dict[str, float]:
        if self._held_out is None:
            return {}
        network = self._network_at(w, lasting=False)
        with network.without_gradient():
            return compute_metrics(network, self._metrics, self._parts(self._held_out))

    def module_at(self, w: Vector) -> torch.nn.Module:
        """Return a module with parameters ``w`` (length d) and matching running statistics, in evaluation mode."""
        return copy.deepcopy(self._network_at(w, all_items=True).module).cpu()

    def write_model(self, w: Vector, file: Path) -> None:
        """Write the module at ``w`` as safetensors, with the names of its ``state_dict()``, as runs do.

        If a data set is read item by item, running statistics are computed from 1,024 of its items.
        """
        from safetensors.torch import save_model

        module = self._network_at(w).module
        write_model_file(file, lambda name, metadata: save_model(module, name, metadata={"format": "pt"} | metadata))

    def load_state_dict(self, source: Any) -> None:
        """Start from the state of a run, its folder, a safetensors file or a module's ``state_dict()``.

        Raises :class:`~anyk.BadInput` if it is not a state of the problem's module.
        """
        folder = getattr(source, "path", None)
        if self.changing_values.kept and folder is not None:
            source = folder  # it has the run's buffers and frozen parameters as well
        w = getattr(source, "model", None)
        if w is None:
            module = load_copy(self._network.module, source)
        elif np.shape(w) == (self.dimension,):
            module = copy.deepcopy(self._network_at(np.asarray(w)).module).cpu()
        else:
            raise BadInput(f"the run's model has {np.size(w):,} parameters, the problem's module {self.dimension:,}")
        self._network = copy.copy(self._network)
        self._network.module, self._last = module, None
        self.changing_values = self.changing_values.with_kept(Values.plain(kept_tensors(module, self.moving_norms)))
        self._waiting = WaitingParameters(trainable_parameters(module))

    def places_of(self, parameters: Sequence[torch.Tensor]) -> list[int | None]:
        """Return each parameter's index among the trainable parameters, None if frozen; raise for another module's."""
        places: dict[int, int | None] = dict.fromkeys(map(id, self._given.parameters))
        places |= {id(parameter): number for number, parameter in enumerate(self._given.trained(self._network))}
        for parameter in parameters:
            if id(parameter) not in places:
                raise BadInput(
                    f"the optimiser has a parameter of shape {tuple(parameter.shape)} that is not in the problem's "
                    "module; make optimiser and problem from the same module"
                )
        return [places[id(parameter)] for parameter in parameters]

    @property
    def hooked_parameters(self) -> Sequence[str]:  # type: ignore[override]  # it follows the module, whose hooks may change
        """The names of the given module's trainable parameters that have hooks."""
        trained = set(map(id, self._given.trained(self._network)))
        named = self.module.named_parameters()
        return [name for name, parameter in named if id(parameter) in trained and has_hooks(parameter)]

    def through_hooks(self, w: Vector, gradient: Vector) -> Vector:
        """Return what the hooks of the given module's parameters make of a step's gradient at ``w``."""
        with explaining("a hook of a parameter fails", alone=RunFailed):
            return call_hooks(self._given.trained(self._network), w, gradient)

    def digest(self) -> str | None:
        """Return a digest of the data; for a data set that is read item by item, of the arrays in it."""
        data_sets = (self._data, self._held_out)
        parts = [None if data is None else data.arrays if data.in_memory else data.mark for data in data_sets]
        return digest_of(*parts, *(() if self.uneven is None else self.uneven.digest_arrays), *self._weights())

    def _network_at(self, w: Vector, *, all_items: bool = False, lasting: bool = True) -> Network:
        """Return the network at ``w``, ready to evaluate; the last network is cached.

        ``all_items``: compute running statistics from all training data, even if it is read item by item. ``lasting``:
        whether it must not change with ``w``; otherwise a large one has its parameters in the same memory.
        """
        import torch

        self._check_model(w)
        data = self._data
        if self.moving_norms and (data.endless or not (all_items or data.in_memory)):
            data = data.some(_STATISTICS_ITEMS, "statistics")
        data = data.head
        last, self._last = self._last, None
        if last is not None and has_parameters(last[0].module, w) and last[1] == len(data):
            self._last = last
            return last[0]
        del last  # frees memory before the next network is built
        in_w = not (lasting or self.moving_norms) and self.dimension >= LARGE
        flat = tensor_over(np.ascontiguousarray(w, dtype=self.dtype))
        replacements = {}
        for parameter, piece in zip(
            trainable_parameters(self._network.module), pieces_of(flat, self.shapes), strict=True
        ):
            own = piece if in_w else piece.clone()  # views of a tensor cannot be saved singly
            replacements[id(parameter)] = torch.nn.Parameter(own)
        network = copy.deepcopy(self._network, replacements)  # without copies of the old parameters
        if network.device.startswith("cuda") and not torch.cuda.is_available():
            network.device = "cpu"  # the driver's machine may lack the workers' device
        network.move()
        self._renew_statistics(network, data)
        network.module.eval()
        self._last = None if in_w else (network, len(data))
        return network

    def _renew_statistics(self, network: Network, data: Samples) -> None:
        """Compute running means and variances over some data, as ``update_bn`` does."""

        norms = parts_of(network.module, network.norms)
        if not norms:
            return
        momenta = [norm.momentum for norm in norms]
        statistics = [[buffer.clone() for buffer in norm.buffers(recurse=False)] for norm in norms]
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # the plain mean over all batches
        network.train()
        forward = network.loss_of if network.takes_module else network.outputs
        with network.without_gradient(), seeded_generators(0, network.move()):
            for sample_batch in self._parts(data):
                forward(network.on_device(sample_batch.batch))
        for norm, momentum, initial in zip(norms, momenta, statistics, strict=True):
            norm.momentum = momentum
            if not int(norm.num_batches_tracked):  # the forward pass does not use it, or sets it to evaluation mode
                for buffer, value in zip(norm.buffers(recurse=False), initial, strict=True):
                    buffer.copy_(value)

    def _parts(self, data: Samples) -> Iterator[SampleBatch]:
        return data.parts(0, len(data), most=self._most_of(data))

    def _most_of(self, data: Samples) -> int:
        """Return the largest number of samples that are computed together."""
        alone = data.weights is not None and self._network.alone
        return 1 if alone else self._microbatch or DEFAULT_MICROBATCH


def _held_out_samples(held_out: Any, dtype: DType, reading: ItemReading, training: Samples) -> Samples:
    """Return a user's held-out data, perhaps in a loader, as samples."""
    if is_loader(held_out):
        loaded = read_loader(held_out, "held_out")
        if loaded.weights is not None:
            raise BadInput(
                "held_out is a DataLoader with a WeightedRandomSampler, and held-out samples are evaluated "
                "once each; leave the sampler out, and give held_out_weights if they count differently"
            )
        held_out, reading = loaded.data, reading._replace(collate=loaded.collate)
    return finite_samples_of(held_out, "held_out", dtype, reading, training)


def _set_processes(data: Samples, processes: int, *, from_loader: bool) -> None:
    """Have items read by further processes; raise BadInput for data without items, unless a loader has the number."""
    if isinstance(data, Items):
        data.processes = processes
    elif processes and not from_loader:
        raise BadInput("num_workers is for map-style data sets, which this is not; omit it")


def _only_one(loaded: Any, argument: Any, name: str) -> Any:
    """Return what a loader has or else what was given; raise :class:`~anyk.BadInput` if there are both."""
    if loaded is not None and argument is not None:
        raise BadInput(f"the DataLoader has {name} of its own; leave one of them out")
    return argument if loaded is None else loaded


def _count_range(count: Callable[[Any], Any], data: Samples, most: int, ends: tuple[int, int]) -> bytes:
    """Return the number of terms in consecutive samples, from the first of ``ends`` up to the second, as text."""
    total = 0.0
    for sample_batch in data.parts(*ends, most=most):
        total += count_terms(count, sample_batch.batch) * (
            1.0 if sample_batch.weights is None else float(sample_batch.weights[0])
        )
    return str(total).encode()
