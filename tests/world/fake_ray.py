"""Ray as far as anyk uses it: actors with concurrency groups, calls, references and deaths, on the simulated kernel."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

from anyk.clusters.ray import actor as ray_actor
from anyk.clusters.ray import actors
from anyk.clusters.ray.answers import Unanswered
from anyk.clusters.remote import networked

from .kernel import Kernel, Process

_LATENCY = 0.0005  # seconds that a call or an answer usually takes
_LATENCIES = (1.0, 0.0, 5.0, 30.0)  # multiples of it


class RayError(Exception):
    """What Ray raises when the actor of a call has died."""


class Reference:
    """The result of a call, or an object of the store."""

    def __init__(self) -> None:
        self.done = False
        self.value: Any = None
        self.error: RayError | None = None


class Lock:
    """A lock of threads."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel, self.held = kernel, False

    def __enter__(self) -> None:
        self._kernel.call("lock")
        self.take()

    def take(self) -> None:
        self._kernel.wait(lambda: not self.held)
        self.held = True

    def __exit__(self, *_: object) -> None:
        self.held = False


class _Condition:
    def __init__(self, kernel: Kernel, lock: Lock) -> None:
        self._kernel, self._lock = kernel, lock

    def __enter__(self) -> None:
        self._lock.__enter__()

    def __exit__(self, *_: object) -> None:
        self._lock.__exit__()

    def notify_all(self) -> None:
        """Do nothing: who waits looks by itself."""

    def wait_for(self, condition: Callable[[], bool], timeout: float | None = None) -> bool:
        self._lock.held = False
        held = self._kernel.wait(condition, timeout)
        self._lock.take()
        return held


class _Actor:
    """An actor: a process whose threads carry out the calls of one concurrency group each, in order."""

    def __init__(self, ray: FakeRay, kind: type, arguments: Sequence[Any]) -> None:
        self._ray, self._kernel = ray, ray.kernel
        self._queues: dict[str, deque[tuple[float, str, Sequence[Any], Reference]]] = {
            "orders": deque(),
            "news": deque(),
        }
        worker = arguments[0]
        name = f"worker {worker}.{ray.actors[worker]}"
        ray.actors[worker] += 1
        self.pending: dict[Reference, None] = {}
        values = [ray.value(argument) for argument in arguments]

        def live() -> None:
            self._kernel.on_birth(name)
            self._instance = kind(*values)
            for group in self._queues:
                self._kernel.start(lambda group=group: self._serve(group), f"{name} {group}", thread_of=self.process)
            self._kernel.wait(lambda: False)

        self.process = self._kernel.start(live, name, ray.kernel.current)
        self.process.environ = {}
        ray.by_process[self.process] = self

    def _serve(self, group: str) -> None:
        queue = self._queues[group]
        while True:
            self._kernel.wait(lambda: bool(queue))
            at, method, arguments, reference = queue.popleft()
            self._kernel.call(method)
            self._kernel.wait(lambda: False, at - self._kernel.now)
            value = getattr(self._instance, method)(*[self._ray.value(argument) for argument in arguments])
            self._ray.answer(self, reference, value)

    def call(self, group: str, method: str, arguments: Sequence[Any]) -> Reference:
        reference = Reference()
        self._kernel.call("remote", method)
        if self.process.ended:
            self._ray.fail(self, reference)
        else:
            self.pending[reference] = None
            self._queues[group].append((self._kernel.now + self._ray.latency(self), method, arguments, reference))
        return reference

    def __getattr__(self, method: str) -> Any:
        def options(concurrency_group: str) -> Any:
            return SimpleNamespace(remote=lambda *arguments: self.call(concurrency_group, method, arguments))

        return SimpleNamespace(options=options)


def _read_only(vector: Any) -> Any:
    vector = np.array(vector)
    vector.flags.writeable = False
    return vector


class FakeRay:
    """The module ``ray``."""

    __version__ = "0"
    exceptions = SimpleNamespace(RayError=RayError)

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.actors = Counter[int]()  # created so far, by worker
        self.by_process: dict[Process, _Actor] = {}
        kernel.on_end = self._ended

    def latency(self, actor: _Actor) -> float:
        option = self.kernel.choices.choose("load", f"network of {actor.process.name}", len(_LATENCIES), 0.3)
        return _LATENCY * _LATENCIES[option]

    @staticmethod
    def value(argument: Any) -> Any:
        return argument.value if isinstance(argument, Reference) else argument

    def answer(self, actor: _Actor, reference: Reference, value: Any) -> None:
        """Deliver a result after a while, also if its actor has died since."""
        actor.pending.pop(reference, None)

        def deliver() -> None:
            self.kernel.wait(lambda: False, seconds)
            reference.value, reference.done = value, True

        seconds = self.latency(actor)
        self.kernel.start(deliver, "network")

    def fail(self, actor: _Actor, reference: Reference) -> None:
        """Deliver the news that an actor has died."""

        def deliver() -> None:
            self.kernel.wait(lambda: False, seconds)
            reference.error, reference.done = RayError("the actor has died"), True

        seconds = self.latency(actor)
        self.kernel.start(deliver, "network")

    def _ended(self, process: Process) -> None:
        actor = self.by_process.pop(process, None)
        if actor is not None:
            for reference in actor.pending:
                self.fail(actor, reference)
            actor.pending.clear()
        elif process.name == "driver":  # Ray ends the actors of a program with it
            for each in list(self.by_process):
                self.kernel.kill(each, signal.SIGKILL)

    # ------------------------------------------------------------------------------------------- what anyk calls

    def is_initialized(self) -> bool:
        return True

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(gcs_address="world")

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 1000.0}

    def nodes(self) -> list[Any]:
        return []

    def put(self, vector: Any) -> Reference:
        reference = Reference()
        reference.value, reference.done = _read_only(vector), True
        return reference

    def remote(self, **_: Any) -> Any:
        def kind(cls: type) -> Any:
            created = SimpleNamespace(remote=lambda *arguments: _Actor(self, cls, arguments))
            return SimpleNamespace(options=lambda **_: created)

        return kind

    def wait(self, calls: Sequence[Reference], num_returns: int, timeout: float) -> tuple[list[Reference], None]:
        self.kernel.call("wait", num_returns)
        self.kernel.wait(lambda: sum(call.done for call in calls) >= num_returns, timeout)
        return [call for call in calls if call.done][:num_returns], None

    @staticmethod
    def answered(ray: FakeRay, reference: Reference, seconds: float) -> memoryview:
        """Return the bytes of a call, in place of :func:`anyk.clusters.ray.answers.answer`."""
        del seconds
        try:
            return memoryview(ray.get(reference))
        except RayError as error:
            raise Unanswered(str(error)) from None

    def get(self, reference: Reference | list[Reference], timeout: float = 0.0) -> Any:
        if isinstance(reference, list):
            return [self.get(each) for each in reference]
        self.kernel.call("get")
        if reference.error is not None:
            raise reference.error
        return reference.value

    def kill(self, actor: _Actor, no_restart: bool) -> None:
        del no_restart
        self.kernel.call("kill actor")
        self.kernel.kill(actor.process, signal.SIGKILL)


@contextlib.contextmanager
def installed(kernel: Kernel, time: Any, os: Any, crashed: Callable[[], None]) -> Iterator[None]:
    """Let the kernel carry out what the ``ray`` cluster asks of Ray, threads and the clock while the context lasts."""
    ray = FakeRay(kernel)

    def thread(target: Callable[[], None], daemon: bool) -> Any:
        del daemon
        leader = kernel.current
        return SimpleNamespace(start=lambda: kernel.start(target, f"{leader.name} run", thread_of=leader))

    threading = SimpleNamespace(
        Lock=lambda: Lock(kernel), Condition=lambda lock: _Condition(kernel, lock), Thread=thread
    )
    replaced = [
        (
            actors,
            {
                "time": time,
                "ray_module": lambda: ray,
                "answer": ray.answered,
                "machines_drained": lambda actors: {},
                "sys": SimpleNamespace(modules={**sys.modules, "ray": ray}),
            },
        ),
        (
            ray_actor,
            {
                "time": time,
                "os": os,
                "ray_module": lambda: ray,
                "threading": threading,
                "traceback": SimpleNamespace(print_exc=crashed),
            },
        ),
        (networked, {"time": time, "os": os, "threading": threading}),
    ]
    with contextlib.ExitStack() as stack:
        for module, names in replaced:
            for name, value in names.items():
                stack.enter_context(mock.patch.object(module, name, value))
        yield
