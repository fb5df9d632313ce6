"""Whether the loss of several samples is the mean, or the sum, of theirs: only then do partitions' gradients add up.

A mean over the targets that are not padding, or one with class weights, is not: it divides by what the samples at hand
count, and so weighs a sample by the company it is in.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from anyk import keyed
from anyk.errors import BadInput
from anyk.problems.base import Index, cut

if TYPE_CHECKING:
    import torch

    from anyk.problems.torch_partitions import Network

_TRIED = 32  # samples of the data set that a loss is tried on before a run
_TOGETHER = 4  # of them at once
_SINGLES = 8  # samples of a batch that are compared with themselves alone, at most


def telling(arrays: Sequence[NDArray[Any]], samples: int, together: int | None = None) -> Iterator[Index]:
    """Groups of rows on which a loss shows what it is: at most 32 rows from all parts of the data, 4 in a group.

    Among them are those with the least and the largest number of each of ``arrays`` (shape (samples, …)): what a loss
    leaves out, as padding, often is one of these. ``together``: rows in a group, at most.

    >>> [rows.tolist() for rows in telling([np.array([3, 3, 0, 3, 3, 9])], samples=6)]
    [[2, 4, 5], [0, 1, 3]]
    """
    chosen = [0, min(1, samples - 1)]
    for array in arrays:
        width = array.size // samples
        chosen += [int(extreme(array)) // width for extreme in (np.argmin, np.argmax) if width]
    ends = cut(samples, min(samples, _TRIED))
    random = keyed.generator(0, "telling", samples)
    chosen += random.permutation(random.integers(ends[:-1], ends[1:])).tolist()
    rows = random.permutation(list(dict.fromkeys(chosen))[:_TRIED]).astype(np.intp)
    for group in np.array_split(rows, -(-len(rows) // min(together or _TOGETHER, _TOGETHER))):
        yield np.sort(group)


def is_no_sum(of: str, *, mean: bool, way: str) -> BadInput:
    """The refusal of a loss whose value or gradient for several samples (``of``) is not made of theirs."""
    return BadInput(
        f"the loss of {of} together is not the {'mean' if mean else 'sum'} of their losses: it weighs or leaves out "
        f"targets, or looks at several samples at once; {way}"
    )


_TORCH = (
    "to leave out targets give torch's own CrossEntropyLoss(ignore_index=…) or NLLLoss, which is exact, else a loss "
    "that is a sum over samples, with reduction='sum'"
)


def has_entries(outputs: Any, count: int) -> bool:
    """Whether a module's outputs are tensors, perhaps in tuples or dictionaries, with an entry for each sample."""
    import torch
    from torch.utils import _pytree as pytree

    leaves = pytree.tree_leaves(outputs)
    return all(isinstance(leaf, torch.Tensor) and leaf.dim() and len(leaf) == count for leaf in leaves)


def check_loss(network: Network, outputs: Any, targets: torch.Tensor, of: str) -> None:
    """Refuse a loss of a batch that is not the mean, or the sum, of its samples' losses, where that can be told.

    Compared are what the loss says and, sample by sample, its gradient with respect to the module's outputs: with those
    of some samples alone. It cannot be told where the outputs have no entries (:func:`has_entries`), and where the loss
    draws, is not finite or fails on a single sample.
    """
    import torch
    from torch.utils import _pytree as pytree

    count = len(targets)
    if not has_entries(outputs, count):
        return
    leaves, tree = pytree.tree_flatten(outputs)

    def at(rows: slice) -> tuple[float, torch.Tensor]:
        """The loss of some samples, and its gradient, shape (samples, numbers)."""
        parts = [leaf[rows].detach() for leaf in leaves]
        wanted = [part.requires_grad_() for part in parts if part.is_floating_point()]
        loss = network.loss_at(pytree.tree_unflatten(parts, tree), targets[rows])
        found = torch.autograd.grad(loss, wanted, allow_unused=True)
        return float(loss.detach()), torch.cat([g.reshape(len(g), -1).double() for g in found if g is not None], dim=1)

    some = np.unique(np.linspace(0, count - 1, min(count, _SINGLES)).astype(int)).tolist()
    try:
        with warnings.catch_warnings(action="ignore"), torch.enable_grad():  # of shapes that do not fit one sample
            (whole, gradient), (again, _) = at(slice(None)), at(slice(None))
            alone = [at(slice(i, i + 1)) for i in some]
    except Exception:  # a single sample need not make sense to it
        return
    if whole != again or not bool(torch.isfinite(gradient).all()):
        return
    own, part = torch.cat([g for _, g in alone]), gradient[some] * (count if network.mean else 1)
    largest = max(float(own.norm(dim=1).max()), float(part.norm(dim=1).max()))
    tolerance = _tolerance(network, targets)
    fits = float((own - part).norm(dim=1).max()) <= tolerance * largest
    if len(some) == count:
        fits = fits and _fits(whole, [loss for loss, _ in alone], network.mean, tolerance)
    if not fits:
        raise is_no_sum(of, mean=network.mean, way=_TORCH)


def check_parts(network: Network, batch: tuple[torch.Tensor, ...], of: str) -> None:
    """As :func:`check_loss`, of values alone, where outputs cannot be cut: the module sees each sample by itself.

    It evaluates, so that neither dropout nor the statistics of batch norm make a difference.
    """
    import torch

    training = network.module.training
    network.module.eval()
    try:
        with warnings.catch_warnings(action="ignore"), torch.no_grad():
            whole, again = (float(network.loss_of(batch)[0]) for _ in range(2))
            parts = [
                float(network.loss_of(tuple(tensor[i : i + 1] for tensor in batch))[0]) for i in range(len(batch[-1]))
            ]
    except Exception:
        return
    finally:
        network.module.train(training)
    if whole == again and np.isfinite(whole) and not _fits(whole, parts, network.mean, _tolerance(network, batch[-1])):
        raise is_no_sum(of, mean=network.mean, way=_TORCH)


def _tolerance(network: Network, targets: torch.Tensor) -> float:
    """Relative: of bfloat16, of what other devices round, or far above what single precision does."""
    return 0.02 if network.precision or targets.device.type != "cpu" else 1e-4


def _fits(whole: float, parts: Sequence[float], mean: bool, tolerance: float) -> bool:
    """Whether a value is the mean, or the sum, of others."""
    expected = sum(parts) / (len(parts) if mean else 1)
    return abs(whole - expected) <= tolerance * max(abs(value) for value in (whole, *parts))
