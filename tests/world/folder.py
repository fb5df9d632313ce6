"""Runs of the world into a folder: its log, checkpoints and threads, and what a driver's death or a loss of power leaves.

A run goes through :func:`anyk.train` and :func:`anyk.resume`. Whenever its driver has ended before the run has, the
folder becomes what the disk then holds, and another driver resumes it with new workers.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import anyk
from anyk.base.keyed import array_digest
from anyk.clusters import Cluster, Mpi, Ray
from anyk.clusters.processes import Processes
from anyk.clusters.remote import losses
from anyk.optimizers import Nesterov
from anyk.runs import Driver, launch, saving, training
from anyk.runs.evaluation import by_workers, evaluator
from anyk.runs.folder import checkpoints, environment
from anyk.runs.log import log_writer
from anyk.testing import Squares
from strategy_schedules import built

from . import auditors
from .broken import Broken
from .choices import Deviations
from .disk import Disk, Image
from .fake_mpi import Program
from .fake_ray import Lock
from .kernel import Kernel, Process
from .system import Time
from .world import Options, Outcome, World

_PLACE = Path("/dev/shm")  # memory, if there is such a place
_KEPT = {"run.toml", "log.sqlite", "lock", checkpoints.NAME, checkpoints.OLDER, f"{checkpoints.NAME}.damaged"}
_SLOW = (0.0, 0.001, 0.005, 0.05)  # seconds that a checkpoint waits for the disk
_AGAIN = 2  # times that a run is resumed after a failure that faults explain
_ENDS = ("counted", "late_counted", "discarded", "cancelled", "lost")
_SAME = "the same decisions and the same bits of model"


class _Event:
    """An event for which threads wait."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel, self._set = kernel, False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        self._kernel.call("wait for an event")
        return self._kernel.wait(lambda: self._set, timeout)


class _Thread:
    """A thread of the current process."""

    def __init__(self, kernel: Kernel, target: Callable[[], object], name: str) -> None:
        self._kernel, self._target, self._name = kernel, target, name
        self._process: Process | None = None

    def start(self) -> None:
        leader = self._kernel.current.leader
        self._process = self._kernel.start(self._target, f"{leader.name} {self._name}", thread_of=leader)
        self._kernel.call("start a thread")

    def is_alive(self) -> bool:
        return self._process is not None and not self._process.ended

    def join(self) -> None:
        self._kernel.call("join a thread")
        self._kernel.wait(lambda: not self.is_alive())


class _Future:
    """The result of a call in a thread."""

    def __init__(self, kernel: Kernel, call: Callable[[], Any]) -> None:
        def work() -> None:
            try:
                self._value = call()
            except Exception as error:  # for whoever asks for the result
                self._error = error

        self._value: Any = None
        self._error: Exception | None = None
        self._thread = _Thread(kernel, work, "checkpoint")
        self._thread.start()

    def done(self) -> bool:
        return not self._thread.is_alive()

    def result(self) -> Any:
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._value


class _Executor:
    """An executor with one thread, to which one call at a time is submitted."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._last: _Future | None = None

    def submit(self, call: Callable[..., Any], *arguments: Any) -> _Future:
        assert self._last is None or self._last.done()
        self._last = _Future(self._kernel, lambda: call(*arguments))
        return self._last

    def shutdown(self) -> None:
        if self._last is not None:
            self._last._thread.join()


class FolderWorld(World):
    """One seed's run into a folder."""

    def __init__(self, seed: int, *, options: Options | None = None, only: Deviations | None = None) -> None:
        super().__init__(seed, options=options, only=only)
        assert self.options.folder is not None
        self._folder = self.options.folder
        self._image: Image | None = None  # what is left for the next driver, if a fault has decided that
        self._powerless = False
        self._promised: Mapping[str, int] = {}  # versions that a checkpoint has made durable
        self._before_that: Mapping[str, int] = {}  # and the checkpoint before it
        self._states_at: dict[tuple[int, str], dict[int, Any]] = {}  # workers' states at checkpoints
        self._handlers: dict[int, Callable[[int, None], None]] = {}  # of the driver's signals
        self._failures = self._folders = 0
        self._complete = False
        self._older = False  # whether the newest checkpoint has been damaged, and there is none since

    # ------------------------------------------------------------------------------------------- faults

    def _faults(self) -> list[tuple[str, Callable[[], bool]]]:
        menu = [fault for fault in super()._faults() if fault[0] not in ("kill driver", "checkpoint")]
        for family, fault in (("kill driver", self._kill_driver), ("power loss", self._lose_power)):
            menu += [(family, fault)] * 3 * (family in self.options.families)
        return menu

    def _disturb(self, where: str) -> None:
        super()._disturb(where)
        process = self.kernel._running
        if (
            where != "clock"
            and process is not None
            and process.doing == "disk"
            and not self._busy
            and not process.ended
        ):
            menu = [fault for fault in self._menu if fault[0] in ("kill driver", "power loss", "interrupt")]
            self._choose_fault(f"{where} writes", menu, self._folder.rate)

    def _left(self, images: list[Image]) -> Image:
        chosen = self.choices.choose("faults", "disk", len(images), 0.7)
        return images[chosen]

    def _kill_driver(self) -> bool:
        """Kill the driver; what it was writing may be there by half."""
        driver = self._find("driver")
        if driver is None:
            return False
        if self.disk.torn:
            self._image = self._left(self.disk.written())
        self.kernel.kill(driver, signal.SIGKILL)
        return True

    def _lose_power(self) -> bool:
        """End all processes, and lose what was not made durable."""
        if self._find("driver") is None:
            return False
        self._image, self._powerless = self._left(self.disk.left()), True
        for process in list(self.kernel.processes.values()):
            self.kernel.kill(process, signal.SIGKILL)
        return True

    def _hear_interrupt(self) -> None:
        handler = self._handlers.get(signal.SIGINT)
        try:
            if handler is None:
                raise KeyboardInterrupt
            handler(signal.SIGINT, None)
        except KeyboardInterrupt:
            self._raised += 1
            raise

    # ------------------------------------------------------------------------------------------- the run

    def run(self) -> Outcome:
        """Run until the run has ended, and check its folder."""
        with tempfile.TemporaryDirectory(prefix="world-", dir=_PLACE if _PLACE.is_dir() else None) as place:
            self._place = Path(place)
            (self._place / "temporary").mkdir()
            self.disk = Disk(self._place / "0", self._pause)
            try:
                with mock.patch.object(tempfile, "tempdir", str(self._place / "temporary")), self._installed():
                    outcome = super().run()
                with mock.patch.object(tempfile, "tempdir", str(self._place / "temporary")):
                    self._check_folder()
            finally:  # a log closes its file when it is collected, and must not be reachable from that file
                self.disk.pause = lambda _: None
            return outcome

    def _pause(self, what: str) -> None:
        self.kernel.call("disk", what)

    @contextlib.contextmanager
    def _installed(self) -> Iterator[None]:
        """Let the kernel carry out what the launch of a run needs of threads, signals and the clock."""
        kernel = self.kernel
        time = Time(kernel)
        threading = SimpleNamespace(
            Lock=lambda: Lock(kernel),
            Event=lambda: _Event(kernel),
            Thread=lambda target, name, daemon: _Thread(kernel, target, name),
            current_thread=lambda: kernel.current,
        )

        def handle(number: int, handler: Any) -> Any:
            previous = self._handlers.pop(number, None)
            if callable(handler) and not isinstance(handler, signal.Handlers):
                self._handlers[number] = handler
            return previous

        signals = SimpleNamespace(
            SIGINT=signal.SIGINT,
            SIGTERM=signal.SIGTERM,
            SIG_IGN=signal.SIG_IGN,
            SIG_DFL=signal.SIG_DFL,
            signal=handle,
            getsignal=self._handlers.get,
        )
        system = SimpleNamespace(getswitchinterval=lambda: 0.005, setswitchinterval=lambda _: None)
        save = checkpoints.save

        def saved(folder: Path, text: str, vectors: Any, **more: Any) -> str:
            kernel.wait(lambda: False, _SLOW[self.choices.choose("load", "disk", len(_SLOW), 0.3)])
            digest = save(folder, text, vectors, **more)
            self._before_that, self._promised = self._promised, checkpoints.json.loads(text)["versions"]
            self._older = False
            self.happened["saved"] += 1
            return digest

        start = checkpoints.CheckpointWriter.start

        def started(writer: Any, state: dict[str, Any], vectors: Any) -> None:
            self._states_at[state["seq"], state["seal"]] = dict(self._auditors.states)
            start(writer, state, vectors)

        replaced: list[tuple[Any, dict[str, Any]]] = [
            (saving, {"clock": time}),
            (launch, {"signal": signals, "sys": system, "Driver": self._make_driver}),
            (log_writer, {"clock": time, "_EVERY": self._folder.commits}),
            (checkpoints, {"ThreadPoolExecutor": lambda *_, **__: _Executor(kernel), "save": saved}),
            (checkpoints.CheckpointWriter, {"start": started}),
            (evaluator, {"clock": time, "threading": threading}),
            (by_workers, {"clock": time, "threading": threading}),
            (losses, {"threading": threading}),
            (training, {"environment": lambda: {"python": "3"}}),
            (environment, {"environment": lambda: {"python": "3"}}),
        ]
        with contextlib.ExitStack() as stack:
            for module, names in replaced:
                for name, value in names.items():
                    stack.enter_context(mock.patch.object(module, name, value))
            stack.enter_context(self.disk.observed())
            yield

    def _prepare(self) -> None:
        """Give the next driver a folder with what the last one has left."""
        self._handlers.clear()
        old = self.disk.folder
        if not old.is_dir():
            return
        self._folders += 1
        image = self._image or self.disk.written()[0]
        new = self._place / str(self._folders)
        if "run.toml" not in image.files:  # it had not begun
            self._powerless, image = True, Image("", {})
            self.happened["begun again"] += 1
        both = {checkpoints.NAME, checkpoints.OLDER} <= image.files.keys()
        if "damage" in self.options.families and both and not self._older:
            image = self._damaged(image)
        image.write(new)
        if self._powerless:
            self.disk.restart(new)
        else:
            self.disk.move(new)
            if self._older:
                self.disk.spoil(checkpoints.NAME)
        if not image.files:
            new.rmdir()
        self._image, self._powerless = None, False
        shutil.rmtree(old)

    def _damaged(self, image: Image) -> Image:
        """Return what is left, perhaps with another byte in the newest checkpoint: the one before has to do."""
        if not self.choices.choose("faults", "damage", 2, 0.5):
            return image
        self._promised, self._before_that, self._older = self._before_that, {}, True
        self.happened["damage"] += 1
        data = bytearray(image.files[checkpoints.NAME])
        data[-3] ^= 1  # in the last vector
        return Image(image.when, image.files | {checkpoints.NAME: bytes(data)})

    def _begun_before(self) -> bool:
        return (self.disk.folder / "run.toml").exists()

    def _make_driver(self, strategy: Any, cluster: Cluster, *, on_event: Any, **more: Any) -> Driver:
        def both(driver: Driver) -> None:
            self._on_event(driver)
            on_event(driver)

        driver = self._driver = Driver(strategy, cluster, on_event=both, **more)
        altered = "wrong numbers" in self.options.families
        self._auditors = auditors.Auditors(driver, self.kernel, self._history, altered=altered)
        self._reverse(cluster)
        begin, restore, close = driver.begin, driver.restore, cluster.close

        def begun() -> None:
            if self._promised:
                raise Broken("durability", f"the run begins anew, and had a checkpoint at {dict(self._promised)}")
            self._history.clear()
            self._begun = True
            begin()

        def restored(state: Mapping[str, Any], vectors: Mapping[str, Any]) -> None:
            versions = state["versions"]
            if any(versions[slot] < version for slot, version in self._promised.items()):
                raise Broken("durability", f"resumed at {versions}, and there was a checkpoint at {self._promised}")
            for key in [key for key in self._history if key[1] > versions.get(key[0], -1)]:
                del self._history[key]
            self._begun = True
            restore(state, vectors)
            states = self._states_at[state["seq"], state["seal"]] if self.options.cluster == "processes" else {}
            self._auditors.on_resume(states)
            self.happened["from a checkpoint"] += 1

        def closed() -> None:
            self._closing = True
            close()
            self._closing = False

        driver.begin, driver.restore, cluster.close = begun, restored, closed  # type: ignore[method-assign]
        return driver

    def _drive(self, program: Program) -> None:
        options, kernel = self.options, self.kernel
        if options.cluster == "mpi":
            self._start_ranks(program)
        before = {"files": len(kernel.current.files)}
        earlier, self._driver = self._driver, None
        try:
            run = self._train()
        except anyk.RunFailed as error:
            self._explain(error)
            status = 1 if self._failures < _AGAIN else 0
            self._failures += 1
        except KeyboardInterrupt:
            orderly = self._driver is not None and self._driver.interrupted and not self._raised
            self.happened["interrupted" if orderly else "interrupted at once"] += 1
            if not orderly:
                self._break_off(program, before)
            status = 130
        else:
            if self._driver is None:  # the earlier one was killed when its run had ended
                self._driver = earlier
                self.happened["ended before"] += 1
            self._check_run(run)
            status, self.explained = 0, None
        self._end(program, before)
        threads = [each.name for each in kernel.processes.values() if each.leader is kernel.current and not each.ended]
        if len(threads) > 1:
            raise Broken("threads", f"{threads} are running")
        if status:
            kernel.exit(status)

    def _train(self) -> anyk.Run:
        options, folder = self.options, self.disk.folder
        partitions = built(options.strategy, options.workers).layout.partitions
        problem = Squares(max(options.workers, partitions), 5)
        if folder.exists():
            return anyk.resume(folder, problem=problem, checkpoint_every=self._folder.every, tell=self._hear)
        make = {"processes": Processes, "ray": Ray, "mpi": Mpi}[options.cluster]
        return anyk.train(
            problem,
            built(options.strategy, options.workers),
            make(options.workers, seed=self.seed),
            optimizer=Nesterov(lr=0.05),
            steps=options.steps,
            out=folder,
            evaluate=self._folder.evaluate,
            checkpoint_every=self._folder.every,
        )

    def _hear(self, text: str) -> None:
        """Hear what the user is told who resumes the run."""
        if "the checkpoint before" in text and not self._older:
            raise Broken("durability", text)

    # ------------------------------------------------------------------------------------------- checks

    def _check_run(self, run: anyk.Run) -> None:
        """Check the run that a driver returns, and its log, against what was computed."""
        driver, log = self._driver, run.log
        assert driver is not None
        self._happens(driver.cluster, driver)
        for slot, version, digest in log.rows("SELECT slot, version, digest FROM updates"):
            w = self._history.get((slot, version))
            if w is None or array_digest(w) != digest:
                raise Broken("log", f"the log has another model of version {version}")
        logged = dict(log.rows("SELECT slot, max(version) FROM updates GROUP BY slot"))
        if any(logged.get(slot, 0) != version for slot, version in driver.versions.newest.items()):
            raise Broken("log", f"the log ends at {logged}, the run at {driver.versions.newest}")
        counts = run.ledger
        if sum(counts[name] for name in _ENDS) != counts["dispatched"]:
            raise Broken("ledger", f"the ledger of the folder does not balance: {counts}")
        if self._folder.evaluate is not None and run.steps not in run.history["step"]:
            raise Broken("evaluation", f"the last step was not evaluated: {run.history['step']}")
        run.close()
        self._complete = True

    def _check_folder(self) -> None:
        """Check the folder after the run."""
        folder = self.disk.folder
        if not folder.exists():
            return
        verified = anyk.verify(folder)
        if not verified.whole and (self._complete or not self._older):
            raise Broken("folder", f"{[str(check) for check in verified.checks if check.whole is False]}")
        names = {path.name for path in folder.iterdir()} - _KEPT if self._complete else set()
        if self.happened["ended before"]:  # its log was not closed, and is only read since
            names -= {"log.sqlite-wal", "log.sqlite-shm"}
        if names or any((self._place / "temporary").iterdir()):
            raise Broken("remains", f"{names or list((self._place / 'temporary').iterdir())} are left behind")
        if self._complete:
            partitions = built(self.options.strategy, self.options.workers).layout.partitions
            replayed = anyk.replay(folder, problem=Squares(max(self.options.workers, partitions), 5))
            if not str(replayed).endswith(_SAME):
                raise Broken("replay", str(replayed))
