"""Agreement of messages: workers with the same samples and the same model must send the same numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from anyk.base.arrays import Vector
from anyk.base.errors import RunFailed
from anyk.base.keyed import array_digest
from anyk.clusters.contract import Cluster
from anyk.clusters.steps import Place
from anyk.clusters.store import alike
from anyk.protocol import Chunk, Event, Failed, Layout, Lost, Reply
from anyk.runs.engine.ledger import Ledger
from anyk.runs.log.schema import Version

DIFFERS = "differs from"  # the first words of the reason when a message contradicts others
WRONG = "wrong numbers"  # the kind of the log's notes about workers that were proved wrong
ADVICE = (
    "random numbers of a gradient must come from the global generators of torch, NumPy or Python, which are seeded "
    "alike on all workers; or use a strategy without replicas, such as uncoded"
)
_STRIKES = 3  # wrong messages after which a worker is given up
_DEPENDENT = 1e-9  # residual of coefficients below which a message follows from others
_ROUNDING = 100.0  # rounding errors of a combination may be this many times eps times the sum of its terms' norms


Messages = list[tuple[int, Place]]  # the worker and the key of each, its task and chunk


class _Sent(NamedTuple):
    """A message in doubt: its sender, its digest, and its numbers unless the run was resumed since."""

    worker: int
    digest: int
    vector: Vector | None = None


@dataclass
class _Doubt:
    """Messages of the same work, at least one wrong; ``own``: each worker is compared with itself only."""

    own: bool
    sent: list[_Sent] = field(default_factory=list)


class Agreement:
    """Compares the messages of a model version before the strategy receives them.

    Replicas (equal chunks) must send equal messages: equal bits on one machine, else numbers that differ by at most
    ``tolerance`` of their norm. When more than ``layout.spanning`` messages of other codes have arrived, each further
    one must be the combination of the others that its coefficients are. Messages that contradict each other all fail:
    a third replica, or what their workers send when they are asked again, shows which was wrong. A worker that
    was wrong three times is given up.

    Local steps, compressed messages and messages on request are not compared.
    """

    def __init__(
        self,
        layout: Layout,
        cluster: Cluster,
        ledger: Ledger,
        tolerance: float,
        note: Callable[[float, str, str], None] | None,
    ) -> None:
        self._spanning, self._cluster, self._ledger, self._note = layout.spanning, cluster, ledger, note
        self._partitions, self._tolerance = layout.partitions, tolerance
        self._sent: dict[Version, dict[Chunk, Messages]] = {}
        self._doubts: dict[Version, dict[Chunk, _Doubt]] = {}
        self._failed: set[Place] = set()
        self.wrong: Counter[int] = Counter()  # messages that were proved wrong, by worker

    def take(self, reply: Reply) -> Sequence[Event]:
        """Return the strategy's events for a message that arrived: the reply, or failures instead of it."""
        key = reply.task, reply.chunk
        chunk = self._ledger.chunk(*key)
        version = chunk.slot, self._ledger.version(chunk.slot, reply.task)
        if chunk.steps or chunk.compress or chunk.send != "done":
            return (reply,)
        if version not in self._sent:
            self._forget(version)
        sent, doubts = self._sent[version], self._doubts[version]
        lost: list[Event] = []
        if chunk in doubts:
            settled, events = self._settle(doubts[chunk], reply)
            if not settled:
                return events
            del doubts[chunk]
            lost = events
        counts = self._ledger.counts
        replicas = [replica for replica in sent.get(chunk, ()) if self._ledger.arrived(*replica[1])]
        if replicas:
            counts.compared += 1 + (len(replicas) == 1)
        if replicas and not self._cluster.store.alike(replicas[0][1], key, self._tolerance):
            if len(replicas) > 1:
                lost += self._convict(reply.time, reply.worker, f"workers {_and([w for w, _ in replicas])}")
                return (self._fail(reply.time, reply.worker, key, [replicas[0][0]]), *lost)
            return (*self._doubt(version, reply.time, [*replicas, (reply.worker, key)], own=False), *lost)
        sent.setdefault(chunk, []).append((reply.worker, key))
        if 0 < self._spanning < len(sent) and (contradicting := self._contradicting(sent, chunk, key)):
            return (*self._doubt(version, reply.time, contradicting, own=True), *lost)
        return (reply, *lost)

    def _settle(self, doubt: _Doubt, reply: Reply) -> tuple[bool, list[Event]]:
        """Compare a message of work in doubt with the earlier ones.

        Return whether it shows which were wrong, and the events: losses of workers, or else the message's failure.
        """
        key = reply.task, reply.chunk
        message = self._read(reply.worker, key)
        equal = [self._alike(message, other) for other in doubt.sent]
        others = sorted({o.worker for o, same in zip(doubt.sent, equal, strict=True) if same} - {reply.worker})
        wrong = {o.worker for o, same in zip(doubt.sent, equal, strict=True) if not same}
        if doubt.own:
            wrong &= {reply.worker}
        elif not others:
            unsteady = reply.worker in wrong  # also its own two messages differ
            doubt.sent.append(message)
            return False, [self._fail(reply.time, reply.worker, key, [o.worker for o in doubt.sent], unsteady)]
        confirmed = f"workers {_and([*others, reply.worker])}" if others else "its own second message"
        return True, [event for worker in sorted(wrong) for event in self._convict(reply.time, worker, confirmed)]

    def check(self, messages: Sequence[Place], strategy: str, step: int) -> None:
        """Raise :class:`~anyk.RunFailed` if a step uses a message that was found to contradict another."""
        wrong = self._failed.intersection(messages)
        if wrong:
            raise RunFailed(
                f"step {step}: two workers sent different messages of the same sum, and '{strategy}' cannot do "
                "without a message that has been counted; a code in rounds, such as frc, can"
            )

    # ------------------------------------------------------------------------------------------- comparing

    def _alike(self, one: _Sent, other: _Sent) -> bool:
        if one.vector is None or other.vector is None:
            return one.digest == other.digest
        return alike(one.vector, other.vector, self._tolerance)

    def _contradicting(self, sent: dict[Chunk, Messages], chunk: Chunk, key: Place) -> Messages:
        """Return this message and the others that it contradicts; none if they agree or are too few."""
        arrived = {
            other: message
            for other, messages in sent.items()
            for message in messages
            if self._ledger.arrived(*message[1])
        }
        this_message = arrived.pop(chunk)
        others = [(other, *message) for other, message in arrived.items()]
        if len(others) < self._spanning:
            return []
        rows = np.array([self._row(other) for other, _, _ in others])
        row = self._row(chunk)
        weights = np.linalg.lstsq(rows.T, row, rcond=None)[0]
        if np.linalg.norm(weights @ rows - row) > _DEPENDENT * np.linalg.norm(row):
            return []
        terms = [
            (weight, worker, other_key)
            for weight, (_, worker, other_key) in zip(weights, others, strict=True)
            if abs(weight) > _DEPENDENT
        ]
        combination = self._cluster.store.combine(
            [other_key for _, _, other_key in terms], [float(weight) for weight, _, _ in terms]
        )
        self._ledger.counts.compared += 1 + len(terms)
        apart = np.linalg.norm(combination - self._cluster.store.combine([key], [1.0]))
        message = self._message(key)
        norms = [abs(weight) * float(np.linalg.norm(self._message(other_key))) for weight, _, other_key in terms]
        rounding = max(_ROUNDING * float(np.finfo(message.dtype).eps), self._tolerance)
        if apart <= rounding * (sum(norms) + float(np.linalg.norm(message))):
            return []
        return [*((worker, other_key) for _, worker, other_key in terms), this_message]

    def _row(self, chunk: Chunk) -> Vector:
        row = np.zeros(self._partitions)
        row[list(chunk.partitions)] = chunk.coefficients
        return row

    def _message(self, key: Place) -> Vector:
        return self._cluster.store.message(key)

    def _read(self, worker: int, key: Place) -> _Sent:
        vector = np.array(self._message(key))
        return _Sent(worker, array_digest(vector), vector)

    # ------------------------------------------------------------------------------------------- consequences

    def _doubt(self, version: Version, time: float, messages: Messages, *, own: bool) -> Iterator[Event]:
        """Yield a failure for each of these contradictory messages, and record them as in doubt."""
        for worker, key in messages:
            chunk = self._ledger.chunk(*key)
            doubt = self._doubts[version].setdefault(chunk, _Doubt(own))
            doubt.sent.append(self._read(worker, key))
            self._sent[version].pop(chunk, None)
        for worker, key in messages:
            yield self._fail(time, worker, key, [other for other, _ in messages])

    def _fail(self, time: float, worker: int, key: Place, others: list[int], unsteady: bool = False) -> Failed:
        self._failed.add(key)
        self._ledger.counts.differed += 1
        named = sorted(set(others) - {worker})
        what = f"what worker{'s' * (len(named) > 1)} {_and(named)} sent" if named else "its earlier message"
        advice = f", and from its earlier message: {ADVICE}" if unsteady else ""
        return Failed(time, worker, *key, f"{DIFFERS} {what} of the same samples at the same model{advice}")

    def _convict(self, time: float, worker: int, others: str) -> list[Event]:
        """Note a wrong message of a worker; give the worker up if it has sent too many."""
        self.wrong[worker] += 1
        if self._note is not None:
            self._note(time, WRONG, f"a message of worker {worker} was wrong: {others} agree on other numbers")
        if self.wrong[worker] < _STRIKES:
            return []
        self._cluster.abandon(worker)
        return [Lost(time, worker, f"{_STRIKES} messages with wrong numbers", gone=True)]

    def _forget(self, version: Version) -> None:
        """Start a version; forget the earlier ones of its slot."""
        slot, number = version
        for by_version in (self._sent, self._doubts):
            for old in [key for key in by_version if key[0] == slot and key[1] < number]:
                del by_version[old]
        self._sent[version], self._doubts[version] = {}, {}
        self._failed = {key for key in self._failed if self._ledger.batch(key[0]) is not None}

    # ------------------------------------------------------------------------------------------- checkpoints

    def state(self) -> list[Any]:
        """Return the strikes and the messages in doubt, as plain data."""
        doubts = [
            [slot, number, chunk, doubt.own, [[message.worker, message.digest] for message in doubt.sent]]
            for (slot, number), chunks in self._doubts.items()
            for chunk, doubt in chunks.items()
        ]
        return [list(self.wrong.items()), doubts]

    def restore(self, state: list[Any]) -> None:
        """Continue from :meth:`state`, with the messages that the ledger has."""
        self.wrong = Counter(dict(state[0]))
        for key, worker in self._ledger.messages():
            chunk = self._ledger.chunk(*key)
            version = chunk.slot, self._ledger.version(chunk.slot, key[0])
            if version not in self._sent:
                self._forget(version)
            self._sent[version].setdefault(chunk, []).append((worker, key))
        for slot, number, chunk, own, sent in state[1]:
            if (slot, number) not in self._doubts:
                self._forget((slot, number))
            doubt = _Doubt(own, [_Sent(worker, digest) for worker, digest in sent])
            self._doubts[slot, number][Chunk.from_plain(chunk)] = doubt


def tolerance_of(cluster: Cluster, tolerance: float, dtype: Any) -> float:
    """Return the relative difference that rounding may cause between replicas; 0: their bits are equal.

    ``tolerance``: the problem's own. Between machines libraries may round differently.
    """
    one_machine = cluster.virtual or cluster.workers_here
    return tolerance if one_machine else max(tolerance, float(np.finfo(dtype).eps) ** 0.5)


def _and(workers: Sequence[int]) -> str:
    names = [str(worker) for worker in sorted(set(workers))]
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
