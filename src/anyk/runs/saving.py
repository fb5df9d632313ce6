"""The folder of a run while it is driven: checkpoints, and requests that workers stay away."""

from __future__ import annotations

import time as clock
from pathlib import Path

from anyk.base.errors import RunFailed
from anyk.clusters import Cluster
from anyk.problems.base import Problem, abilities_of, with_values
from anyk.problems.many import problem_of
from anyk.problems.values import Leaves
from anyk.runs.callbacks import Callbacks
from anyk.runs.engine.driver import Driver
from anyk.runs.evaluation.evaluator import Evaluator
from anyk.runs.folder import callback_states, checkpoints
from anyk.runs.folder.digests import file_digest
from anyk.runs.folder.drains import read_drained
from anyk.runs.log import queries
from anyk.runs.log.log_writer import LogWriter

_LOOKS = 0.3  # seconds between two checks for workers that are to leave
FIRST_SAVE = 1.0  # seconds, at most, until the first checkpoint


class Saving:
    """The checkpoints of a run in a folder, ``every`` so many seconds; ``saved``: the one from which it goes on.

    Without a folder nothing is saved.
    """

    def __init__(
        self,
        folder: Path | None,
        log: LogWriter,
        cluster: Cluster,
        callbacks: Callbacks,
        *,
        every: float,
        saved: checkpoints.Saved | None,
    ) -> None:
        self.folder, self.saved = folder, saved
        self._log, self._cluster, self._callbacks, self._every = log, cluster, callbacks, every
        self._writer = None if folder is None else checkpoints.CheckpointWriter(folder, log)
        self._save_at = self._look_at = 0.0
        self._drained: list[int] = []  # workers that are to stay away
        self.evaluator: Evaluator  # whose interval is saved, too; set before the run begins

    def recover_log(self) -> None:
        """Shorten the log to what the checkpoint knows, or to nothing, and note what is not as before."""
        log, saved = self._log, self.saved
        if saved is None:
            log.truncate(0)  # a run that ended before its first checkpoint starts again
            return
        log.truncate(saved.state["seq"], saved.state["seal"])
        if saved.digest not in queries.checkpoint_digests(log, log.seq):  # the run ended before it was listed
            log.checkpoint(log.seq, saved.digest)
        if saved.instead is not None and self.folder is not None:
            if saved.name == checkpoints.OLDER:
                checkpoints.set_aside(self.folder)
            log.note(saved.state["time"], "older checkpoint", saved.instead)

    def recover_callbacks(self) -> None:
        """Restore the interval of evaluations, and the states of callbacks."""
        saved = self.saved
        if saved is not None:
            self.evaluator.restore_interval(saved.state["every"])
            callback_states.restore(self._callbacks, saved.state.get(callback_states.KEY, {}), saved.vectors)

    def begin(self) -> None:
        """Plan the first checkpoint: early, as a run is often killed soon, such as by a mistake in a loop's body."""
        self._save_at = clock.monotonic() + min(FIRST_SAVE, self._every)

    def after_event(self, driver: Driver) -> None:
        """Write a checkpoint if it is due, and have workers leave or return as the folder requests."""
        writer = self._writer
        assert writer is not None
        if writer.done:
            writer.finish()
        now = clock.monotonic()
        if now > self._look_at and not self._cluster.virtual:
            self._look_at = now + _LOOKS
            self._drain_workers()
        late = now - self._save_at
        # after a step few messages are waiting, which would have to be saved as well
        if late >= 0.0 and not writer.busy and (driver.now == driver.time or late >= self._every):
            self._save(driver)
            if not self._every:
                writer.finish()
            self._save_at = clock.monotonic() + self._every

    def finish(self, driver: Driver) -> None:
        """Write the last checkpoint, if there is a folder."""
        if self._writer is not None:
            self._save(driver)
            self._writer.finish()

    def close(self) -> None:
        """End the writer of checkpoints."""
        if self._writer is not None:
            self._writer.close()

    def write_models(self, driver: Driver, problem: Problem, values: Leaves | None) -> dict[str, str]:
        """Write the models as files for other programs, if there is a folder and the problem is able to.

        Returns their SHA-256 by slot; the log notes why a model could not be written.
        """
        digests = {}
        for slot, w in driver.versions.trained.items():
            of_slot = problem_of(problem, slot)
            if values is not None:
                of_slot = with_values(of_slot, values)
            write = abilities_of(of_slot).write_model
            if write is None or self.folder is None:
                continue
            try:
                write(w, file := self.folder / f"{slot}.safetensors")
                if (digest := file_digest(file, follow=False)) is not None:
                    digests[slot] = digest
            except RunFailed as error:  # the checkpoint has the model as well
                self._log.note(driver.time, "not written", str(error))
        return digests

    def _save(self, driver: Driver) -> None:
        """Start to write a checkpoint."""
        writer, log = self._writer, self._log
        assert writer is not None
        if writer.busy:
            writer.finish()
        if self.saved is not None and log.seq == self.saved.state["seq"]:
            log.seq += 1  # no two checkpoints have the same number
        log.flush(lasting=True)  # the log must contain all that a checkpoint does
        state = driver.state() | {"every": self.evaluator.every, "seal": log.seal}
        states, arrays = callback_states.save(self._callbacks)
        if states:
            state[callback_states.KEY] = states
        log.seq += 1  # entries from here on belong after the checkpoint
        writer.start(state, driver.vectors() | arrays)

    def _drain_workers(self) -> None:
        """Have workers leave, or let them return, as the run folder requests."""
        assert self.folder is not None
        drained = read_drained(self.folder)
        if drained != self._drained:
            self._drained = drained
            self._cluster.drain(drained)
            names = ", ".join(map(str, drained)) or "none"
            self._log.note(self._cluster.now(), "drained", f"workers that are to stay away: {names}")
