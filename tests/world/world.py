"""A run of the real driver, cluster and workers in one thread, on a virtual clock, under a seeded scheduler."""

from __future__ import annotations

import contextlib
import json
import random
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, NoReturn
from unittest import mock

import numpy as np

import anyk
from anyk.base import keyed
from anyk.clusters import Cluster, Mpi, Nodes, Ray
from anyk.clusters.messages import Messages
from anyk.clusters.nodes import hub
from anyk.clusters.processes import Processes, memory
from anyk.clusters.remote.handles import Notice
from anyk.clusters.remote.losses import LossUnknown, Question
from anyk.optimizers import GD
from anyk.runs import Driver
from anyk.testing import Squares
from strategy_schedules import built

from . import auditors, system
from .broken import Broken
from .choices import Choices, Deviations
from .fake_mpi import Program
from .fleet import Fleet
from .kernel import Deadlock, Endless, Kernel, SocketEnd

STRATEGIES = (
    "uncoded", "frc:load=2", "cyclic:stragglers=1", "k-sync:k=3", "k-batch-sync:k=4", "async", "k-async:k=2",
    "k-batch-async:k=3", "uncoded:wait=3,cancel=discard", "frc:load=2,cancel=discard", "nested:stragglers=1",
    "progress:load=2", "anytime:deadline=0.02,parts=2", "tree:children=2", "pasgd:tau=2", "diloco:tau=2",
    "dpsgd:graph=ring", "ad-psgd:tau=2", "easgd:tau=2", "fedbuff:tau=2,k=3", "uncoded:models=2",
    "hierarchical:groups=2,tau=2,every=3", "compressed:of=(k-sync:k=4),by=(top-k:share=0.5)", "comm-efficient",
    "uncoded:wait=3,snapshot=3", "frc:load=2,check=1", "cyclic:stragglers=2,check=1", "uncoded:fewest=2",
    "frc:stragglers=1,fewest=2", "uncoded:wait=0.75n,fewest=2",
)  # fmt: skip
FAMILIES = (
    "kill worker", "stop worker", "crash", "nan", "wrong numbers", "kill helper", "stop helper", "no fork", "no memory",
    "stop driver", "kill driver", "checkpoint", "question", "lose worker", "freeze worker", "half open", "clock jump",
    "interrupt", "drain",
)  # fmt: skip
OF_NODES = (
    "kill node", "stop node", "link down", "link slow", "link reset", "changed bytes", "stranger", "other version",
    "second node",
)  # fmt: skip
ENDINGS = ("kill driver", "power loss", "interrupt")  # faults that end the driver
NOT_MPI = ("kill helper", "stop helper", "no fork", "no memory", "half open", "lose worker", "drain")
SYSTEM = ("kill helper", "stop helper", "no fork", "no memory", "half open")  # only of the processes cluster
TOLERANT = (  # strategies that make progress although one worker never answers, and does not end
    "frc:load=2", "cyclic:stragglers=1", "k-sync:k=3", "async", "k-async:k=2", "k-batch-async:k=3",
    "uncoded:wait=3,cancel=discard", "frc:load=2,cancel=discard", "anytime:deadline=0.02,parts=2", "fedbuff:tau=2,k=3",
)  # fmt: skip
SLICED = (  # strategies whose vectors may lie in slices
    "uncoded", "frc:load=2", "k-sync:k=3", "async", "k-async:k=2", "uncoded:wait=3,cancel=discard",
    "frc:load=2,cancel=discard", "uncoded:wait=3,snapshot=3", "frc:load=2,check=1", "uncoded:models=2",
)  # fmt: skip
_OURS = ("helper", "worker")
_FAULTS = 6  # the most faults of a run
_DURATIONS = (1.0, 0.05, 4.0, 20.0, 100.0)  # how many times as long as usual a gradient takes
_CRASHES = (1, 2, 6)  # times in a row that a worker crashes, or sends NaN
_STOPS = (0.003, 0.05, 1.0, 5.0)  # seconds that a stopped process stands still
_JUMPS = (0.05, 5.0, 200.0)  # seconds by which the clock jumps, as after a machine has slept
_RARER = 5  # how many times as rare as reversed replies it is that the driver waits for one reply more
_AWAY = 2.0  # seconds that a drained worker stays away
LONGEST = {"processes": 40_000, "ray": 40_000, "mpi": 40_000, "nodes": 100_000, "folder": 200_000}  # calls of a run
_OUT = (2.0, 8.0, 45.0)  # seconds that a machine is stopped, or its link down
_SLICE = 24  # bytes of a slice, and so of a piece
_PIECES = (1 << 20, 256, 24)  # bytes of a piece in which vectors are read
_SILENCE = 200.0  # seconds after which a helper program that stands still has been replaced
# the ways in which a run may fail, and the faults of which at least one must have occurred
_EXPLAINED = {
    "no room for": ("no memory",),  # shared memory cannot be allocated
    # five helpers have ended
    "times within 60 s, and the workers with it": ("kill helper", "half open", "stop helper"),
    # the clock is past the time that workers have, or whoever is to report is stopped
    "did not load their partitions": ("clock jump", "stop helper", "stop worker", "freeze worker"),
    "did not start": ("lose worker", "crash"),  # given up before it was ready
    # workers are given up, or were asked again twice in vain
    "cannot be taken under": ("lose worker", "crash", "nan", "wrong numbers", "changed bytes"),
    "most replies": ("nan", "changed bytes"),
    "does not match the driver's digests": ("changed bytes",),
    "with its slice of the model": ("kill node", "link down", "other version", "no memory"),
    "a node was lost with a vector": ("kill node", "link down", "other version", "no memory"),
    "could not read a vector": ("changed bytes",),
    "have not joined within": ("kill node", "clock jump"),
    "cannot be decided": ("wrong numbers",),  # which of two replicas was wrong
}


@dataclass
class FolderOptions:
    """How a run writes its folder."""

    every: float  # seconds between checkpoints
    commits: float  # seconds between commits of the log
    evaluate: str | None
    rate: float  # probability of a fault at a call that writes


@dataclass
class Options:
    """The circumstances of a run, drawn from its seed."""

    cluster: str
    strategy: str
    workers: int
    steps: int
    families: tuple[str, ...]
    rate: float  # probability of a fault at a call
    preemption: float  # probability that another process goes on at a call
    tearing: float  # probability that a write is seen by halves
    capacity: int  # bytes that a pipe holds
    jitter: float  # probability that a gradient takes longer or shorter than usual
    most: int  # deviations of each stream
    reversal: float  # probability that two replies that have arrived together are taken in the other order
    buffers: int  # reply buffers of a worker
    folder: FolderOptions | None = None
    copies: int = 0  # of slices of models that nodes hold

    @classmethod
    def draw(cls, seed: int) -> Options:
        """Return the circumstances of a seed."""
        draw = random.Random(f"{seed} options")
        strategy = draw.choice(STRATEGIES)
        workers = 6 if strategy.startswith(("tree", "hierarchical")) else draw.choice((4, 4, 6, 8))
        cluster = draw.choice(("processes", "processes", "ray"))
        there = FAMILIES if cluster == "processes" else [family for family in FAMILIES if family not in SYSTEM]
        return cls(
            cluster,
            strategy,
            workers,
            draw.choice((6, 12, 25)),
            tuple(sorted(draw.sample(there, draw.choice((0, 1, 1, 2, 3))))),
            draw.choice((0.0005, 0.002, 0.01)),
            draw.choice((0.0, 0.01, 0.05, 0.2)),
            draw.choice((0.0, 0.0, 0.1, 0.5)),
            draw.choice((160, 1000, 65536)),
            draw.choice((0.0, 0.2, 0.7)),
            draw.choice((6, 20, 80)),
            draw.choice((0.0, 0.1, 0.5)),
            draw.choice((4, 4, 2, 1)),
        )


def on_mpi(seed: int) -> Options:
    """Return the circumstances of a seed, on MPI instead of another cluster."""
    options = Options.draw(seed)
    families = tuple(family for family in options.families if family not in NOT_MPI)
    return replace(options, cluster="mpi", families=families)


def on_nodes(seed: int) -> Options:
    """Return the circumstances of a seed, on three machines, with what may happen to these."""
    options = Options.draw(seed)
    draw = random.Random(f"{seed} nodes")
    others = draw.sample(options.families, min(len(options.families), draw.choice((0, 1, 2))))
    families = draw.sample(OF_NODES, draw.choice((0, 1, 1, 2))) + others
    if "wrong numbers" in others:  # they are found if a second message of the same sum arrives
        families = [family for family in families if family != "changed bytes"]
    if draw.random() < 0.3:
        options = replace(options, strategy=draw.choice(SLICED), copies=draw.choice((1, 2)))
    return replace(options, cluster="nodes", families=tuple(sorted(families)))


def in_folder(seed: int) -> Options:
    """Return the circumstances of a seed, with a folder, and faults that end the driver."""
    draw = random.Random(f"{seed} folder")
    options = Options.draw(seed)
    cluster = draw.choice(("processes", "processes", "ray", "mpi"))
    missing = {"processes": (), "ray": SYSTEM, "mpi": NOT_MPI}[cluster]
    others = [family for family in options.families if family not in (*missing, *ENDINGS, "checkpoint")]
    families = tuple(sorted(draw.sample(ENDINGS, draw.choice((1, 2, 3))) + others[: draw.choice((0, 1, 2))]))
    folder = FolderOptions(
        draw.choice((0.0, 0.003, 0.01, 0.05)),
        draw.choice((0.0, 0.002, 0.02, 0.15)),
        draw.choice((None, "every=3", "", "every=5,where=workers")),
        draw.choice((0.001, 0.005, 0.02)),
    )
    families += ("damage",) * (draw.random() < 0.25)
    return replace(options, cluster=cluster, families=families, folder=folder)


@dataclass
class Outcome:
    """The end of a run: its steps, what happened, and the sentence with which it failed, if it did."""

    steps: int
    calls: int
    explained: str | None
    deviations: Deviations
    happened: Counter[str] = field(default_factory=Counter)
    trace: list[tuple[Any, ...]] = field(default_factory=list)


class World:
    """One seed's run. :meth:`run` raises :class:`AssertionError` when an auditor finds something wrong."""

    def __init__(self, seed: int, *, options: Options | None = None, only: Deviations | None = None) -> None:
        self.seed, self.options = seed, options or Options.draw(seed)
        self.choices = Choices(seed, self.options.most, only)
        options = self.options
        self.kernel = kernel = Kernel(
            self.choices,
            preemption=options.preemption,
            capacity=options.capacity,
            longest=LONGEST["folder" if options.folder is not None else options.cluster] * max(options.copies, 1),
        )
        self.happened = Counter[str]()
        self._faults_left = _FAULTS
        draw = random.Random(f"{seed} fleet")
        lasting, pieces = draw.random() < 0.5, draw.choice(_PIECES)
        self.machines: Fleet | None = None
        if options.cluster == "nodes":
            self.machines = Fleet(kernel, lasting=lasting, pieces=_SLICE if options.copies else pieces)
        self._menu = self._faults()
        self._saved: tuple[str, dict[str, Any], dict[int, Any]] | None = None
        self._history: dict[tuple[str, int], Any] = {}
        self._driver: Driver | None = None
        self._save = self._busy = self._begun = False
        self._ask = False
        self._drained: int | None = None
        self._back = inf  # when those who were drained may return
        self._questions: list[Question] = []
        self._denied: Counter[str] = Counter()
        self._lost: set[int] = set()  # workers that never start again
        self._interrupts = self._raised = 0  # that have not reached the driver; that ended it at once
        self._closing = False
        self.explained: str | None = None
        kernel.on_switch = self._disturb
        kernel.on_birth = self._start_or_end
        kernel.tearing = options.tearing

    # ------------------------------------------------------------------------------------------- faults

    def _faults(self) -> list[tuple[str, Callable[[], bool]]]:
        workers = range(self.options.workers)
        menu: list[tuple[str, Callable[[], bool]]] = []
        for family in self.options.families:
            match family:
                case "kill worker":
                    menu += [(family, lambda i=i: self._kill(f"worker {i}.")) for i in workers]
                case "stop worker":
                    menu += [(family, lambda i=i, s=s: self._stop(f"worker {i}.", s)) for i in workers for s in _STOPS]
                case "crash" | "nan":
                    menu += [
                        (family, lambda k=f"{family} {i}", c=c: self._deny(k, c)) for i in workers for c in _CRASHES
                    ]
                case "wrong numbers":
                    checked = "check=1" in self.options.strategy
                    menu += [(family, lambda i=i: self._deny(f"wrong numbers {i}")) for i in workers if checked]
                case "kill helper":
                    menu.append((family, lambda: self._kill("helper")))
                case "stop helper":
                    menu += [(family, lambda s=s: self._stop("helper", s)) for s in (*_STOPS, _SILENCE)]
                case "stop driver":  # only briefly: a worker may meanwhile look for its orders again and again
                    menu += [(family, lambda s=s: self._stop("driver", s)) for s in _STOPS[:3]]
                case "kill driver":
                    menu.append((family, lambda: self._kill("driver")))
                case "lose worker":  # all other workers stay healthy, unless other faults happen to them
                    menu.append((family, lambda: self._lose(self.options.workers - 1)))
                case "freeze worker" if self.options.strategy in TOLERANT:
                    menu.append((family, lambda: self._freeze(f"worker {self.options.workers - 1}.")))
                case "half open":
                    menu.append((family, self._half_open))
                case "clock jump":
                    menu += [(family, lambda s=s: self._jump(s)) for s in _JUMPS]
                case "interrupt":
                    menu += [(family, lambda n=n: self._interrupt(n)) for n in (1, 2)]
                case "question":
                    menu.append((family, self._request_loss))
                case "drain":
                    menu += [(family, lambda i=i: self._drain(i)) for i in workers]
                case "checkpoint":
                    menu.append((family, self._request_checkpoint))
                case _ if family in OF_NODES:
                    menu += self._of_nodes(family)
                case "no fork" | "no memory":
                    menu.append((family, lambda family=family: self._deny(family)))
        if "kill driver" in self.options.families and "checkpoint" not in self.options.families:
            menu += [("checkpoint", self._request_checkpoint)] * 2
        return menu

    def _of_nodes(self, family: str) -> list[tuple[str, Callable[[], bool]]]:
        machines = self.machines
        assert machines is not None
        ranks = range(machines.size)
        match family:
            case "kill node":
                return [(family, lambda i=i: machines.kill(i)) for i in ranks]
            case "stop node":
                return [(family, lambda i=i, s=s: machines.stop(i, s)) for i in ranks for s in _OUT]
            case "link down":  # of a node: if the driver's is, nobody reaches anybody
                return [(family, lambda i=i, s=s: machines.cut(i, s)) for i in ranks[1:] for s in _OUT]
            case "link slow":
                return [(family, lambda i=i: machines.slow(i, _OUT[0])) for i in ranks]
            case "link reset":
                return [(family, lambda i=i: machines.reset(i)) for i in ranks[1:]]
            case "stranger":
                kinds = ("entry", "replay", "join", "garbage")
                return [(family, lambda kind=kind: machines.stranger(kind)) for kind in kinds]
            case "other version":
                return [(family, lambda i=i: machines.kill(i, other_version=True)) for i in ranks[1:]]
            case "second node":
                return [(family, lambda i=i: machines.second(i)) for i in ranks[1:]]
            case _:
                return [(family, lambda c=c: self._deny(family, c)) for c in (1, 3)]

    def _disturb(self, where: str) -> None:
        # in the constructor of Popen it would leave what only the garbage collector closes
        if self._interrupts and where == "driver" and not self._busy and self.kernel.current.doing != "started":
            self._interrupts -= 1
            self._hear_interrupt()
        if self._menu and not self._busy:
            self._choose_fault(where, self._menu, self.options.rate)

    def _choose_fault(self, where: str, menu: list[tuple[str, Callable[[], bool]]], rate: float) -> None:
        if self._faults_left == 0:
            return
        option = self.choices.choose("faults", where, len(menu) + 1, rate)
        if option:
            family, fault = menu[option - 1]
            if fault():
                self.happened[family] += 1
                self._faults_left -= family in self.options.families

    def _find(self, name: str) -> Any:
        found = [each for each in self.kernel.processes.values() if each.name.startswith(name) and not each.ended]
        return found[-1] if found else None

    def _kill(self, name: str) -> bool:
        process = self._find(name)
        if process is not None:
            self.kernel.kill(process, signal.SIGKILL)
        return process is not None

    def _stop(self, name: str, seconds: float) -> bool:
        process = self._find(name)
        if process is None or process.stopped:
            return False
        kernel = self.kernel
        kernel.kill(process, signal.SIGSTOP)

        def wake() -> None:
            kernel.wait(lambda: False, seconds)
            kernel.kill(process, signal.SIGCONT)

        kernel.start(wake, "operator")
        return True

    def _lose(self, worker: int) -> bool:
        """Kill a worker that then never starts again: it ends as soon as it begins."""
        self._lost.add(worker)
        self._kill(f"worker {worker}.")
        return True

    def _start_or_end(self, name: str) -> None:
        if name.startswith("worker") and int(name.removeprefix("worker ").partition(".")[0]) in self._lost:
            self.kernel.exit(9)

    def _freeze(self, name: str) -> bool:
        """Stop a worker for good."""
        process = self._find(name)
        if process is not None:
            self.kernel.kill(process, signal.SIGSTOP)
        return process is not None

    def _half_open(self) -> bool:
        """Close the helper's side of its link, while it lives and can still be sent to."""
        helper = self._find("helper")
        ends = [] if helper is None else [file for file in helper.files.values() if isinstance(file, SocketEnd)]
        for end in ends:
            end.closed = True
        return bool(ends)

    def _jump(self, seconds: float) -> bool:
        self.kernel.now += seconds
        return True

    def _interrupt(self, times: int) -> bool:
        self._interrupts += times
        return True

    def _hear_interrupt(self) -> None:
        """Do what the handler of Ctrl-C does: the first ends the run in order, if it has begun."""
        driver = self._driver
        if driver is None or driver.interrupted or not self._begun:
            self._raised += 1
            raise KeyboardInterrupt
        driver.interrupt()

    def _deny(self, what: str, times: int = 1) -> bool:
        self._denied[what] += times
        return True

    def _denies(self, what: str) -> bool:
        if self._denied[what]:
            self._denied[what] -= 1
            return True
        return False

    def _request_checkpoint(self) -> bool:
        self._save = True
        return True

    def _drain(self, worker: int) -> bool:
        """Have a worker leave, and stay away for a while; the one before may return."""
        self._drained = worker
        return True

    def _request_loss(self) -> bool:
        self._ask = True
        return True

    # ------------------------------------------------------------------------------------------- the run

    def run(self) -> Outcome:
        """Run until the driver has ended; return the outcome."""
        kernel = self.kernel
        gradient = Messages.partial_gradient

        def computed(messages: Messages, *arguments: Any, **more: Any) -> Any:
            if not kernel.current.name.startswith("worker"):
                return gradient(messages, *arguments, **more)
            factor = _DURATIONS[self.choices.choose("load", kernel.current.name, len(_DURATIONS), self.options.jitter)]
            kernel.call("compute")
            kernel.wait(lambda: False, 0.001 * factor)
            worker = kernel.current.name.removeprefix("worker ").partition(".")[0]
            if self._denies(f"crash {worker}"):
                kernel.exit(7)
            value = gradient(messages, *arguments, **more)
            if self._denies(f"nan {worker}"):
                return value * np.nan
            return -(3.0 + int(worker)) * value if self._denies(f"wrong numbers {worker}") else value

        with (
            system.installed(kernel, self.machines) as os,
            mock.patch.object(Messages, "partial_gradient", computed),
            mock.patch.object(memory, "_BUFFERS", self.options.buffers),
            mock.patch.object(keyed, "PART", _SLICE // 8 if self.options.copies else keyed.PART),
        ):
            if self.machines is not None:
                self.machines.network.spoils = lambda: self._denies("changed bytes")
            os.fork_fails, os.memory_lacks = lambda: self._denies("no fork"), lambda: self._denies("no memory")
            try:
                while True:
                    self._save = self._ask = self._begun = self._closing = False
                    self._interrupts = self._raised = 0
                    self._questions.clear()
                    self._prepare()
                    process = kernel.start(lambda: self._drive(os.mpi), "driver")
                    kernel.run(process)
                    self._busy = True
                    for left in [each for each in kernel.processes.values() if each.name.startswith(_OURS)]:
                        kernel.run(left)  # nothing outlives the driver
                    self._busy = False
                    if kernel.crashes:
                        raise kernel.crashes[0][1]
                    if process.status == 0:
                        break
                    self.happened["resumed"] += self._begun_before()
            finally:
                kernel.close_all()  # before the system's own calls are back
        assert self._driver is not None
        steps = self._driver.step
        if self.explained is None and steps < self.options.steps:
            raise Broken("progress", f"{steps} of {self.options.steps} steps, and no reason")
        return Outcome(steps, kernel.calls, self.explained, self.choices.deviations, self.happened, kernel.trace)

    def _prepare(self) -> None:
        """Do what there is to do before the next driver starts."""

    def _begun_before(self) -> bool:
        """Return whether the next driver resumes the run."""
        return self._saved is not None

    def _start_ranks(self, program: Program) -> None:
        program.start(self.options.workers, lasting=random.Random(f"{self.seed} mpi").random() < 0.5)

    def _drive(self, program: Program) -> None:
        options, kernel = self.options, self.kernel
        if options.cluster == "mpi":
            self._start_ranks(program)
        if self.machines is not None:
            self.machines.begin()
        before = {"files": len(kernel.current.files)}
        saved = {} if self._saved is None else json.loads(self._saved[0])["versions"]
        self._history = {key: w for key, w in self._history.items() if key[1] <= saved.get(key[0], -1)}
        strategy = built(options.strategy, options.workers)
        make = {"processes": Processes, "ray": Ray, "mpi": Mpi, "nodes": Nodes}[options.cluster]
        settings: dict[str, Any] = {"slices": "nodes", "copies": options.copies} if options.copies else {}
        try:
            cluster: Cluster = make(options.workers, seed=self.seed, **settings)
        except KeyboardInterrupt:  # nodes are joined here
            self.happened["interrupted at once"] += 1
            kernel.exit(130)
        driver = self._driver = Driver(
            strategy,
            cluster,
            problem=Squares(max(options.workers, strategy.layout.partitions), 5),
            optimizer=GD(lr=0.05),
            steps=options.steps,
            on_event=self._on_event,
        )
        if self.machines is not None:
            self.machines.watch(hub._hub.carrier)
        altered = "wrong numbers" in options.families
        self._auditors = auditors.Auditors(driver, kernel, self._history, altered=altered)
        self._reverse(cluster)
        try:
            with cluster:
                driver.open()
                self._begun = True
                if self._saved is None:
                    driver.begin()
                else:
                    text, vectors, states = self._saved
                    driver.restore(json.loads(text), {key: vector.copy() for key, vector in vectors.items()})
                    # on Ray and MPI the states of workers are lost when the driver ends
                    self._auditors.on_resume(states if options.cluster == "processes" else {})
                driver.run()
                if driver.interrupted:
                    self._keep(driver)
                driver.ledger.settle(driver.now)
                self._happens(cluster, driver)
                self._check_losses(driver)
                self._closing = True
        except anyk.RunFailed as error:
            self._explain(error)
        except KeyboardInterrupt:
            self.happened["interrupted at once"] += 1
            self._break_off(program, before)
        self._end(program, before)
        if driver.interrupted and driver.step < options.steps and self.explained is None:
            kernel.exit(130)

    def _break_off(self, program: Program, before: dict[str, int]) -> NoReturn:
        """End the driver's program after an interrupt; a second one, while the cluster was closed, may leave things."""
        if self.options.cluster == "mpi":
            program.world.Abort(130)
        self._leave_nodes()
        if not self._closing and self._raised < 2:
            auditors.check_ended(self.kernel, before)
        self.kernel.exit(130)

    def _end(self, program: Program, before: dict[str, int]) -> None:
        """End the driver's program; raise if it leaves anything."""
        if self.options.cluster == "mpi":
            try:
                program.end()
            except KeyboardInterrupt:  # which mpiexec passes on to all ranks
                program.world.Abort(130)
                self.kernel.exit(130)
        self._leave_nodes()
        auditors.check_ended(self.kernel, before)

    def _leave_nodes(self) -> None:
        """Do what the end of the driver's program does on the cluster ``nodes``."""
        if self.machines is not None and hub._hub is not None:
            try:
                hub._hub.end()
            except KeyboardInterrupt:
                self.kernel.exit(130)

    def _explain(self, error: anyk.RunFailed) -> None:
        """Note why the run has failed; raise if none of the faults explains it."""
        causes = {fault for why, faults in _EXPLAINED.items() if why in str(error) for fault in faults}
        if self.options.cluster == "mpi" and "lose worker" in causes:
            causes.add("kill worker")  # a rank that has died is not replaced
        if not any(self.happened[fault] for fault in causes):
            raise Broken("progress", f"the run failed: {error}") from error
        self.explained = str(error)
        if self._driver is not None:
            self._happens(self._driver.cluster, self._driver)

    def _on_event(self, driver: Driver) -> None:
        self._busy = True  # auditors are not disturbed
        try:
            self._auditors.on_event(driver)
            if self.machines is not None:
                self.machines.check()
        finally:
            self._busy = False
        if self._ask:
            self._ask = False
            slot = driver.layout.slots[0]
            self._questions.append(driver.cluster.losses.ask(slot, np.array(driver.models[slot]), None))
        if self._drained is not None:
            driver.cluster.drain([self._drained])
            self._drained, self._back = None, self.kernel.now + _AWAY
        if self.kernel.now > self._back:
            driver.cluster.drain([])
            self._back = inf
        if self._save:
            self._save = False
            self._keep(driver)
            self.happened["saved"] += 1

    def _keep(self, driver: Driver) -> None:
        vectors = {k: np.array(v) for k, v in driver.vectors().items()}
        self._saved = json.dumps(driver.state()), vectors, dict(self._auditors.states)

    def _reverse(self, cluster: Cluster) -> None:
        """Let the driver wait for one reply more, and take replies of different workers in the other order."""
        poll, news, rate = cluster.poll, cluster.news, self.options.reversal

        def polled(timeout: float) -> None:
            first = len(news)
            poll(timeout)
            if len(news) > first and self.choices.choose("schedule", "wait", 2, rate / _RARER):
                known = len(news)
                poll(timeout)
                self.happened["waited longer"] += len(news) > known
            for at in range(first, len(news) - 1):
                one, other = news[at], news[at + 1]
                notices = isinstance(one, Notice) and isinstance(other, Notice) and one.worker != other.worker
                if notices and self.choices.choose("schedule", "replies", 2, rate):
                    news[at], news[at + 1] = other, one
                    self.happened["reversed"] += 1

        cluster.poll = polled  # type: ignore[method-assign]

    def _check_losses(self, driver: Driver) -> None:
        """Check the answers of the workers that were asked for the loss."""
        for question in self._questions:
            if question.done():
                problem = driver.problem
                with contextlib.suppress(LossUnknown):
                    value = question.result() / len(problem.centres)
                    if not np.isclose(value, problem.loss(question.model), rtol=1e-9):
                        raise Broken("losses", f"workers answer {value} instead of {problem.loss(question.model)}")
                    self.happened["answered"] += 1

    def _happens(self, cluster: Cluster, driver: Driver) -> None:
        counts = driver.ledger.counts
        self.happened.update(self._auditors.seen)
        for name in ("late_counted", "discarded", "cancelled", "lost"):
            self.happened[name] += getattr(counts, name) > 0
        self.happened["restarted"] += any(handle.incarnation > 0 for handle in cluster.handles)
        self.happened["abandoned"] += any(handle.gone for handle in cluster.handles)
        self.happened["helper replaced"] += isinstance(cluster, Processes) and bool(cluster._helper.ends)


__all__ = ["Deadlock", "Endless", "Options", "Outcome", "World"]
