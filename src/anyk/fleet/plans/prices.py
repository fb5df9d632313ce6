"""Costs of a strategy besides seconds: vectors sent in a step, and vectors stored by a worker."""

from __future__ import annotations

import json
from typing import NamedTuple

from anyk.compression import compressor
from anyk.optimizers import optimizer as build_optimizer
from anyk.protocol import Strategy
from anyk.runs.log.runlog import RunLog
from anyk.specs import parse

_OWN = 2  # vectors that a worker needs to compute a message: the model, and the sum of gradients


class VectorSize(NamedTuple):
    """The length of a vector and the bytes of each number; savings of compressors hardly depend on the length."""

    length: int = 1_000_000
    itemsize: int = 8

    @property
    def bytes(self) -> int:
        """Bytes of a vector."""
        return self.length * self.itemsize

    def compressed(self, by: str) -> float:
        """Return the size of a compressed vector as a share of the original."""
        return compressor(by).size(self.length, self.itemsize) / self.bytes


USUAL = VectorSize()


def vectors_sent(log: RunLog, blocks: int, size: VectorSize) -> float | None:
    """Return the vectors that workers receive and send for a step, by the log of a run; None without steps.

    Every task counts with the models that it reads, from the driver or from neighbours, and with its message, as if
    none were cancelled. The first tasks of a run do not count, because not all workers are given new ones at an
    asynchronous step.
    """
    steps = log.rows("SELECT max(version) FROM updates")[0][0]
    if not steps:
        return None
    first = 1 if steps > 1 else 0
    rows = log.rows(
        f"SELECT c.task, c.worker, w.slot, w.mix, w.share, w.compress FROM chunks c JOIN works w ON w.id = c.work "
        f"WHERE c.version BETWEEN {first} AND {steps - 1}"
    )
    total, read = 0.0, set()
    for task, worker, slot, mix, share, by in rows:
        neighbours = json.loads(mix or "[]")
        total += sum(other != worker for other, *_ in neighbours)  # its own model is there already
        if neighbours and not share:
            continue
        read.add((task, slot))
        total += 1.0 if neighbours else (size.compressed(by) if by else 1.0) / blocks
    return float((total + len(read)) / (steps - first))


def vectors_held(strategy: Strategy, state: int) -> int:
    """Return the vectors that a worker stores at most: to compute, for its own model and optimiser, and as feedback.

    ``state``: vectors of the run's optimiser.

    >>> import anyk
    >>> [vectors_held(anyk.strategy(spec, workers=4), state=1) for spec in ("uncoded", "pasgd", "pasgd:inner=adamw")]
    [2, 5, 6]
    """
    vectors, inner = _OWN, strategy.layout.inner
    if inner is not None:
        vectors += _OWN + (build_optimizer(inner, lr=1.0).vectors if inner else state)
    name, values = parse(strategy.spec)
    return vectors + (name == "compressed" and compressor(values["by"].strip("()")).feedback)
