"""What the driver does with news that no node of anyk sends, and with reads whose source is gone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from anyk.base.errors import RunFailed
from anyk.clusters.contract import Report
from anyk.clusters.nodes.carrier import is_address
from anyk.clusters.nodes.nodes import Nodes
from anyk.clusters.nodes.run_nodes import RunNodes
from anyk.clusters.nodes.session import Told
from anyk.clusters.nodes.wire import PIECE, Offered
from anyk.clusters.remote.channel import REPLY

pytestmark = pytest.mark.in_process
NODE: Any = SimpleNamespace(
    rank=1, hello=SimpleNamespace(address="10.0.0.2:5"), messages=[], vectors=[], slices=[], has=set()
)


def driver(**parts: Any) -> Any:
    """A driver of two nodes and four workers, each of which sends five numbers, without a network."""
    cluster: Any = object.__new__(Nodes)
    messages = SimpleNamespace(dtype=np.dtype("f8"))
    nodes = {0: SimpleNamespace(hello=SimpleNamespace(address="10.0.0.1:5")), 1: NODE}
    hub = SimpleNamespace(size=2, nodes=nodes, next_read=iter(range(1, 9)).__next__, poll=lambda seconds: nodes.pop(1))
    given = {"workers": 4, "_lengths": [5] * 4, "store": SimpleNamespace(messages=messages), "_hub": hub} | parts
    cluster.__dict__.update(given)
    return cluster


def told(worker: int = 1, form: Any = ("<f8", 5), size: int = 40, digests: Any = (b"d",), key: bytes = b"k") -> Told:
    return Told(1, worker, 0, Report(REPLY, 3), form, Offered(key, size, digests))


@pytest.mark.parametrize(
    "message",
    [
        told(form=("<f8", 1 << 50), size=8 << 50, digests=(b"d",) * 3),
        told(form=("<f8", 1 << 50)),
        told(form=("<f8", -1), size=-8, digests=()),
        told(form=("<f8", 9), size=72),
        told(form=("<f4", 5)),
        told(form=("O", 5)),
        told(form=("<f8\0" * 999, 5)),
        told(form=None),
        told(digests=()),
        told(digests=(b"d",) * (PIECE + 1)),
        told(key=b"k" * 1000),
        told(worker=4),
        told(worker=-1),
        told(worker=2),  # of another node
    ],
)
def test_absurd_announcements_take_no_memory(message: Told):
    with pytest.raises(RunFailed, match="sent what no worker sends"):
        driver().on_message(NODE, message)


@pytest.mark.parametrize("text", ["", "5", "10.0.0.1", "10.0.0.1:", "10.0.0.1:0", "10.0.0.1:65536", "a b:5", "host:5", "10.0.0.1:5:6", "10.0.0.1:٣"])  # fmt: skip
def test_only_an_address_is_connected_to(text: str):
    assert not is_address(text) and is_address("10.0.0.1:5") and is_address("[fe80::1]:5")


def test_a_read_whose_source_is_gone_ends():
    stopped: list[int] = []
    hub = driver()._hub
    hub.carrier = SimpleNamespace(address="10.0.0.1:6", read=lambda *arguments: None, stop=stopped.append)
    nodes = RunNodes(hub, works=lambda rank: True, arrived=lambda number, failure: None)
    nodes.store = SimpleNamespace(gone=[])  # type: ignore[assignment]
    hub.nodes[0].vectors = hub.nodes[0].messages = hub.nodes[0].slices = []
    hub.nodes[0].has = set()
    with pytest.raises(RunFailed, match="a node was lost with a vector that the driver needs; resume the run"):
        nodes.read_now([(memoryview(bytearray(8)), Offered(b"k", 8, (b"d",)), "10.0.0.2:5")])
    assert stopped == [1] and not nodes.finished(1, True)
