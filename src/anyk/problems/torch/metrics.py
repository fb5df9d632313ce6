"""Quality of a PyTorch module on held-out data, by functions of (outputs, targets) or of (module, batch)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from anyk.errors import BadInput
from anyk.problems.data.sample_batches import Batch
from anyk.problems.torch.network import Network

if TYPE_CHECKING:
    import torch

Metric = Callable[[Any, Any], Any]
Metrics = Mapping[str, Metric | None]  # None: the problem's own loss


def default_metrics(network: Network, batch: Batch, ignored: int | None) -> Metrics:
    """Return the default metric, by name; ``ignored``: the target that does not count."""
    if network.takes_module:
        return {"loss": None}
    return {"mse": _mse} if batch[-1].is_floating_point() else {"accuracy": partial(_accuracy, ignored=ignored)}


def check_metrics(metrics: Any) -> Metrics:
    """Return a user's metrics; raise :class:`~anyk.errors.BadInput` if they are not functions by name."""
    if not isinstance(metrics, Mapping) or not all(map(callable, metrics.values())):
        raise BadInput(f"metrics must be functions by name, as in {{'name': function}}, got {metrics!r}")
    if not metrics:
        raise BadInput("metrics must name at least one function, or be left out")
    return dict(metrics)


def compute_metrics(network: Network, metrics: Metrics, batches: Iterator[tuple[Batch, int]]) -> dict[str, float]:
    """Return the metrics of a network in evaluation mode, by name.

    Functions of (outputs, targets) receive all samples together; functions of (module, batch) are averaged over the
    samples, or over the counted terms of the loss.
    """
    import torch

    if network.takes_module:
        return _averages(network, metrics, batches)
    pairs = [(network.outputs(batch).cpu(), batch[-1].cpu()) for batch, _ in batches]
    outputs, targets = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    return {name: float(metric(outputs, targets)) for name, metric in metrics.items() if metric is not None}


def _averages(network: Network, metrics: Metrics, batches: Iterator[tuple[Batch, int]]) -> dict[str, float]:
    totals, count = dict.fromkeys(metrics, 0.0), 0.0
    for batch, size in batches:
        terms = network.terms(batch, size)
        if not terms:
            continue
        count += terms
        for name, metric in metrics.items():
            if metric is None:
                totals[name] += float(network.loss_of(batch)) * (terms if network.mean else 1.0)
            else:
                totals[name] += float(metric(network.module, batch)) * terms
    return {name: total / count if count else float("nan") for name, total in totals.items()}


def _accuracy(outputs: torch.Tensor, targets: torch.Tensor, ignored: int | None = None) -> float:
    """Return the share of targets with the largest output; classes are the second axis, as in torch, or the last."""
    classes = 1 if outputs.shape[:1] + outputs.shape[2:] == targets.shape else -1
    right = outputs.argmax(dim=classes) == targets
    return float((right if ignored is None else right[targets != ignored]).double().mean())


def _mse(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    return float(((outputs.double().reshape(targets.shape) - targets) ** 2).mean())
