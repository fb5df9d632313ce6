"""Metrics of a PyTorch problem on held-out samples: those that its loss determines, and those of the user."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any

from anyk.base.arrays import Floats
from anyk.base.errors import BadInput
from anyk.problems.data.sample_batches import Batch, SampleBatch
from anyk.problems.network_problem import HELD_OUT_LOSS, Collected, fresh, is_collected, metric_number, with_weights
from anyk.problems.torch.network import Network, map_tensors

if TYPE_CHECKING:
    import torch

Metric = Callable[..., Any] | Collected
Metrics = Mapping[str, "Metric | PerTarget | None"]  # None: the problem's own loss
_OWN = "give metrics={'name': function} for another metric"


@dataclass(frozen=True)
class PerTarget:
    """A mean over the targets of values that outputs and targets determine.

    ``values(outputs, targets)`` returns a value for each target, and which of the targets count (None: all); each has
    the samples as its first axis.
    """

    values: Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor | None]]


@dataclass(frozen=True)
class _RightClass:
    """Whether the largest output is that of the target; classes are the second axis, as in torch's losses.

    Targets that do not count in the loss do not count here: ``ignored`` ones, and those of classes with weight 0.
    """

    ignored: int
    weight: torch.Tensor | None

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        counts = targets != self.ignored
        if self.weight is not None:
            counts = counts & (self.weight.cpu() != 0)[targets.where(counts, 0)]
        return outputs.argmax(dim=1) == targets, counts


@dataclass(frozen=True)
class _RightSide:
    """Whether an output is above the threshold exactly where its target is 1; ``weight`` as in the loss."""

    threshold: float
    weight: torch.Tensor | None

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        import torch

        if not _are_bits(targets):
            raise BadInput(f"accuracy is for targets of 0 and 1, and some held-out targets are others; {_OWN}")
        right = (outputs > self.threshold) == (targets == 1)
        return right, None if self.weight is None else torch.broadcast_to(self.weight.cpu() != 0, right.shape)


def _squared_error(outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, None]:
    return (outputs.double() - targets.double()) ** 2, None


def _are_bits(targets: torch.Tensor) -> bool:
    return bool(((targets == 0) | (targets == 1)).all())


def default_metrics(network: Network, targets: Any) -> Metrics:
    """Return the metric that a loss determines, by name, else the loss of the held-out samples.

    ``targets``: held-out targets, all of them if they are in memory. Losses of ``torch.nn`` determine a metric, also as
    functions of ``torch.nn.functional``. A subclass or a function of the user may give outputs and targets any meaning,
    which is not guessed from their shapes.
    """
    from torch import nn

    functions = {
        nn.functional.cross_entropy: nn.CrossEntropyLoss,
        nn.functional.nll_loss: nn.NLLLoss,
        nn.functional.binary_cross_entropy_with_logits: nn.BCEWithLogitsLoss,
        nn.functional.binary_cross_entropy: nn.BCELoss,
        nn.functional.mse_loss: nn.MSELoss,
    }
    loss: Any = network.loss
    if isinstance(loss, FunctionType):
        loss = next((make() for function, make in functions.items() if function is loss), loss)
    kind = type(loss)
    if kind in (nn.CrossEntropyLoss, nn.NLLLoss) and not targets.is_floating_point():
        return {"accuracy": PerTarget(_RightClass(int(loss.ignore_index), loss.weight))}
    if kind in (nn.BCEWithLogitsLoss, nn.BCELoss) and _are_bits(targets):
        return {"accuracy": PerTarget(_RightSide(0.0 if kind is nn.BCEWithLogitsLoss else 0.5, loss.weight))}
    if kind is nn.MSELoss:
        return {"mse": PerTarget(_squared_error)}
    return {HELD_OUT_LOSS: None}


class _Mean:
    """A weighted mean, to which values are added."""

    total = count = 0.0

    def add(self, total: float, count: float) -> None:
        self.total += total
        self.count += count

    @property
    def value(self) -> float:
        return self.total / self.count if self.count else float("nan")


def compute_metrics(network: Network, metrics: Metrics, parts: Iterator[SampleBatch]) -> dict[str, float]:
    """Return the metrics of a network in evaluation mode, by name.

    Objects with ``update`` and ``compute`` receive batch after batch, and start anew each time. Functions of (outputs,
    targets) receive all samples together; functions of (module, batch) are averaged over the samples, or over the
    counted terms of the loss. The loss and default metrics are averaged with the samples' weights.
    """
    evaluation = _Evaluation(network, metrics)
    for sample_batch in parts:
        evaluation.add(sample_batch)
    return evaluation.values()


class _Evaluation:
    """Metrics of a network to which held-out batches are added one after the other."""

    def __init__(self, network: Network, metrics: Metrics) -> None:
        self._network, self._metrics = network, metrics
        self._means = {name: _Mean() for name in metrics}
        self._collected = {name: fresh(metric) for name, metric in metrics.items() if is_collected(metric)}
        self._functions = {
            name: metric
            for name, metric in metrics.items()
            if callable(metric) and name not in self._collected and not isinstance(metric, PerTarget)
        }
        self._kept: list[tuple[Any, Any, torch.Tensor | None]] = []  # for functions of all samples

    def add(self, sample_batch: SampleBatch) -> None:
        """Compute a batch's part of each metric."""
        import torch

        network, metrics = self._network, self._metrics
        batch = network.on_device(sample_batch.batch)
        outputs = None if network.takes_module else network.outputs(batch)
        if HELD_OUT_LOSS in metrics and metrics[HELD_OUT_LOSS] is None:
            self._means[HELD_OUT_LOSS].add(*_loss_and_terms(network, batch, outputs, sample_batch))
        weights = None if sample_batch.weights is None else torch.from_numpy(sample_batch.weights)
        if network.takes_module:
            arguments: tuple[Any, Any] = network.module, batch
        else:
            arguments = map_tensors(outputs, _on_cpu), map_tensors(sample_batch.batch[-1], _on_cpu)
        for name, metric in metrics.items():
            if isinstance(metric, PerTarget):
                self._means[name].add(*_over_targets(name, metric, *arguments, sample_batch.weights))
        for name, metric in self._collected.items():
            with_weights(metric.update, name, arguments, weights)
        if self._functions and not network.takes_module:
            self._kept.append((*arguments, weights))
        elif self._functions:
            self._add_to_means(batch, sample_batch)

    def _add_to_means(self, batch: Batch, sample_batch: SampleBatch) -> None:
        """Add the user's functions of a module and a batch to their means over the terms of the loss."""
        terms = self._network.terms(batch, sample_batch.size) * (
            1.0 if sample_batch.weights is None else float(sample_batch.weights.mean())
        )
        for name, metric in self._functions.items():
            if terms:
                self._means[name].add(metric_number(name, metric(self._network.module, batch)) * terms, terms)

    def values(self) -> dict[str, float]:
        """Return the metrics by name."""
        values = {name: mean.value for name, mean in self._means.items()}
        values |= {name: metric_number(name, metric.compute()) for name, metric in self._collected.items()}
        if self._kept:
            outputs, targets, weights = _together(self._kept, next(iter(self._functions)))
            for name, metric in self._functions.items():
                values[name] = metric_number(name, with_weights(metric, name, (outputs, targets), weights))
        return values


def _on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu()  # a module that differentiates is evaluated with gradients


def _loss_and_terms(network: Network, batch: Batch, outputs: Any, sample_batch: SampleBatch) -> tuple[float, float]:
    """Return the sum of the losses of a batch of held-out samples, and the number of their terms, both weighted."""
    weights = sample_batch.weights
    if weights is None or network.alone:
        weight = 1.0 if weights is None else float(weights[0])
        terms = network.terms(batch, sample_batch.size)
        if network.ignored is not None and not batch[-1].is_floating_point():
            terms = float((batch[-1] != network.ignored).sum())
        if not terms * weight:
            return 0.0, 0.0
        loss = network.loss_at(network.module, batch) if network.takes_module else network.loss_at(outputs, batch[-1])
        return weight * float(loss.detach()) * (terms if network.mean else 1.0), weight * terms
    network.loss_factor(batch, 1)
    terms = float(weights.sum())
    if network.ignored is not None and not batch[-1].is_floating_point():
        counts = (batch[-1] != network.ignored).reshape(sample_batch.size, -1).sum(dim=1)
        terms = float(counts.cpu().numpy() @ weights)
    return float(network.loss_at(outputs, batch[-1], weights).detach()), terms


def _over_targets(
    name: str, metric: PerTarget, outputs: torch.Tensor, targets: torch.Tensor, weights: Floats | None
) -> tuple[float, float]:
    """Return the sum of a batch's values, and the number of its targets that count, both weighted."""
    import torch

    try:
        values, counts = metric.values(outputs, targets)
    except (RuntimeError, IndexError) as error:
        raise BadInput(
            f"{name} cannot be computed from outputs of shape {tuple(outputs.shape)} and targets of shape "
            f"{tuple(targets.shape)}; {_OWN}"
        ) from error
    values = values.double()
    shares = torch.ones_like(values) if counts is None else counts.double()
    if weights is not None:
        shares = shares * torch.from_numpy(weights).view(-1, *[1] * (values.dim() - 1))
    # not a product: what does not count need not be finite
    return float((values.where(shares != 0, 0.0) * shares).sum()), float(shares.sum())


def _together(batches: list[tuple[Any, Any, Any]], name: str) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """Return outputs, targets and weights of all held-out samples; raise if they cannot be put together."""
    import torch

    outputs, targets, weights = zip(*batches, strict=True)
    for one in outputs:
        if not isinstance(one, torch.Tensor):
            raise BadInput(
                f"metric '{name}' needs outputs that are one tensor, got {type(one).__name__}; one with update and "
                "compute receives them as they are"
            )
    try:
        joined = torch.cat(outputs), torch.cat(targets)
    except (RuntimeError, TypeError):
        shapes = " and ".join(str(tuple(shape)) for shape in sorted({one.shape[1:] for one in outputs})[:2])
        raise BadInput(
            f"metric '{name}' is a function of all outputs and targets together, and those of held-out batches differ "
            f"in shape ({shapes} for each sample); give an object with update and compute, which receives batch after "
            "batch"
        ) from None
    return *joined, None if weights[0] is None else torch.cat(weights)


def check_on_trial(network: Network, metrics: Metrics, batch: Batch, size: int, weights: Floats | None) -> None:
    """Raise :class:`~anyk.BadInput` if default metrics cannot be computed from a few held-out samples."""
    defaults = {name: metric for name, metric in metrics.items() if metric is None or isinstance(metric, PerTarget)}
    compute_metrics(network, defaults, iter([SampleBatch(batch, size, 0, None, weights)]))
