"""What a ``DataLoader`` of torch means for a problem: its data set, and what mini-batches are drawn from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from anyk.base.errors import BadInput


class Loaded(NamedTuple):
    """The contents of a loader.

    ``collate``: None for torch's own. ``batch``: the samples of a step. ``weights``: in proportion to which samples are
    drawn, one for each, or None. ``remark``: a sentence on what replaces the loader's own sampling. ``sampler``: the
    loader's, if it chooses or weighs samples.
    """

    data: Any
    collate: Callable[[list[Any]], Any] | None
    processes: int
    batch: int
    weights: Any
    remark: str
    sampler: Any


def is_loader(data: object) -> bool:
    """Return whether data is a ``DataLoader``."""
    from torch.utils.data import DataLoader

    return isinstance(data, DataLoader)


def read_loader(loader: Any, name: str) -> Loaded:
    """Return the contents of a map-style loader; raise :class:`~anyk.BadInput` if its meaning is unknown."""
    from torch.utils import data as torch_data

    kind = type(loader)
    if kind.__iter__ is not torch_data.DataLoader.__iter__:
        raise BadInput(
            f"{name} is a {kind.__name__}, a DataLoader that makes batches in a way of its own; give the data set, and "
            "collate_fn where it is yours"
        )
    dataset = loader.dataset
    if isinstance(dataset, torch_data.IterableDataset):
        raise BadInput(
            f"{name} is a DataLoader of an iterable data set, whose samples have no numbers by which workers could "
            "share them; give the data set itself, or an anyk.data.Stream"
        )
    if loader.worker_init_fn is not None:
        raise BadInput(
            f"{name} is a DataLoader with a worker_init_fn, which anyk's workers do not call: they seed the random "
            "numbers of each item; leave it out, and let the data set open its files when an item is first read"
        )
    batches = loader.batch_sampler
    if batches is None:
        raise BadInput(
            f"{name} is a DataLoader with batch_size=None, whose data set makes the batches; give a data set of single "
            "samples, and a batch size"
        )
    if type(batches) is not torch_data.BatchSampler:
        raise BadInput(
            f"{name} is a DataLoader with the batch_sampler {type(batches).__name__}, whose batches anyk cannot draw; "
            "give batch_size, and shuffle or one of torch's samplers, in its place"
        )
    chosen, weights = _chosen(batches.sampler, dataset, name)
    collate = loader.collate_fn
    collate = None if collate is torch_data.default_collate else collate
    return Loaded(
        data=dataset if chosen is None else _subset(dataset, chosen, items=collate is not None),
        collate=collate,
        processes=loader.num_workers,
        batch=batches.batch_size,
        weights=weights,
        remark=(
            f"the DataLoader's {type(batches.sampler).__name__} is replaced: anyk draws the samples of each "
            f"mini-batch, of {batches.batch_size} samples a step unless the strategy has batch=…, from the run's seed; "
            "generator, drop_last and prefetching have no effect"
        ),
        sampler=None if chosen is None and weights is None else batches.sampler,
    )


def _chosen(sampler: Any, dataset: Any, name: str) -> tuple[Sequence[int] | None, Any]:
    """Return the samples from which a sampler draws (None: all), and the weights with which it does (None: equal)."""
    from torch.utils import data as torch_data
    from torch.utils.data.distributed import DistributedSampler

    kind = type(sampler)
    if isinstance(sampler, DistributedSampler):
        raise BadInput(
            f"{name} is a DataLoader with a {kind.__name__}, and anyk divides the data among its workers itself; leave "
            "the sampler out (shuffle=True)"
        )
    if kind in (torch_data.SequentialSampler, torch_data.RandomSampler):
        if len(sampler.data_source) != len(dataset):
            raise BadInput(
                f"{name} is a DataLoader whose sampler is of {len(sampler.data_source)} samples and whose data set has "
                f"{len(dataset)}; give a torch.utils.data.Subset as the data set"
            )
        return None, None
    if kind is torch_data.SubsetRandomSampler:
        return [int(i) for i in sampler.indices], None
    if kind is torch_data.WeightedRandomSampler:
        if not sampler.replacement:
            raise BadInput(
                f"{name} is a DataLoader with a WeightedRandomSampler without replacement, whose mini-batches are of "
                "no objective that could be stated; give replacement=True"
            )
        weights = np.asarray(sampler.weights, dtype=float)
        # samples beyond the sampler's weights are never drawn
        return None, np.append(weights, np.zeros(max(0, len(dataset) - len(weights))))
    raise BadInput(
        f"{name} is a DataLoader with the sampler {kind.__name__}, whose meaning is not known; give one of torch's "
        "samplers, or the data set with weights=… and sampling='weights'"
    )


def _subset(dataset: Any, chosen: Sequence[int], *, items: bool) -> Any:
    """Return some samples of a data set; those of tensors stay tensors, unless ``items`` are needed."""
    from torch.utils.data import Subset

    if not items and has_plain_tensors(dataset):
        return tuple(tensor[list(chosen)] for tensor in dataset.tensors)
    return Subset(dataset, chosen)


def has_plain_tensors(data: Any) -> bool:
    """Return whether data is a ``TensorDataset`` whose items are the rows of its tensors, and nothing else."""
    from torch.utils.data import TensorDataset

    return isinstance(data, TensorDataset) and type(data).__getitem__ is TensorDataset.__getitem__
