"""How a problem's partitions reach workers: pickled once by the driver, their arrays beside the pickle, uncopied."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

from anyk.errors import BadInput
from anyk.problems.base import Partitions


def ship(partitions: Partitions) -> list[memoryview]:
    """The object's bytes, then those of its arrays; classes of a script or notebook go along by value."""
    import cloudpickle

    raw: list[Any] = []
    try:
        main = cloudpickle.dumps(partitions, protocol=5, buffer_callback=raw.append)
    except Exception as error:
        raise BadInput(f"the problem cannot be sent to workers: {error}") from None
    return [memoryview(main), *(buffer.raw() for buffer in raw)]


def unship(buffers: Sequence[memoryview]) -> Any:
    """The partitions on a worker; their arrays lie in the buffers.

    Not a peer's, a file's or a reply's bytes: the driver that this worker belongs to made them.
    """
    return pickle.loads(buffers[0], buffers=buffers[1:])
