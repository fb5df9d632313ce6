"""Rounds: every worker works on the same version; the step is taken at the reply that makes it possible."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import isnan
from typing import Any, Literal

import numpy as np

from anyk.checks import typed
from anyk.codes import Code, DracoCode, HeterogeneousCode, Method, Selection
from anyk.codes.byzantine import ByzantineDecoder
from anyk.codes.decoders import EXACT, METHODS, Decoder, Floats, LeastSquaresDecoder, SetDecoder, method
from anyk.errors import BadInput
from anyk.protocol import (
    Alarm,
    Cancel,
    CancelMode,
    Chunk,
    Combine,
    Command,
    Dispatch,
    Event,
    Failed,
    Fleet,
    Joined,
    Lost,
    MessageProjected,
    Note,
    ProjectMessage,
    Reply,
    SetAlarm,
    Stop,
    Task,
    slot_names,
)
from anyk.strategies.coded import OfCode
from anyk.strategies.wait import Count, Decodable, WaitLike, wait_rule

Scaling = Literal["none", "marginal", "conditional"]
_ROUNDS_SEEN = 10  # rounds that an adapting deadline looks back on
_RETRIES = 2  # how often a worker whose reply was unusable is asked again, once nobody else is left to wait for


def rescale(decoding: Selection, factor: float, mean: float | None = None) -> Selection:
    """A decoding with all weights times ``factor``; ``mean`` is the mean coefficient ``sum(a B) / m``.

    With ``p = a B`` the residual before is ``R^2 = p.p / m - 2 mean + 1``, after scaling by f
    ``f^2 (R^2 - 1 + 2 mean) - 2 f mean + 1``. For least squares p is the projection of the all-ones vector and the
    mean ``1 - R^2``, which is taken where none is given.
    """
    if factor == 1.0:
        return decoding
    square = decoding.residual**2
    c = 1.0 - square if mean is None else mean
    residual = max(factor * factor * (square - 1.0 + 2.0 * c) - 2.0 * factor * c + 1.0, 0.0) ** 0.5
    return Selection(
        decoding.replies, [weight * factor for weight in decoding.weights], residual, decoding.gain * factor
    )


@typed
class CodedRounds(OfCode):
    """Synchronous rounds under any code, ended by any wait rule.

    Each round all workers get the newest version. When ``wait`` is met the replies are decoded, the model steps, the
    rest is cancelled (``cancel="preempt"``: interrupted; ``"discard"``: left to finish in vain) and the next round
    begins. ``wait`` (default: until decodable) is a number of replies, ``"decodable"``, a residual ``"5%"``, a
    deadline ``"0.5s"``, combinations with ``|`` and ``&``, a :class:`~anyk.strategies.wait.Wait` or a predicate; the
    round also ends as soon as the sum is exact. Stopped early this is ErasureHead's approximate gradient coding
    (Wang, Charles and Papailiopoulos 2019), of an uncoded sum it is K-sync SGD.

    A code that is meant to be approximate waits, by default, for all but a tenth of the workers. ``decoder`` is how
    the replies are decoded, if not in the code's ``own`` way: ``exact``, ``least-squares``, ``one-step``,
    ``algorithmic`` or a :class:`~anyk.codes.Method`.

    ``scaling`` corrects a sum with partitions missing: ``conditional`` divides by the mean coefficient (the covered
    share, of a repetition code), given who replied (unbiased when workers and groups are alike, exact when complete);
    ``marginal`` always divides by the expected share ``1 - p`` (needs a repetition code and a number in ``wait``);
    ``none`` leaves it. Left out it is conditional, but none for codes and decoders that are unbiased as they are.

    ``batch``: of each partition a mini-batch of so many samples stands for all (0: all); replicas draw the same.
    ``models``: so many models are trained at once, one after another in turn, a round each.

    A code against Byzantine workers has each reply measured when it comes, and counts it then; a heterogeneous code
    learns from who was missing and gives out new coefficients now and then.

    A worker that joins in mid-round is given the round's work at once; one whose reply is unusable is set aside for
    the round. When nobody is left to wait for, it is asked again, twice; then the step is taken with what there is
    where the rule allows an approximation, else the run stops.

    >>> import anyk
    >>> CodedRounds(anyk.codes.FractionalRepetition(workers=30, load=3), wait=11).spec
    'frc:load=3,wait=11'
    """

    def __init__(
        self,
        code: Code,
        *,
        wait: WaitLike = None,
        scaling: Scaling | None = None,
        cancel: CancelMode = "preempt",
        decoder: str | Method = "own",
        batch: int = 0,
        models: int = 1,
    ) -> None:
        if models < 1:
            raise BadInput(f"models must be at least 1, got {models}")
        self.models = models
        self.slots = slot_names(models)
        self.code = self._given_code = code
        if batch < 0:
            raise BadInput(f"batch must be at least 1 sample (0: all of them), got {batch}")
        self.batch = batch
        self._method = method(decoder)
        own = self._method in (METHODS["own"], METHODS["exact"])
        if wait is None and code.approximate:
            wait = max(1, code.replies - max(1, code.replies // 10))
        rule = wait_rule(wait, replies=code.replies)
        self._default_scaling: Scaling = (
            "none" if (code.unbiased and own) or self._method == METHODS["one-step"] else "conditional"
        )
        scaling = scaling or self._default_scaling
        self._byzantine = isinstance(code, DracoCode)
        if self._byzantine and not (isinstance(rule, Decodable) and own):
            raise BadInput(
                f"'{code.spec}' finds Byzantine workers by its own decoder and waits until it has; "
                "leave out wait and decoder"
            )
        if code.blocks > 1 and not own:
            raise BadInput(f"'{code.spec}' has a decoder of its own only; leave out decoder")
        if self._method == METHODS["exact"] and rule.approximate:
            raise BadInput(f"decoder=exact takes no approximation, and wait={rule} may; leave out one of them")
        self.blocks = code.blocks
        self._given = str(rule)
        self.wait = rule if isinstance(rule, Decodable) else rule | Decodable()
        self.scaling = scaling
        self.cancel = cancel
        self._messages = code.messages
        if scaling not in ("none", "marginal", "conditional"):
            raise BadInput(f"scaling must be none, marginal or conditional, got {scaling!r}")
        if cancel not in ("preempt", "discard"):
            raise BadInput(f"cancel must be preempt or discard, got {cancel!r}")
        self._marginal: np.ndarray[Any, np.dtype[np.float64]] | None = None
        if scaling == "marginal":
            counts = self.wait.counts()
            if len(counts) != 1:
                raise BadInput(f"scaling=marginal needs one number of replies in wait, got wait={self._given}")
            self._marginal = 1.0 / code.expected_coefficients(counts[0])
        # the common rules, kept where they are fast: so many replies, or (more than there are) until decodable
        common = {Count: getattr(rule, "number", 0), Decodable: code.replies + 1}
        self._count: int | None = common.get(type(rule))
        # what changes:
        self.version = 0
        self._next = 0  # the next task's number
        self._first = 0  # the round's first task
        self._before = 0  # rounds of the run that this one goes on from
        self._present: set[int] = set()
        self._gone: set[int] = set()
        self._arrivals: list[float] = []  # of this round
        self._recent: tuple[float, ...] = ()  # seconds of the last rounds' replies, where the wait rule looks at them
        self._told = ""  # what the log has been told of an adapting deadline
        self._missed = [0] * code.workers  # how often a worker was not in when a step was taken
        self._learned: list[int] = []  # the same when the code last learned of it
        self._open: dict[int, int] = {}  # messages expected in this round (task x messages + chunk), and of whom
        self._measuring: dict[int, int] = {}  # tasks whose reply is being measured, and whose they are
        self._failures: dict[int, list[int]] = {}  # tasks of this round with unusable messages, by worker
        self._values: dict[int, float] = {}  # what replies were measured to be, under a code against Byzantine workers
        self._task_of: dict[int, int] = {}  # reply (worker x messages + message) -> task, in order of arrival
        self._began = 0.0
        self._now = 0.0
        self._decoder = self._fresh()

    @property
    def method(self) -> Method:
        """How replies are decoded."""
        return self._method

    def _fresh(self) -> Decoder:
        if self._method in (METHODS["own"], METHODS["exact"]):
            return self.code.decoder()
        if self._method == METHODS["least-squares"]:
            return LeastSquaresDecoder(self.code, self._method)
        return SetDecoder(self.code, self._method)

    # ------------------------------------------------------------------------------------------- what it is

    @property
    def spec(self) -> str:
        """The short form."""
        parts = [] if self._given == "decodable" else [f"wait={self._given}"]
        parts += [f"scaling={self.scaling}"] * (self.scaling != self._default_scaling)
        names = [name for name, known in METHODS.items() if known == self._method and name != "own"]
        parts += [f"decoder={name}" for name in names]
        parts += [f"batch={self.batch}"] * (self.batch > 0)
        parts += [f"models={self.models}"] * (self.models > 1)
        parts += [f"cancel={self.cancel}"] * (self.cancel != "preempt")
        return self._spec(parts)

    @cached_property
    def _tasks(self) -> tuple[tuple[Task, ...], ...]:
        """Of each model, each worker's."""
        c = self.code.messages
        rows = [(tuple(map(int, p)), tuple(map(float, w))) for p, w in self.code.rows]  # a user's may be arrays
        return tuple(
            tuple(
                tuple(Chunk(p, w, slot, batch=self.batch) for p, w in rows[i * c : i * c + c])
                for i in range(self.workers)
            )
            for slot in self.slots
        )

    # ------------------------------------------------------------------------------------------- waiting

    @property
    def replies(self) -> int:
        """Usable replies of this round so far."""
        return len(self._task_of)

    @property
    def decodable(self) -> bool:
        """Whether they give the exact sum."""
        return self._decoder.decodable

    @property
    def residual(self) -> float:
        """The residual if the step were taken now, before scaling."""
        return self._decoder.residual

    @property
    def elapsed(self) -> float:
        """Seconds since the round began."""
        return self._now - self._began

    @property
    def replied(self) -> tuple[int, ...]:
        """Who replied in this round, in order of arrival."""
        return tuple(reply // self.code.messages for reply in self._task_of)

    # ------------------------------------------------------------------------------------------- events

    def start(self, fleet: Fleet) -> Sequence[Command]:
        """See :class:`~anyk.protocol.Strategy`."""
        self.version = self._next = 0
        self._present, self._gone = set(fleet.present), set()
        self._now, self._before = fleet.time, fleet.rounds
        self._arrivals, self._recent, self._told = [], (), ""
        self._missed, self._learned = [0] * self.code.workers, []
        if self.code is not self._given_code:
            self._use_code(self._given_code)
        return self._begin()

    def on(self, event: Event) -> Sequence[Command]:
        """See :class:`~anyk.protocol.Strategy`."""
        if type(event) is Reply or type(event) is MessageProjected:
            now, worker, task, chunk, _ = event
            self._now = now
            messages = self._messages
            if type(event) is MessageProjected:
                if self._measuring.pop(task, None) is None:
                    return ()
                assert isinstance(self._decoder, ByzantineDecoder)
                if not isnan(self._values.get(worker, 0.0)):  # who has once sent what is not finite has lied
                    self._values[worker] = event.value
                    self._decoder.measure(worker, event.value)
            elif self._open.pop(task if messages == 1 else task * messages + chunk, None) is None:
                return ()  # late, or told twice
            elif self._byzantine:
                self._measuring[task] = worker
                return (ProjectMessage(worker, task, chunk),)
            reply = worker if messages == 1 else worker * messages + chunk
            task_of = self._task_of
            if reply in task_of:  # asked again for a sister message; this one is in already
                return self._waited()
            task_of[reply] = task
            if self.wait.remembers:
                self._arrivals.append(now - self._began)
            count = self._count
            if self._decoder.add(reply) or (len(task_of) >= count if count else self.wait.enough(self)):
                return self._step()
            return () if self._open else self._waited()
        self._now = event[0]
        if isinstance(event, Failed):
            if self._open.pop(event.task * self._messages + event.chunk, None) is None:
                return ()
            tasks = self._failures.setdefault(event.worker, [])
            if event.task not in tasks:  # two messages of one task are one failure
                tasks.append(event.task)
            if self._byzantine and event.reason.startswith("not finite"):  # no honest worker says that
                assert isinstance(self._decoder, ByzantineDecoder)
                self._values[event.worker] = float("nan")
                self._decoder.measure(event.worker, float("nan"))
                if self._decoder.add(event.worker):
                    return self._step()
        elif isinstance(event, Lost):
            self._present.discard(event.worker)
            self._open = {message: worker for message, worker in self._open.items() if worker != event.worker}
            if event.gone:
                self._gone.add(event.worker)
        elif isinstance(event, Joined):
            if event.worker in self._present:
                return ()  # told twice that it is here
            self._present.add(event.worker)
            self._gone.discard(event.worker)
            measured = event.worker in self._measuring.values()
            again = [] if measured or self._has_replied(event.worker) else self._dispatch((event.worker,))
            if again:
                return again
        elif isinstance(event, Alarm) and self.wait.enough(self):
            return self._step()
        return self._waited()

    def _waited(self) -> Sequence[Command]:
        """What follows when no more of this round is expected; nothing while there is."""
        return () if self._open or self._measuring else self._stuck()

    def _has_replied(self, worker: int) -> bool:
        messages = self.code.messages
        return all(worker * messages + c in self._task_of for c in range(messages))

    def _dispatch(self, workers: Sequence[int]) -> list[Command]:
        task, self._next = self._next, self._next + len(workers)
        self._expect(task, workers)
        tasks = self._tasks[self.version % self.models]
        chunks = tasks if len(workers) == len(tasks) else tuple(tasks[i] for i in workers)
        # of several models the versions do not count the rounds
        return [Dispatch(task, workers, chunks, None if self.models == 1 else self._before + self.version)]

    def _expect(self, first: int, workers: Sequence[int]) -> None:
        """Expect the messages of the tasks that workers are given, numbered from ``first`` on."""
        messages = self._messages
        if messages == 1:
            self._open.update(zip(range(first, first + len(workers)), workers, strict=True))
            return
        for task, worker in enumerate(workers, first):
            self._open.update(dict.fromkeys(range(task * messages, (task + 1) * messages), worker))

    def _begin(self) -> list[Command]:
        self._first = self._next
        self._task_of = {}
        self._values, self._measuring = {}, {}
        if self._failures:
            self._failures = {}
        self._open = {}
        self._decoder = self._fresh()
        self._began = self._now
        n = self.code.workers
        if len(self._gone) == n:
            why = f"step {self.version} cannot be taken under '{self.spec}': every worker has been given up"
            return [Stop(why, failed=True)]
        commands: list[Command] = []
        if self._present:
            commands = self._dispatch(range(n) if len(self._present) == n else tuple(sorted(self._present)))
        if self._count is not None:
            return commands
        if self.wait.remembers:
            self._arrivals = []
            commands += self._tell()
        for number, seconds in enumerate(self.wait.deadlines(self)):
            commands.append(SetAlarm(f"wait {number}", self._now + seconds))
        return commands

    def _tell(self) -> list[Command]:
        """Say in the log whether an adapting deadline is in force."""
        what = "adapts" if self.wait.deadlines(self) else "waits for all until enough arrivals have been seen"
        if what == self._told:
            return []
        self._told = what
        return [Note(f"wait={self._given} {what}")]

    @property
    def recent(self) -> Sequence[float]:
        """Seconds from a round's start to each reply, of the last rounds."""
        return self._recent

    def _step(self) -> list[Command]:
        replies, weights, residual, gain = self._scaled(self._decoder.select())
        task_of, messages = self._task_of, self._messages
        if messages == 1:
            used = [(task_of[reply], 0) for reply in replies]
        else:
            used = [(task_of[reply], reply % messages) for reply in replies]
        combine = self._combined(used, Selection(replies, weights, residual, gain))
        if self.wait.remembers:  # who was cut off took at least as long as the round
            late = [self._now - self._began] * (self.code.replies - len(self._arrivals))
            self._recent = (*self._recent, *self._arrivals, *late)[-_ROUNDS_SEEN * self.code.replies :]
        self.version += 1
        if isinstance(self.code, HeterogeneousCode):
            self._learn()
        return [combine, Cancel(range(self._first, self._next), self.cancel), *self._begin()]

    def _combined(self, used: Sequence[tuple[int, int]], decoding: Selection) -> Command:
        """What is made of the messages used."""
        slot = self.slots[self.version % self.models]
        return Combine(slot, used, decoding.weights, "all", 1.0, decoding.residual, decoding.gain)

    def _scaled(self, decoding: Selection) -> Selection:
        if self._marginal is not None:
            first = float(self._marginal[0])
            if (self._marginal == first).all():
                return rescale(decoding, first)
            weights = np.zeros(self.code.replies)  # groups of different size: each reply by its own group's chance
            for reply, weight in zip(decoding.replies, decoding.weights, strict=True):
                weights[reply] = weight * self._marginal[self.code.rows[reply][0][0]]
            judged = self.code.judge(weights)
            return Selection(decoding.replies, weights[decoding.replies].tolist(), judged.residual, judged.gain)
        if self.scaling == "conditional" and decoding.residual > EXACT and self.blocks == 1:
            weights = np.array(decoding.weights)
            mean = float(weights @ self._row_sums[decoding.replies]) / self.code.partitions
            if mean > 0:
                return rescale(decoding, 1.0 / mean, mean)
        return decoding

    @cached_property
    def _row_sums(self) -> Floats:
        return np.asarray(self.code.encoding.sum(axis=1), dtype=np.float64).ravel()

    def _learn(self) -> None:
        """Count who was not in, and every so many steps give the code what that says."""
        assert isinstance(self.code, HeterogeneousCode)
        for worker in range(self.workers):
            self._missed[worker] += worker not in self._task_of
        if self.code.relearn and self.version % self.code.relearn == 0:
            self._recode()

    def _recode(self) -> None:
        assert isinstance(self.code, HeterogeneousCode)
        self._learned = list(self._missed)
        self._use_code(self.code.relearned(self._missed, self.version))

    def _use_code(self, code: Code) -> None:
        self.code = code
        for name in ("_tasks", "_row_sums"):
            self.__dict__.pop(name, None)

    def _stuck(self) -> list[Command]:
        """Nobody is left to wait for in this round, and there is not enough."""
        again = [w for w, tasks in sorted(self._failures.items()) if len(tasks) <= _RETRIES and w in self._present]
        again = [worker for worker in again if not self._has_replied(worker)]
        if again:
            return self._dispatch(tuple(again))
        if len(self._present) + len(self._gone) < self.workers:
            return []  # someone may still join
        if self._task_of and self.wait.approximate:
            return self._step()
        why = []
        if self._failures:
            why.append("unusable replies from " + ", ".join(f"worker {w}" for w in sorted(self._failures)))
        if self._byzantine and not self._failures:
            why.append("more workers lie than the code finds out, or replies are less exact than float64")
        if self._gone:
            why.append("given up: " + ", ".join(f"worker {w}" for w in sorted(self._gone)))
        reasons = f" ({'; '.join(why)})" if why else ""
        return [
            Stop(
                f"step {self.version} cannot be taken under '{self.spec}': {self.replies} of {self.code.replies} "
                f"replies do not give the sum{reasons}; a code that tolerates more stragglers, or wait=…, goes on",
                failed=True,
            )
        ]

    # ------------------------------------------------------------------------------------------- state

    def state(self) -> dict[str, Any]:
        """See :class:`~anyk.protocol.Strategy`."""
        return {
            "version": self.version,
            "next": self._next,
            "first": self._first,
            "before": self._before,
            "present": sorted(self._present),
            "gone": sorted(self._gone),
            "open": list(self._open.items()),
            "measuring": list(self._measuring.items()),
            "failures": sorted(self._failures.items()),
            "replies": list(self._task_of.items()),
            "began": self._began,
            "now": self._now,
            "arrivals": list(self._arrivals),
            "recent": list(self._recent),
            "told": self._told,
            "missed": list(self._missed),
            "learned": list(self._learned),
            "values": list(self._values.items()),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """See :class:`~anyk.protocol.Strategy`."""
        self.version, self._next, self._first = state["version"], state["next"], state["first"]
        self._before = state["before"]
        self._present, self._gone, self._open = set(state["present"]), set(state["gone"]), dict(state["open"])
        self._measuring = dict(state["measuring"])
        self._failures = dict(state["failures"])
        self._task_of = dict(state["replies"])
        self._began, self._now = state["began"], state["now"]
        self._arrivals, self._recent, self._told = list(state["arrivals"]), tuple(state["recent"]), state["told"]
        self._missed, self._learned, self._values = list(state["missed"]), list(state["learned"]), dict(state["values"])
        if isinstance(self.code, HeterogeneousCode) and self.code.relearn and self.version >= self.code.relearn:
            self._use_code(self.code.relearned(self._learned, self.version - self.version % self.code.relearn))
        self._decoder = self._fresh()
        if isinstance(self._decoder, ByzantineDecoder):
            for worker, value in self._values.items():
                self._decoder.measure(worker, value)
                self._decoder.add(worker)
            return
        for reply in self._task_of:
            self._decoder.add(reply)
