"""Strangers at a listening port, noticed by the events of its connections."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Literal

HANDSHAKE = 5.0  # seconds that a connection may take to say who it is

_MOST_LINES = 20
DoorEvent = Literal["accepted", "over", "silent", "refused", "ended"]


class Door:
    """Notices connections that end without having said who they are.

    ZeroMQ tells that a handshake is over, but not of which connection: it is taken for that of the oldest. ``tell`` is
    given a sentence about a stranger.
    """

    def __init__(self, address: str, tell: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._address, self._tell, self._clock = address, tell, clock
        self._shaking: dict[int, float] = {}  # when connections whose handshake is not over began, by descriptor

    def happened(self, event: DoorEvent, descriptor: int) -> None:
        """Take in an event of a connection; ``descriptor``: of which, if it was accepted or has ended.

        Its handshake is ``over``, stayed ``silent``, or was ``refused`` as it did not follow the protocol.
        """
        now = self._clock()
        self._shaking = {other: since for other, since in self._shaking.items() if since > now - 2.0 * HANDSHAKE}
        if event == "accepted":
            self._shaking[descriptor] = now
        elif event == "ended":
            if self._shaking.pop(descriptor, None) is not None:
                self._report()
        else:
            if self._shaking:
                del self._shaking[next(iter(self._shaking))]
            if event != "over":
                self._report()

    def _report(self) -> None:
        self._tell(
            f"a connection to {self._address} did not say that it is of this job, and was not admitted: a stranger, a "
            "port scan, or a node that looked whether this program is there"
        )


def say(sentence: str) -> None:
    """Print a sentence to standard error."""
    print(f"anyk: {sentence}", file=sys.stderr, flush=True)


class Said:
    """Prints sentences about strangers, each once, and not endlessly many."""

    def __init__(self) -> None:
        self.sentences: dict[str, None] = {}

    def say(self, sentence: str) -> bool:
        """Print a sentence; return whether it is a new one."""
        if sentence in self.sentences or len(self.sentences) >= _MOST_LINES:
            return False
        self.sentences[sentence] = None
        say(sentence)
        return True
