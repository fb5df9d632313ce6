"""Whether the loss of several samples is the mean, or the sum, of theirs: only then do partitions' gradients add up.

A mean over the targets that are not padding, or one with class weights, is not: it divides by what the samples at hand
count, and so weighs a sample by the company it is in.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from anyk import keyed
from anyk.errors import BadInput
from anyk.problems.base import Index, cut

if TYPE_CHECKING:
    import torch

    from anyk.problems.data.samples import Batch
    from anyk.problems.torch.network import Network

_TRIED = 32  # samples of the data set that a loss is tried on before a run
TOGETHER = 4  # of them at once
_SINGLES = 8  # samples of a batch that are compared with themselves alone, at most
NUDGES = 4  # times that the numbers a loss is computed from are moved by some roundings, to see what rounding changes
BEYOND = 8.0  # times as large a difference is no rounding


def telling(arrays: Sequence[NDArray[Any]], samples: int, together: int | None = None) -> Iterator[Index]:
    """Groups of rows on which a loss shows what it is: at most 32 rows from all parts of the data, 4 in a group.

    Among them are those with the least and the largest number of each of ``arrays`` (shape (samples, …)): what a loss
    leaves out, as padding, often is one of these. ``together``: rows in a group, at most.

    >>> [rows.tolist() for rows in telling([np.array([3, 3, 0, 3, 3, 9])], samples=6)]
    [[2, 4, 5], [0, 1, 3]]
    """
    places = [0, min(1, samples - 1)]
    for array in arrays:
        width = array.size // samples
        places += [int(extreme(array)) // width for extreme in (np.argmin, np.argmax) if width]
    ends = cut(samples, min(samples, _TRIED))
    random = keyed.generator(0, "telling", samples)
    places += random.permutation(random.integers(ends[:-1], ends[1:])).tolist()
    rows = random.permutation(list(dict.fromkeys(places))[:_TRIED]).astype(np.intp)
    for group in np.array_split(rows, -(-len(rows) // min(together or TOGETHER, TOGETHER))):
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


_COUNT = (
    "where it is a mean over the targets that are not padding, give count=…, a function of a batch that gives their "
    "number, else a loss that is a sum over samples, with reduction='sum'"
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
    of some samples alone. It cannot be told where the outputs have no entries (:func:`has_entries`), where the loss
    draws, is not finite or fails on a single sample, and where the outputs meet the targets up to rounding.
    """
    import torch
    from torch.utils import _pytree as pytree

    count = len(targets)
    if not has_entries(outputs, count):
        return
    leaves, tree = pytree.tree_flatten(outputs)

    def at(rows: slice, nudge: int | None = None) -> tuple[float, torch.Tensor]:
        """The loss of some samples, and its gradient, shape (samples, numbers)."""
        parts = [leaf[rows].detach() for leaf in leaves]
        if nudge is not None:
            parts = [_nudged(part, network, nudge) if part.is_floating_point() else part for part in parts]
        wanted = [part.requires_grad_() for part in parts if part.is_floating_point()]
        loss = network.loss_at(pytree.tree_unflatten(parts, tree), targets[rows])
        found = torch.autograd.grad(loss, wanted, allow_unused=True)
        return float(loss.detach()), torch.cat([g.reshape(len(g), -1).double() for g in found if g is not None], dim=1)

    some = np.unique(np.linspace(0, count - 1, min(count, _SINGLES)).astype(int)).tolist()

    def by_one() -> tuple[torch.Tensor, torch.Tensor]:
        """The losses of some samples, one by one, and their gradients."""
        losses, gradients = zip(*(at(slice(i, i + 1)) for i in some), strict=True)
        return torch.tensor(losses, dtype=torch.float64), torch.cat(gradients)

    times = count if network.mean else 1
    with warnings.catch_warnings(action="ignore"), torch.enable_grad():  # of shapes that do not fit one sample
        try:
            (whole, gradient), (again, _) = at(slice(None)), at(slice(None))
            losses, own = by_one()
        except Exception:  # a single sample need not make sense to it
            return
        if whole != again or not bool(torch.isfinite(gradient).all()):
            return
        part = gradient[some] * times
        apart = np.array([_longest(own - part), abs(whole - float(losses.sum()) / times)])
        if len(some) < count:  # the loss has nothing to be compared with
            apart[1] = 0.0
        largest = np.array([max(_longest(own), _longest(part)), max(abs(whole), float(losses.abs().max()))])
        if (apart <= _tolerance(network) * largest).all() or not _same(by_one(), (losses, own)):
            return
        near = [at(slice(None), nudge) for nudge in range(NUDGES)]
        moved = np.max([(_longest(there[some] * times - part), abs(value - whole)) for value, there in near], axis=0)
    if not (apart <= np.fmax(_tolerance(network) * largest, BEYOND * moved)).all():  # also of what is not a number
        raise is_no_sum(of, mean=network.mean, way=_unpaired(outputs, targets) or _TORCH)


def _longest(gradients: torch.Tensor) -> float:
    return float(gradients.norm(dim=1).max())


def _same(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    """Return whether two computations agree bit for bit, which those of a loss that draws do not."""
    return all(np.array_equal(a.cpu(), b.cpu(), equal_nan=True) for a, b in zip(one, other, strict=True))


def _nudged(values: torch.Tensor, network: Network, nudge: int) -> torch.Tensor:
    """Values moved up or down by some roundings of what the network computes in; other signs for each ``nudge``."""
    import torch

    if network.precision:
        rounding = torch.finfo(torch.bfloat16).eps
    else:
        rounding = torch.finfo(values.dtype).eps if network.kind == "cpu" else 2.0**-11  # that of TF32
    return values * (1.0 + rounding * torch.from_numpy(nudges(values.numel(), nudge)).view(values.shape).to(values))


def nudges(size: int, nudge: int) -> NDArray[np.float64]:
    """Roundings, 4 up or down, by which to move so many numbers to see what rounding changes."""
    return keyed.generator(nudge, "nudged", size).choice((-4.0, 4.0), size)


def _unpaired(outputs: Any, targets: torch.Tensor) -> str | None:
    """Return advice if targets have as many numbers as the outputs but another shape, else None."""
    shapes = tuple(getattr(outputs, "shape", ())), tuple(targets.shape)
    if not shapes[0] or shapes[0] == shapes[1] or outputs.numel() != targets.numel():
        return None
    return (
        f"outputs of shape {shapes[0]} and targets of shape {shapes[1]} are not paired one by one but each with all; "
        "give them the same shape"
    )


def check_samples(network: Network, batch_of: Callable[[Index], Batch], count: int, of: str) -> None:
    """Do as :func:`check_loss`, from samples: ``batch_of`` gives the batch of some of the ``count`` samples.

    Compared are the loss and its gradient with respect to the parameters, in evaluation, so that neither dropout nor
    the statistics of batch norm make a difference. Rounding is told by moving the parameters. Raises also where the
    loss of a single sample fails or is not a number, as that of one without any target that counts.
    """
    if count < 2:
        return
    training = network.module.training
    network.module.eval()
    try:
        _check_samples(network, batch_of, count, of)
    finally:
        network.module.train(training)


def _check_samples(network: Network, batch_of: Callable[[Index], Batch], count: int, of: str) -> None:
    import torch

    def at(rows: Index) -> tuple[torch.Tensor, float]:
        """The loss of some samples and its gradient, as one vector, times the terms where it is a mean; the terms."""
        batch = batch_of(rows)
        terms = network.terms(batch, len(rows))
        if not terms:
            return torch.zeros(()), 0.0
        loss = network.loss_of(batch)
        wanted = [parameter for parameter in network.module.parameters() if parameter.requires_grad]
        gradients = torch.autograd.grad(loss, wanted, allow_unused=True)
        parts = [torch.zeros_like(w) if g is None else g for w, g in zip(wanted, gradients, strict=True)]
        together = torch.cat([loss.detach().reshape(1), *(part.reshape(-1) for part in parts)]).double()
        return together * (terms if network.mean else 1.0), terms

    def by_one() -> tuple[torch.Tensor, NDArray[np.float64], float]:
        """The sum of what each sample adds, how large that is, and the terms of all; one sample is held at a time."""
        total, sizes, counted = torch.zeros_like(whole), [], 0.0
        for i in range(count):
            try:
                part, own = at(every[i : i + 1])
            except BadInput:
                raise
            except Exception as error:
                reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
                raise BadInput(
                    f"whether the loss is a sum over samples cannot be told: of several ({of}) it is a number, but of "
                    f"one of them alone it fails ({reason}); give one that a single sample has, too"
                ) from None
            if not bool(torch.isfinite(part).all()):
                raise BadInput(
                    f"the loss of {of} together is a number, but that of one of them alone is not: it leaves out "
                    f"targets; {_COUNT}"
                )
            if own:
                total += part
                sizes.append(_sizes(part))
                counted += own
        return total, np.array(sizes), counted

    every = np.arange(count)
    with warnings.catch_warnings(action="ignore"), torch.enable_grad():
        try:
            (whole, terms), (again, _) = at(every), at(every)
        except BadInput:
            raise
        except Exception:  # what fails in a run is said there
            return
        if not terms or float(whole[0]) != float(again[0]) or not bool(torch.isfinite(whole).all()):
            return
        total, alone, counted = by_one()
        if counted != terms:
            raise BadInput(
                f"count gives {terms:g} terms for {of} together and {counted:g} for them one by one; it must count "
                "what the loss of a batch adds up"
            )
        largest = np.max([_sizes(whole), *alone], axis=0)
        apart = _sizes(whole - total)
        if (apart <= _tolerance(network) * largest).all() or not np.array_equal(by_one()[1], alone):
            return
        moved = np.zeros(2)
        for nudge in range(NUDGES):
            with _parameters_nudged(network, nudge):
                moved = np.maximum(moved, _sizes(at(every)[0] - whole))
    if not (apart <= np.fmax(_tolerance(network) * largest, BEYOND * moved)).all():  # also of what is not a number
        raise is_no_sum(of, mean=network.mean, way=_COUNT)


def _sizes(made: torch.Tensor) -> NDArray[np.float64]:
    """Return the absolute loss and the norm of its gradient, which are given in one vector."""
    return np.array([float(made[0].abs()), float(made[1:].norm())])


@contextmanager
def _parameters_nudged(network: Network, nudge: int) -> Iterator[None]:
    """With parameters moved by some roundings; their own memory, which may be shared, is not written to."""
    parameters = [one for one in network.module.parameters() if one.requires_grad]
    originals = [one.data for one in parameters]
    for one, values in zip(parameters, originals, strict=True):
        one.data = _nudged(values, network, nudge)
    try:
        yield
    finally:
        for one, values in zip(parameters, originals, strict=True):
            one.data = values


def _tolerance(network: Network) -> float:
    """Relative: of bfloat16, of what other devices round, or far above what single precision does."""
    return 0.02 if network.precision or network.kind != "cpu" else 1e-4
