"""Data without an end: samples that workers draw from iterables, with a seed for each mini-batch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import msgspec
import numpy as np

from anyk import keyed
from anyk.checks import typed
from anyk.errors import BadInput, RunFailed, describe_error
from anyk.problems.base import Index, cut
from anyk.problems.data.samples import Samples
from anyk.problems.data.shards.processes import in_processes
from anyk.problems.torch.generators import kept_generators, seed_all

Sample = Any
SAMPLES = 1 << 40  # that a stream stands for: so many that none comes twice, and partitions are equal to 1 in 10^9
_HEAD = 32  # samples that a loss is tried on
_SEEDED = "give each iterable a generator of its own, made from the seed"


@typed
@dataclass(frozen=True)
class Stream:
    """Training data without an end, or without numbers, for linear models, TorchProblem and JaxProblem: iterables.

    ``make(partition, seed)`` gives an iterable of samples, each as an item of a data set is: a tuple or dictionary of
    arrays, tensors and numbers. Whoever computes a partition's mini-batch calls it and takes the first ``b`` samples,
    so strategies need ``batch=b``. The seed, a whole number below 2**32, follows from the run's seed, the step and the
    partition: the same samples come wherever and whenever a mini-batch is computed, provided that ``make`` depends on
    its arguments alone. While samples are drawn, the global generators of NumPy, of Python's ``random`` and, where it
    is loaded, of torch are seeded with it, too. Partitions are numbered from 0; how many there are, the strategy says.

    The objective is the mean over the stream, in which each partition counts equally: a run knows no number of samples.
    The first samples of partition 0 are drawn once, by a process of its own, to try the loss on; where batch norm or
    ``Evaluate(on="train", samples=…)`` need more, they are of partition 0, too.

    Raises :class:`~anyk.errors.BadInput` where ``make`` is not a function; a problem raises it where samples do not
    follow from the seed.

    >>> import anyk, torch, numpy as np
    >>> def make(partition, seed):
    ...     random = np.random.default_rng(seed)
    ...     while True:
    ...         x = random.standard_normal(3, dtype=np.float32)
    ...         yield x, x[:1] - x[1:2]
    >>> problem = anyk.problems.TorchProblem(torch.nn.Linear(3, 1), torch.nn.MSELoss(), anyk.data.Stream(make))
    >>> sgd = anyk.optimizers.GD(lr=0.3)
    >>> run = anyk.train(problem, "frc:load=2,batch=8", "simulated", workers=4, steps=30, optimizer=sgd)
    >>> np.allclose(run.model[:3], [1.0, -1.0, 0.0], atol=0.05)
    True
    """

    make: Callable[[int, int], Iterable[Sample]]

    def __post_init__(self) -> None:
        if not callable(self.make):
            raise BadInput(f"make must be a function of (partition, seed), got {type(self.make).__name__}")


class StreamSamples(Samples):
    """The samples of a stream, as problems and their partitions draw them; ``form`` puts several together."""

    endless = True

    def __init__(self, stream: Stream, form: Callable[[list[Sample]], Samples]) -> None:
        self._make, self._form = stream.make, form
        body = in_processes(partial(_first, stream.make), [0])[0]
        self.mark = np.array([hashlib.blake2b(body, digest_size=16).hexdigest()])
        self._head = form(_decoded(body))
        self._some: dict[tuple[int, str], Samples] = {}

    def __len__(self) -> int:
        return SAMPLES

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_some": {}}

    @property
    def head(self) -> Samples:
        """The first samples of partition 0."""
        return self._head

    def drawn(self, partitions: range, rows: Index | None) -> Samples:
        """Return a mini-batch, in equal parts of these partitions; ``rows``, numbers below SAMPLES, are its key."""
        if rows is None:
            raise BadInput(NO_PASS)
        key = keyed.digest(np.ascontiguousarray(rows, dtype=np.int64))
        counts = np.diff(cut(len(rows), len(partitions))).tolist()
        samples: list[Sample] = []
        for j, count in zip(partitions, counts, strict=True):
            own = _taken(self._make, j, _seed(key, j), count)
            if len(own) < count:
                raise RunFailed(
                    f"the stream of partition {j} ended after {len(own)} samples, and a mini-batch takes {count} of "
                    "it; have make give an iterable without an end, or use a smaller batch"
                )
            samples += own
        return self._form(samples)

    def some(self, samples: int, of: str) -> Samples:
        """Return ``samples`` samples of partition 0, or as many as there are; a process draws them once."""
        if (samples, of) not in self._some:
            seed = keyed.integer(samples, "stream", of) >> 31
            body = in_processes(partial(_encoded, self._make, samples), [seed])[0]
            self._some[samples, of] = self._form(_decoded(body))
        return self._some[samples, of]


NO_PASS = (
    "the training data is a stream, of which there is no full batch; give the strategy a mini-batch, as in "
    "'uncoded:batch=32'"
)
NO_LOSS = (
    "the training data is a stream, whose loss can only be estimated; give evaluate=Evaluate(on='train', "
    "samples=1000), or on='held_out'"
)
NO_PARTS = (
    "the training data is a stream, of which one process draws the samples to evaluate; evaluate where='driver' or "
    "'aside'"
)
ENDS = "held_out is evaluated as a whole, and a stream has no end; give arrays, shards, or a list of samples"


def _seed(key: int, partition: int) -> int:
    return keyed.integer(key, "stream", partition) >> 31


def _taken(make: Callable[[int, int], Iterable[Sample]], partition: int, seed: int, count: int) -> list[Sample]:
    """The first samples of a partition, fewer where it ends."""
    with kept_generators([]) as generators:
        seed_all(generators, seed)
        try:
            return list(islice(iter(make(partition, seed)), count))
        except Exception as error:
            raise RunFailed(f"the stream of partition {partition} fails: {describe_error(error)}") from error


def _first(make: Callable[[int, int], Iterable[Sample]], piece: int) -> bytes:
    """The first samples of partition 0; refuses a stream that does not follow from its seed."""
    del piece
    first, again, other = (_encoded(make, _HEAD, seed) for seed in (_seed(0, 0), _seed(0, 0), _seed(1, 0)))
    if first != again:
        raise BadInput(f"the stream gave other samples when it was made again with the same seed; {_SEEDED}")
    if first == other:
        raise BadInput(
            f"the stream gives the same samples under every seed, so that no step would see others; {_SEEDED}"
        )
    return first


def _encoded(make: Callable[[int, int], Iterable[Sample]], count: int, seed: int) -> bytes:
    """The first samples of partition 0 as MessagePack."""
    try:
        samples = _taken(make, 0, seed, count)
    except RunFailed as error:
        raise BadInput(str(error)) from None
    if not samples:
        raise BadInput("the stream of partition 0 has no samples")
    return msgspec.msgpack.encode([_plain(sample) for sample in samples])


def _plain(value: Any) -> Any:
    """A sample's parts as plain data: what a process sends back is not unpickled."""
    if isinstance(value, Mapping):
        return {"keys": list(value), "of": [_plain(part) for part in value.values()]}
    if isinstance(value, (tuple, list)):
        return [_plain(part) for part in value]
    if type(value) in (bool, int, float, str):  # and not NumPy's own, which are floats, too
        return {"value": value}
    tensor = hasattr(value, "detach")
    try:
        array = np.asarray(value.detach().cpu() if tensor else value)
    except (TypeError, ValueError, RuntimeError):
        array = np.array(None)
    if array.dtype.kind not in "biuf":
        raise BadInput(
            f"samples of a stream must be made of arrays, tensors and numbers, got {type(value).__name__}; convert it "
            "in make"
        )
    return {"tensor": tensor, "dtype": array.dtype.str, "shape": array.shape, "body": array.tobytes()}


def _decoded(body: bytes) -> list[Sample]:
    samples_read: list[Sample] = [_formed(sample) for sample in msgspec.msgpack.decode(body)]
    return samples_read


def _formed(plain: Any) -> Any:
    if isinstance(plain, Sequence):
        return tuple(_formed(part) for part in plain)
    if "keys" in plain:
        return dict(zip(plain["keys"], map(_formed, plain["of"]), strict=True))
    if "value" in plain:
        return plain["value"]
    array = np.frombuffer(bytearray(plain["body"]), dtype=np.dtype(plain["dtype"])).reshape(plain["shape"])
    if plain["tensor"]:
        import torch

        return torch.from_numpy(array)
    return array
