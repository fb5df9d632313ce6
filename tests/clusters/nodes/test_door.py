"""Strangers at a listening port, by the events of its connections."""

from __future__ import annotations

import pytest

from anyk.clusters.nodes.door import HANDSHAKE, Door, Said

pytestmark = pytest.mark.in_process


class Listening:
    """A port whose events the tests make up."""

    def __init__(self) -> None:
        self.time = 0.0
        self.told: list[str] = []
        self.door = Door("10.0.0.1:29501", self.told.append, lambda: self.time)

    def see(self, *events: object) -> int:
        """Take in events, each with the descriptor that follows it; return how many strangers were told of."""
        for event, descriptor in zip(events[::2], events[1::2], strict=True):
            self.door.happened(event, descriptor)  # type: ignore[arg-type]
        return len(self.told)


@pytest.mark.parametrize(
    ("events", "strangers"),
    [
        (("accepted", 7, "over", 0, "ended", 7), 0),  # a node that has come and gone
        (("accepted", 7, "silent", 104, "ended", 7), 1),
        (("accepted", 7, "refused", 1, "ended", 7), 1),
        (("accepted", 7, "ended", 7), 1),  # without a word from ZeroMQ, as after garbage
        (("accepted", 7, "accepted", 8, "over", 0, "over", 0, "ended", 8, "ended", 7), 0),
        (("accepted", 7, "over", 0, "accepted", 8, "ended", 8, "ended", 7), 1),
        (("ended", 7), 0),
    ],
)
def test_connections_that_do_not_introduce_themselves_are_told(events: tuple[object, ...], strangers: int):
    listening = Listening()
    assert listening.see(*events) == strangers
    assert all("10.0.0.1:29501" in sentence for sentence in listening.told)


def test_a_connection_that_lasts_is_no_stranger():
    listening = Listening()
    listening.see("accepted", 7)
    listening.time += 3 * HANDSHAKE
    assert listening.see("accepted", 8, "over", 0, "ended", 7) == 0


def test_a_stranger_cannot_fill_the_screen(capsys):
    said = Said()
    assert said.say("one") and not said.say("one")
    for number in range(1000):
        said.say(str(number))
    assert len(capsys.readouterr().err.splitlines()) == len(said.sentences) == 20
