"""Endless data: samples that workers take from iterables, with a seed for each mini-batch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import islice
from typing import Any

import msgspec
import numpy as np

from anyk.base.checks import value_class
from anyk.base.errors import BadInput, RunFailed, describe_error
from anyk.base.keyed import array_digest, keyed_integer
from anyk.problems.base import Index, cut
from anyk.problems.data.reader_processes import map_in_processes
from anyk.problems.data.sample_batches import SampledOnce, Samples
from anyk.problems.generators import preserved_generators, seed_all

Sample = Any
Make = Callable[[int, int], Iterable[Sample]]  # called with a partition's number and a seed
SAMPLES = 1 << 40  # nominal length; so large that no sample occurs twice and partitions have almost equal sizes
_HEAD = 32  # number of samples on which the loss is tried
_ADVICE = "give each iterable its own random generator, made from the seed"


@value_class
class Stream:
    """Endless training data from iterables, for linear models, TorchProblem and JaxProblem.

    ``make(partition, seed)`` returns an iterable of samples. A sample is a tuple or dictionary of arrays, tensors and
    numbers, like an item of a data set. To compute the mini-batch of a partition, a worker calls ``make`` and takes the
    first ``b`` samples, so strategies need ``batch=b``. The seed, an integer below 2**32, follows from the run's seed,
    the step and the partition: a mini-batch has the same samples on every worker and at any time, provided that
    ``make`` depends on its arguments alone. The same seed is set in the global generators of NumPy, of Python's
    ``random`` and, if it is loaded, of torch. Partitions are numbered from 0; the strategy determines their number.

    The objective is the mean over the stream, in which each partition has the same weight. Before a run, the loss
    is tried on the first samples of partition 0, which a separate process generates. Batch norm and
    ``Evaluate(on="train", samples=…)`` use further samples of partition 0.

    Raises :class:`~anyk.BadInput` if ``make`` is not a function. A problem raises it if samples do not follow
    from the seed.

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

    make: Make

    def __post_init__(self) -> None:
        if not callable(self.make):
            raise BadInput(f"make must be a function of (partition, seed), got {type(self.make).__name__}")


class StreamSamples(SampledOnce):
    """The samples of a stream, generated when they are needed; ``form`` turns a list of samples into a batch."""

    endless = True

    def __init__(self, stream: Stream, form: Callable[[list[Sample]], Samples]) -> None:
        super().__init__()
        self._make, self._form = stream.make, form
        encoded = map_in_processes(partial(_encode_head, stream.make), [0])[0]
        self.mark = np.array([hashlib.blake2b(encoded, digest_size=16).hexdigest()])
        self._head = form(_decode(encoded))

    def __len__(self) -> int:
        return SAMPLES

    @property
    def code(self) -> Mapping[str, object]:
        return {"the stream": self._make}

    @property
    def head(self) -> Samples:
        """The first samples of partition 0."""
        return self._head

    def sample_batch(self, partitions: range, rows: Index | None) -> Samples:
        """Return a mini-batch of ``len(rows)`` samples, an equal number from each partition; ``rows`` is its key."""
        if rows is None:
            raise BadInput(NO_PASS)
        key = array_digest(np.ascontiguousarray(rows, dtype=np.int64))
        counts = np.diff(cut(len(rows), len(partitions))).tolist()
        samples: list[Sample] = []
        for j, count in zip(partitions, counts, strict=True):
            batch = _take_samples(self._make, j, _seed(key, j), count)
            if len(batch) < count:
                raise RunFailed(
                    f"the stream of partition {j} ended after {len(batch)} samples, and a mini-batch takes {count}; "
                    "let make return an endless iterable, or use a smaller batch"
                )
            samples += batch
        return self._form(samples)

    def read_some(self, samples: int, of: str) -> Samples:
        """Return at most ``samples`` samples of partition 0 from a separate process; ``of``: a part of their key."""
        seed = keyed_integer(samples, "stream", of) >> 31
        return self._form(_decode(map_in_processes(partial(_encode_samples, self._make, samples), [seed])[0]))


NO_PASS = (
    "the training data is a stream, which has no full batch; give the strategy a mini-batch, as in 'uncoded:batch=32'"
)
NO_LOSS = (
    "the training data is a stream, whose loss can only be estimated; give evaluate=Evaluate(on='train', "
    "samples=1000), or on='held_out'"
)
NO_PARTS = (
    "the training data is a stream, whose samples for evaluation one process generates; evaluate where='driver' or "
    "'aside'"
)
ENDS = "held_out is evaluated as a whole, but a stream has no end; give arrays, shards, or a list of samples"


def _seed(key: int, partition: int) -> int:
    return keyed_integer(key, "stream", partition) >> 31


def _take_samples(make: Make, partition: int, seed: int, count: int) -> list[Sample]:
    """Return the first ``count`` samples of a partition, or fewer if its iterable ends."""
    with preserved_generators([]) as generators:
        seed_all(generators, seed)
        try:
            return list(islice(iter(make(partition, seed)), count))
        except Exception as error:
            raise RunFailed(f"the stream of partition {partition} fails: {describe_error(error)}") from error


def _encode_head(make: Make, piece: int) -> bytes:
    """Encode the first samples of partition 0; refuse a stream whose samples do not follow from the seed.

    ``piece`` is the number that :func:`map_in_processes` passes.
    """
    first, repeated, other = (_encode_samples(make, _HEAD, _seed(key, 0)) for key in (0, 0, 1))
    if first != repeated:
        raise BadInput(f"the stream returned different samples when called again with the same seed; {_ADVICE}")
    if first == other:
        raise BadInput(
            f"the stream returns the same samples under every seed, so every step would use the same; {_ADVICE}"
        )
    return first


def _encode_samples(make: Make, count: int, seed: int) -> bytes:
    """Encode the first ``count`` samples of partition 0 as MessagePack, because no data from processes is unpickled."""
    try:
        samples = _take_samples(make, 0, seed, count)
    except RunFailed as error:
        raise BadInput(str(error)) from None
    if not samples:
        raise BadInput("the stream of partition 0 has no samples")
    return msgspec.msgpack.encode([_as_plain(sample) for sample in samples])


def _as_plain(value: Any) -> object:
    """Return a sample as plain data: tuples as lists, other values as a mapping whose keys show their kind."""
    if isinstance(value, Mapping):
        return {"keys": list(value), "values": [_as_plain(element) for element in value.values()]}
    if isinstance(value, (tuple, list)):
        elements = [_as_plain(element) for element in value]
        return elements if isinstance(value, tuple) else {"elements": elements}
    if type(value) in (bool, int, float, str):  # not NumPy's float64, a subclass of float
        return {"value": value}
    try:
        if hasattr(value, "detach"):
            return _tensor_as_plain(value)
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError):
        array = np.array(None)
    if array.dtype.kind not in "biuf":
        raise BadInput(
            f"samples of a stream must be made of arrays, tensors and numbers, got {type(value).__name__}; convert it "
            "in make"
        )
    return {"dtype": array.dtype.str, "shape": array.shape, "body": array.tobytes()}


def _tensor_as_plain(tensor: Any) -> object:
    """Return a tensor as plain data, by its bytes, as NumPy lacks some of its types; raise TypeError for others."""
    import torch

    if tensor.is_complex() or tensor.is_quantized or tensor.layout != torch.strided:
        raise TypeError("no numbers one by one")
    numbers = tensor.detach().cpu().contiguous().reshape(-1)
    body = numbers.view(torch.uint8).numpy().tobytes()
    return {"tensor": str(tensor.dtype).removeprefix("torch."), "shape": tuple(tensor.shape), "body": body}


def _decode(encoded: bytes) -> list[Sample]:
    return list(_from_plain(msgspec.msgpack.decode(encoded)))


def _from_plain(plain: Any) -> Any:
    if isinstance(plain, list):
        return tuple(map(_from_plain, plain))
    if "keys" in plain:
        return dict(zip(plain["keys"], map(_from_plain, plain["values"]), strict=True))
    if "value" in plain:
        return plain["value"]
    if "elements" in plain:
        return list(map(_from_plain, plain["elements"]))
    body = bytearray(plain["body"])
    if "tensor" in plain:
        import torch

        numbers = torch.from_numpy(np.frombuffer(body, dtype=np.uint8))
        return numbers.view(getattr(torch, plain["tensor"])).reshape(plain["shape"])
    return np.frombuffer(body, dtype=np.dtype(plain["dtype"])).reshape(plain["shape"])
