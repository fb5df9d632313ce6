"""Hostile schedules: a strategy receives all possible events in any order, beside a twin that is saved and restored.

A schedule is a list of actions sampled from a seed: messages that arrive in any order, chunks that fail, workers that
die, are abandoned and return, and events that come late or twice. The strategy and its twin receive the same events and
must answer with the same commands, though the twin is sometimes saved as JSON and restored into a fresh strategy. Each
command is checked against the knowledge of a driver and a cluster. In the end all workers that may return do, no event
is a fault any more, and the strategy must take steps and end all its tasks.

A schedule that fails is shortened to one that fails in the same way.
"""

from __future__ import annotations

import copy
import json
import traceback
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from anyk.base import ByName, RunFailed, keyed_generator
from anyk.protocol import (
    Commands,
    Event,
    Fleet,
    Running,
    Strategy,
)
from anyk.testing.fate import Action, Fate
from anyk.testing.world import Broken, World

_PATIENCE = 2000  # events without a fault, within which a strategy must step and end its tasks
_ENOUGH = 2  # steps within that number of events
_WELL = "from here on all goes well"
_WAITS = (0.0, 0.01, 0.3)
_SHOWN = 20  # lines of a schedule that are shown of the part without faults, at its beginning
_SHOWN_LAST = 5  # and at its end
# how likely the kinds of actions are, relative to each other: always the same, or one of several numbers for a schedule
_CERTAIN = {"work": 12.0, "alarm": 2.0, "measured": 12.0}
_MOODS = {
    "join": (0.3, 1.0, 4.0),
    "fail": (0.0, 0.2, 0.2, 1.0),
    "lose": (0.0, 0.3, 1.0),
    "give up": (0.0, 0.0, 0.2),
    "return": (0.0, 0.5),
    "restart": (0.0, 0.5),
    "repeat": (0.0, 0.5, 2.0),
    "late": (0.0, 0.5, 2.0),
    "lose again": (0.0, 0.3),
    "join again": (0.0, 0.5),
}
_SHRINKING = 100_000  # events and answers that may be spent on finding a shorter schedule


def _saved(running: Running) -> str:
    """Return a strategy's state as JSON."""
    try:
        return json.dumps(running.save())
    except (TypeError, ValueError) as error:
        raise Broken("state", f"its state is not plain data that JSON can hold: {error}") from error


class Play:
    """The run of a schedule with a strategy and its twin."""

    def __init__(self, strategy: Strategy, seed: int, name: str = "") -> None:
        self.pristine, self.seed = strategy, seed
        self.random = keyed_generator(seed, "hostile", name or strategy.spec, strategy.layout.workers)
        workers = strategy.layout.workers
        present = tuple(range(workers))
        if self.random.random() < 0.3:
            present = tuple(worker for worker in present if self.random.random() < 0.6)
        self.fleet = Fleet(workers, present, *((12.5, 7) if self.random.random() < 0.2 else (0.0, 0)))
        self.world = World(strategy, self.fleet, seed)
        self.fate = Fate(self.world)
        self.subject, self.twin = Running(copy.deepcopy(strategy)), Running(copy.deepcopy(strategy))
        self.transcript: list[Any] = []  # events, and the commands in answer to them
        self.done: list[Action] = []  # the actions that happened
        self.ended = False  # whether all actions are over

    # ------------------------------------------------------------------------------------------- strategy and twin

    def _tell(self, event: Event, *, save: bool = False) -> None:
        self._both(event, lambda running: running.on(event), save=save)

    def _both(self, event: Fleet | Event, react: Callable[[Running], Commands], *, save: bool) -> None:
        """Let both react, compare and carry out their commands, and answer their questions."""
        self.transcript.append(event)
        commands, others = list(react(self.subject)), list(react(self.twin))
        self.transcript.append(commands)
        if commands != others and repr(commands) != repr(others):
            raise Broken("restored", f"saved and restored it decides otherwise: {_shown(others)}")
        self.world.obey(commands)
        if save:
            self._restore()
        while self.world.questions and self.world.stopped is None:
            self._tell(self.world.questions.popleft())

    def _restore(self) -> None:
        self.transcript.append("    saved and restored")
        state = json.loads(_saved(self.twin))
        self.twin = Running(copy.deepcopy(self.pristine))
        self.twin.restore(state)

    # ------------------------------------------------------------------------------------------- playing

    def play(self, actions: Iterable[Action], *, whole: bool) -> None:
        """Play a schedule; if ``whole``, with the end in which there are no faults."""
        self._both(self.fleet, lambda running: running.start(self.fleet), save=False)
        for action in actions:
            if self.world.stopped is not None:
                break
            event = self.fate.event(action)
            if event is not None:
                self.done.append(action)
                self._tell(event, save=action.save)
                self._alive()
        if whole:
            self.ended = True
            if self.world.stopped is None:
                self._quiet()
            self._again()

    def _alive(self) -> None:
        world = self.world
        settled = len(world.present | world.gone) == world.workers and not world.leaving
        if world.stopped is None and self.fate.stuck and settled:
            raise Broken("deadlock", f"deadlock at step {world.step}: every worker is idle, and no alarm is set")

    def _quiet(self) -> None:
        """Let all workers return and work without faults; raise :class:`Broken` without steps, or with open tasks."""
        world = self.world
        self.transcript.append(_WELL)
        for worker in sorted(world.leaving):
            self._act("lose", worker)
        for worker in sorted(set(range(world.workers)) - world.present - world.gone):
            self._act("join", worker)
        pending = [(task, index) for task, record in world.tasks.items() for index in range(len(record.status))]
        aim = world.step + _ENOUGH
        self._alive()
        for _ in range(_PATIENCE):
            pending = [chunk for chunk in pending if world.status(chunk) in ("open", "arrived")]
            if world.stopped is not None or (world.step >= aim and not pending):
                return
            self._continue()
            self._alive()
        if world.step < aim:
            raise Broken("starved", f"it took fewer than {_ENOUGH} steps in {_PATIENCE} events in which all went well")
        task, chunk = pending[0]
        has = "is open" if world.status(pending[0]) == "open" else "has arrived"
        raise Broken("forgotten", f"task {task}, chunk {chunk}, which {has}, is neither used nor cancelled")

    def _continue(self) -> None:
        """Let what comes first happen: an answer, work on the oldest chunk, or an alarm."""
        oldest = min((chunk for worker in self.world.present for chunk in self.fate.open(worker)), default=None)
        if self.world.measures:
            self._act("measured", 0)
        elif oldest is not None:
            self._act("work", self.world.tasks[oldest[0]].worker)
        elif self.world.alarms:
            self._act("alarm", 0)

    def _act(self, kind: str, worker: int) -> None:
        if self.world.stopped is None:
            event = self.fate.event(Action(kind, worker, 0, 0.01, False))
            if event is not None:
                self._tell(event)

    def _again(self) -> None:
        """Raise :class:`Broken` unless the used strategy starts in the same way as a fresh one."""
        self.transcript.append("it is used again: start")
        fresh = Running(copy.deepcopy(self.pristine))
        fleet = Fleet(self.pristine.layout.workers, tuple(range(self.pristine.layout.workers)))
        first, second = list(fresh.start(fleet)), list(self.subject.start(fleet))
        if first != second or _saved(fresh) != _saved(self.subject):
            raise Broken("used", "used before, it does not start as a fresh one does")

    # ------------------------------------------------------------------------------------------- sampling

    def sample_actions(self, events: int) -> Iterable[Action]:
        """Yield the actions of a schedule with a number of events, each sampled after the event before."""
        random, world = self.random, self.world
        mood = _CERTAIN | {kind: float(random.choice(choices)) for kind, choices in _MOODS.items()}
        if self.pristine.layout.fewest:
            mood["leaving"] = float(random.choice([0.0, 0.5]))
        slow = random.random(world.workers) ** 2 if random.random() < 0.3 else np.ones(world.workers)
        kinds, weights = list(mood), np.array(list(mood.values()))
        likely = np.cumsum(weights / weights.sum()).tolist()
        saves = float(random.choice([0.0, 0.05, 0.3]))
        for _ in range(3 * events):
            if len(self.done) >= events or world.stopped is not None:
                return
            kind = kinds[bisect_left(likely, random.random())]
            worker = int(random.integers(world.workers))
            if kind == "work" and random.random() > slow[worker]:
                continue
            wait = _WAITS[int(random.integers(3))] * random.exponential()  # as choice() samples it, but faster
            yield Action(kind, worker, int(random.integers(1 << 16)), wait, bool(random.random() < saves))


def _shown(value: Any) -> str:
    """Return an event or a command as text, without fields that have their defaults."""
    match value:
        case str():
            return value
        case float():
            return f"{value:.4g}"
    defaults: ByName | None = getattr(value, "_field_defaults", None)
    if defaults is not None:
        fields = zip(value._fields, value, strict=True)
        arguments = ", ".join(
            f"{name}={_shown(v)}" for name, v in fields if name not in defaults or v != defaults[name]
        )
        return f"{type(value).__name__}({arguments})"
    return f"({', '.join(map(_shown, value))})" if isinstance(value, (tuple, list)) else repr(value)


def _schedule(transcript: Sequence[Any]) -> Iterator[str]:
    """Yield a line for each event, and an indented line for each command."""
    for entry in transcript:
        if isinstance(entry, list):
            yield from (f"      {_shown(command)}" for command in entry)
        else:
            yield f"  {_shown(entry)}"


def _folded(transcript: Sequence[Any]) -> list[str]:
    """Return the lines of a schedule without the middle of its part without faults, if that is long."""
    lines = list(_schedule(transcript))
    begin = next((number for number, line in enumerate(lines, 1) if line.strip() == _WELL), len(lines)) + _SHOWN
    end = len(lines) - _SHOWN_LAST
    return lines if end - begin < 2 else [*lines[:begin], f"  ({end - begin:,} lines more)", *lines[end:]]


def explained(error: Exception) -> Broken:
    """Return the broken rule, or the exception that a strategy raised and its place."""
    match error:
        case Broken():
            return error
        case AssertionError():
            return Broken("assertion", str(error))
        case RunFailed():
            return Broken("run", f"the run failed: {error}")
    frame = traceback.extract_tb(error.__traceback__)[-1]
    sentence = (
        f"it raised {type(error).__name__}: {error} ({Path(frame.filename).name}, line {frame.lineno}, in {frame.name})"
    )
    return Broken(type(error).__name__, sentence)


def _played(
    strategy: Strategy, seed: int, actions: Iterable[Action] | None, *, events: int = 0, whole: bool = True
) -> tuple[Play, Broken | None]:
    """Play a schedule, or sample one; return the play with the rule that the strategy broke, if any."""
    play = Play(strategy, seed)
    try:
        play.play(play.sample_actions(events) if actions is None else actions, whole=whole)
    except Exception as error:  # a user's strategy may raise anything
        return play, explained(error)
    return play, None


def _shortest(strategy: Strategy, seed: int, actions: list[Action], kind: str, *, whole: bool) -> list[Action]:
    """Remove the actions without which a schedule still fails (delta debugging, Zeller and Hildebrandt 2002)."""
    spent = 0

    def fails(some: list[Action]) -> bool:
        nonlocal spent
        if spent > _SHRINKING:
            return False
        play, broken = _played(strategy, seed, some, whole=whole)
        spent += len(play.transcript)
        return broken is not None and broken.kind == kind

    before = -1
    while before != len(actions):
        before, size = len(actions), max(1, len(actions) // 2)
        while size:
            index = 0
            while index < len(actions):
                shorter = actions[:index] + actions[index + size :]
                if fails(shorter):
                    actions = shorter
                else:
                    index += size
            size //= 2
    for index, action in enumerate(actions):
        for plainer in (action._replace(worker=0, pick=0, wait=0.0, save=False), action._replace(save=False)):
            if plainer != action and fails([*actions[:index], plainer, *actions[index + 1 :]]):
                actions = [*actions[:index], plainer, *actions[index + 1 :]]
                break
    return actions


def hostile(strategy: Strategy, *, seed: int, events: int = 200) -> None:
    """Play a fresh strategy the hostile schedule of a seed.

    Raises :class:`Broken` with the shortest schedule found that fails in the same way.
    """
    play, broken = _played(strategy, seed, None, events=events)
    if broken is None:
        return
    actions = _shortest(strategy, seed, play.done, broken.kind, whole=play.ended)
    short, failure = _played(strategy, seed, actions, whole=play.ended)
    if failure is None:
        short, failure = play, broken
    lines = "\n".join(_folded(short.transcript))
    raise Broken(failure.kind, f"{failure}\nits shortest schedule:\n{lines}") from None
