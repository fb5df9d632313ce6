"""What Ray's actors answer, read without unpickling anything.

``ray.get`` unpickles what an actor returned, and also its errors, so that a worker that has been taken over could run
code in the driver. Bytes are the exception: Ray passes them on as they are, and marks them as such. Ray has no public
function that reads only those; what is used here instead is what ``ray.get`` itself calls first.
"""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

FOREVER = 1e6  # seconds to wait for an object; Ray itself tells of one that is lost
_RAW = b"RAW"  # how Ray marks objects that are bytes
_LONGEST = 2000  # characters of an error that are kept


class Unanswered(Exception):
    """A call has no answer, as its actor has died or was never created; ``at_start``: its constructor failed."""

    def __init__(self, reason: str, *, at_start: bool = False) -> None:
        super().__init__(reason)
        self.at_start = at_start


def answer(ray: Any, reference: Any, seconds: float) -> memoryview:
    """Return the bytes that an actor's method returned.

    Raises :class:`Unanswered` where Ray reports an error instead, and ValueError for an object that is no bytes.
    """
    worker = ray._private.worker.global_worker
    milliseconds = int(seconds * 1000)
    try:
        try:
            ((data, mark, *_),) = worker.core_worker.get_objects([reference], milliseconds)
        except TypeError:  # older versions of Ray
            ((data, mark, *_),) = worker.core_worker.get_objects([reference], worker.current_task_id, milliseconds)
    except ray.exceptions.RayError as error:  # Ray's own: it did not arrive in time
        raise Unanswered(str(error)) from None
    first = bytes(mark or b"").partition(b",")[0]
    if first == _RAW:
        return memoryview(b"" if data is None else data)
    if not first.isdigit():
        raise ValueError("an object of Python, which is not unpickled here")
    raise _error(ray, int(first), data)


def leave_errors_closed(ray: Any) -> None:
    """Have Ray not unpickle errors that nobody has asked for, which it does to print them, with their last reference.

    A call that returns several objects and fails has one error for each, of which :func:`answer` reads the first.
    """
    with contextlib.suppress(AttributeError):  # other versions of Ray
        ray._private.worker.global_worker.raise_errors = lambda *_: None


def _error(ray: Any, number: int, data: Any) -> Unanswered:
    """Return an error that Ray reports, from its texts; the pickled exception in it stays closed."""
    from ray.core.generated import common_pb2

    kinds: Any = common_pb2
    ErrorType, RayErrorInfo, RayException = kinds.ErrorType, kinds.RayErrorInfo, kinds.RayException
    name = "unknown error"
    with contextlib.suppress(ValueError):
        name = ErrorType.Name(number).lower().replace("_", " ")
    message = _message(ray, data)
    if name == "task execution exception":
        failed = RayException()
        with contextlib.suppress(Exception):  # whatever protobuf makes of damaged bytes
            failed.ParseFromString(message)
        return Unanswered(_last_line(failed.formatted_exception_string) or name)
    info = RayErrorInfo()
    with contextlib.suppress(Exception):
        info.ParseFromString(message)
    died = info.actor_died_error
    if died.HasField("creation_task_failure_context"):
        reason = _last_line(died.creation_task_failure_context.formatted_exception_string)
        return Unanswered(reason or name, at_start=True)
    if died.HasField("actor_died_error_context"):
        context = died.actor_died_error_context
        return Unanswered(str(ray.exceptions.ActorDiedError(cause=context))[:_LONGEST])
    return Unanswered(info.error_message[:_LONGEST] or name)


def _message(ray: Any, data: Any) -> bytes:
    """Return the bytes in an error's data, which Ray packs with msgpack; empty if there are none."""
    with contextlib.suppress(Exception):  # whatever damaged bytes make of the reader
        packed, _ = ray._private.serialization.split_buffer(data)
        return msgspec.msgpack.decode(bytes(packed), type=bytes)
    return b""


def _last_line(traceback: str) -> str:
    """Return the last line of the first exception in a traceback, which says what went wrong."""
    first = traceback.partition("\nDuring handling of the above")[0]
    lines = [line.strip() for line in first.splitlines() if line.strip()]
    return lines[-1][:_LONGEST] if lines else ""
