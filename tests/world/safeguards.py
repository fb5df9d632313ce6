"""Safeguards, each with what is left when it is removed, and the auditors that must notice within 1,000 seeds.

A net is proved by what it catches. Safeguards that mask each other are removed together.
"""

from __future__ import annotations

import contextlib
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any, NamedTuple
from unittest import mock

from anyk.base import regular_files
from anyk.clusters import store
from anyk.clusters.nodes import (
    agent,
    arrivals,
    carrier,
    holders,
    hub,
    nodes,
    session,
    site,
    sliced_messages,
    sliced_store,
    wire,
)
from anyk.clusters.processes import memory, processes, shared_store
from anyk.clusters.remote import networked, remote
from anyk.runs import saving
from anyk.runs.engine import ledger, versions
from anyk.runs.folder import checkpoints
from anyk.runs.log import log_writer


class Edit(NamedTuple):
    """A change of one method: ``old`` occurs once in its source and becomes ``new``."""

    module: Any
    owner: type
    method: str
    old: str
    new: str

    def changed(self) -> Any:
        """Return the changed method."""
        source = textwrap.dedent(inspect.getsource(getattr(self.owner, self.method)))
        assert source.count(self.old) == 1, f"{self.owner.__name__}.{self.method} has changed: {self.old}"
        found: dict[str, Any] = {}
        code = "from __future__ import annotations\n" + source.replace(self.old, self.new)
        code = code.replace("super()", f"super({self.owner.__name__}, self)")
        exec(compile(code, inspect.getfile(self.owner), "exec"), self.module.__dict__, found)
        return found[self.method]


class Safeguard(NamedTuple):
    """A safeguard: its ``edits`` remove it; ``strategies``: those of which one must be run for it to matter.

    ``most``: the most deviations of each stream; with many, a first failure may be a race that needs all their delays.
    ``first``: the first seed to try, near one that fails. ``copies``: of slices of the model that nodes hold.
    """

    name: str
    edits: tuple[Edit, ...]
    auditors: tuple[str, ...]
    strategies: tuple[str, ...]
    families: tuple[str, ...] = ()
    cluster: str = "processes"
    most: int = 80
    first: int = 0
    copies: int = 0

    @contextlib.contextmanager
    def removed(self) -> Iterator[None]:
        """Run without the safeguard while the context lasts."""
        with contextlib.ExitStack() as stack:
            for edit in self.edits:
                stack.enter_context(mock.patch.object(edit.owner, edit.method, edit.changed()))
            yield


_REMOTE = (remote, remote.Remote)
_PROCESSES = (processes, processes.Processes)
_NETWORKED = (networked, networked.NetworkedWorker)
_STORE = (shared_store, shared_store.SharedStore)

SAFEGUARDS = (
    Safeguard(
        "discarding replies whose task has ended",
        (Edit(*_REMOTE, "_on_reply", "entry is None or chunk not in self._tasks.missing[task]", "False"),),
        ("crash",),
        ("k-sync:k=3", "frc:load=2", "async"),
    ),
    Safeguard(
        "freeing the buffers of discarded replies",
        (
            Edit(
                *_REMOTE,
                "_on_reply",
                "missing[task]:\n        store.free_buffer(worker, buffer)\n",
                "missing[task]:\n",
            ),
        ),
        ("buffers", "progress"),
        ("k-sync:k=3", "frc:load=2", "uncoded:wait=3,cancel=discard"),
    ),
    Safeguard(
        "keeping messages in use when their worker dies",
        (Edit(*_STORE, "void", "if buffer not in self._occupied[worker]:", "if True:"),),
        ("buffers", "messages"),
        ("uncoded", "k-batch-async:k=3", "fedbuff:tau=2,k=3"),
        ("kill worker",),
    ),
    Safeguard(
        "freeing the buffer that a dead worker was writing",
        (Edit(*_PROCESSES, "on_death", "self.store.void(died.worker)", "pass"),),
        ("buffers", "progress"),
        ("uncoded", "frc:load=2", "async"),
        ("kill worker",),
        first=21,
    ),
    Safeguard(
        "copying messages out of buffers when many are held",
        (
            Edit(
                *_STORE,
                "keep",
                "if len(occupied) >= self._plan.buffers - 1 and not self._copy_out(notice.worker):",
                "if False:",
            ),
        ),
        ("progress",),
        ("fedbuff:tau=2,k=24",),
    ),
    Safeguard(
        "the mail box's checksum",
        (
            Edit(
                memory,
                memory.MailBox,
                "take",
                "_checksum(seq, offset, orders) == checksum and self._newest() == seq",
                "self._newest() == seq",
            ),
        ),
        ("crash", "messages", "progress", "ledger"),
        ("async", "k-sync:k=3", "uncoded:models=2"),
        first=30,
    ),
    Safeguard(
        "the incarnation of replies, and reading a dead worker's reports first",
        (
            Edit(
                *_REMOTE,
                "_interpret",
                "news.incarnation != handle.incarnation or handle.gone or handle.due is not None",
                "False",
            ),
            Edit(*_PROCESSES, "_hear_helper", "self._take(self._reports.drain())", "pass"),
        ),
        ("buffers", "messages", "crash", "progress"),
        ("async", "k-batch-async:k=3"),
        ("kill worker", "stop driver"),
        first=29,
    ),
    Safeguard(
        "counting the tasks that read a message",
        (Edit(store, store.VectorStore, "free", "(task, chunk) in self.readers", "False"),),
        ("buffers", "messages"),
        ("dpsgd:graph=ring", "ad-psgd:tau=2"),
    ),
    Safeguard(
        "keeping a model version that tasks read",
        (
            Edit(
                versions,
                versions.Versions,
                "publish",
                "self._problem is not None and (slot, version) not in self._pins",
                "self._problem is not None",
            ),
        ),
        ("versions", "messages"),
        ("async", "k-async:k=2"),
    ),
    Safeguard(
        "counting the tasks that read a model version",
        (
            Edit(versions, versions.Versions, "pin", "self._pins.get(key, 0) + 1", "1"),
            Edit(versions, versions.Versions, "unpin", "self._pins[key] -= 1", "self._pins[key] = 0"),
        ),
        ("versions", "messages", "crash"),
        ("async", "k-async:k=2", "uncoded"),
    ),
    Safeguard(
        "using the newest envelope only",
        (Edit(*_NETWORKED, "receive", "envelope.number > self._number", "True"),),
        ("messages", "crash", "progress"),
        ("k-sync:k=3",),
        ("question",),
        cluster="ray",
        first=30,
    ),
    Safeguard(
        "waiting for all vectors of an envelope",
        (Edit(*_NETWORKED, "changed", "all(key in self._vectors for key in envelope.needs)", "True"),),
        ("messages", "crash", "progress"),
        ("k-sync:k=3",),
        ("question",),
        cluster="ray",
        most=20,
    ),
    Safeguard(
        "refusing messages of tasks that were cancelled",
        (
            Edit(
                ledger,
                ledger.Ledger,
                "arrive",
                "self._late(reply)\n        return None",
                "self._late(reply)\n        return reply",
            ),
        ),
        ("messages", "crash"),
        ("k-sync:k=3", "uncoded:wait=3,cancel=discard"),
    ),
    Safeguard(
        "writing a state beside the one that it continues",
        (
            Edit(
                memory,
                memory.SharedStates,
                "__setitem__",
                "next(slot for slot in self._slots if slot not in occupied.values())",
                "self._slots[0]",
            ),
        ),
        ("messages", "agreement"),
        ("diloco:tau=2", "compressed:of=(k-sync:k=4),by=(top-k:share=0.5)"),
        ("kill driver", "checkpoint"),
    ),
    Safeguard(
        "dropping the states of a dead worker",
        (Edit(*_STORE, "void", "self.states[worker].clear()", "pass"),),
        ("messages",),
        ("diloco:tau=2",),
        ("kill worker",),
    ),
)

_ANY = ("frc:load=2", "k-sync:k=3", "async", "uncoded")

ON_NODES = (
    Safeguard(
        "checking digests before anything is used",
        (Edit(wire, wire.Reads, "arrived", "_digest(data) == read.digests[piece]", "True"),),
        ("crash", "messages", "models", "progress"),
        _ANY,
        ("changed bytes",),
        cluster="nodes",
    ),
    Safeguard(
        "unpickling data only once all of it is there",
        (Edit(agent, agent.Agent, "_look", "run is None or run.data_left", "run is None"),),
        ("crash", "progress"),
        _ANY,
        cluster="nodes",
    ),
    Safeguard(
        "taking each message once and in order",
        (Edit(session, session.Session, "take", "frame.number != self._taken + 1", "not frame.number"),),
        ("crash", "progress", "messages", "lives"),
        _ANY,
        ("link reset",),
        cluster="nodes",
        first=8,
    ),
    Safeguard(
        "sending again what was not acknowledged",
        (Edit(session, session.Session, "_send_again", "if self._kept and", "if False and"),),
        ("progress",),
        _ANY,
        ("link reset",),
        cluster="nodes",
    ),
    Safeguard(
        "freeing messages only once they are read",
        (Edit(arrivals, arrivals.Arrivals, "announce", "name = (", "message.free()\n    name = ("),),
        ("progress", "messages", "crash"),
        _ANY,
        cluster="nodes",
    ),
    Safeguard(
        "keeping a message whose slices are in use",
        (Edit(sliced_messages, sliced_messages.SlicedMessages, "entered", '"""Do', 'message.free()\n    """Do'),),
        ("progress", "messages", "models", "crash"),
        ("frc:load=2", "k-sync:k=3", "uncoded"),
        cluster="nodes",
        first=8,
        copies=1,
    ),
    Safeguard(
        "ending a run whose slice was lost with a node",
        (
            Edit(
                nodes,
                nodes.Nodes,
                "_lose_node",
                "self._holders is not None and node.run == self.run and self._holders.lose(node.rank)",
                "False",
            ),
        ),
        ("progress", "messages", "models", "crash"),
        ("frc:load=2", "k-sync:k=3", "uncoded"),
        ("kill node",),
        cluster="nodes",
        first=8,
        copies=1,
    ),
    Safeguard(
        "keeping messages until both copies of a slice have taken the step",
        (Edit(sliced_store, sliced_store.SlicedStore, "apply", "keep=keep,\n        late", "keep=(),\n        late"),),
        ("progress", "messages", "models", "crash"),
        ("frc:load=2", "k-sync:k=3", "uncoded"),
        ("kill node",),
        cluster="nodes",
        copies=2,
        first=44,
    ),
    Safeguard(
        "handing messages to a node that holds a slice again",
        (Edit(holders, holders.Holders, "resume", "self.messages.hand_over(slice_number, rank)", "pass"),),
        ("progress",),
        ("k-sync:k=3", "async", "uncoded:wait=3,snapshot=3"),
        ("kill node",),
        cluster="nodes",
        copies=2,
        first=15,
    ),
    Safeguard(
        "signing the entries of the store",
        (Edit(site, site, "unsigned", "if not hmac.compare_digest(signed(secret, name, value), data):", "if False:"),),
        ("strangers",),
        _ANY,
        ("stranger", "kill node"),
        cluster="nodes",
    ),
    Safeguard(
        "writing the driver's entry again",
        (Edit(hub, hub.Hub, "_keep_entry", "not self.site.has(self.entry)", "False"),),
        ("progress", "crash"),
        _ANY,
        ("stranger", "kill node"),
        cluster="nodes",
        first=7,
    ),
    Safeguard(
        "comparing versions before anything else",
        (
            Edit(agent, agent, "serve", 'difference(f"node {rank}", versions(), driver.versions)', '""'),
            Edit(
                carrier,
                carrier.DriverCarrier,
                "_on_key",
                'difference(f"node {entry.rank}", entry.versions, versions())',
                '""',
            ),
        ),
        ("versions",),
        _ANY,
        ("other version",),
        cluster="nodes",
    ),
    Safeguard(
        "starting a new life of a rank afresh",
        (Edit(hub, hub.Hub, "_lose", "self.open.node_died(node, reason)", "pass"),),
        ("progress", "messages", "crash"),
        _ANY,
        ("kill node",),
        cluster="nodes",
    ),
    Safeguard(
        "starting no worker twice when its node is back",
        (Edit(nodes, nodes.Nodes, "node_joined", "(worker, handle.incarnation) in dead", "False"),),
        ("progress", "messages", "crash"),
        _ANY,
        ("kill node",),
        cluster="nodes",
        first=59,
    ),
    Safeguard(
        "telling a life that it was taken for dead",
        (Edit(carrier, carrier.DriverCarrier, "_on_frame", "if life in self._over:", "if False:"),),
        ("progress", "crash", "lives"),
        _ANY,
        ("link down",),
        cluster="nodes",
        first=101,
    ),
    Safeguard(
        "telling a stopped machine from a dead one",
        (Edit(session, session.NodeWatch, "answered", 'answer == "refused"', 'answer != "none"'),),
        ("lives",),
        _ANY,
        ("stop node",),
        cluster="nodes",
    ),
    Safeguard(
        "one program for each rank",
        (Edit(carrier, carrier.DriverCarrier, "_judge", 'answer == "accepted"', "False"),),
        ("lives",),
        _ANY,
        ("second node",),
        cluster="nodes",
    ),
)

_SAVING = (saving, saving.Saving)
_ROUNDS = ("frc:load=2", "k-sync:k=3", "async")

IN_FOLDERS = (
    Safeguard(
        "writing the log durably before a checkpoint",
        (Edit(*_SAVING, "_save", "log.flush(lasting=True)", "log.flush()"),),
        ("crash", "durability"),
        _ROUNDS,
        ("power loss",),
    ),
    Safeguard(
        "creating the log durably",
        (
            Edit(
                log_writer,
                log_writer.LogWriter,
                "_create",
                'db.execute("BEGIN")',
                'db.execute("PRAGMA synchronous=NORMAL"); db.execute("BEGIN")',
            ),
        ),
        ("crash",),
        _ROUNDS,
        ("power loss",),
    ),
    Safeguard(
        "writing a checkpoint durably before it replaces another",
        (
            Edit(checkpoints, checkpoints, "save", "            synchronise(unfinished)\n", ""),
            Edit(regular_files, checkpoints, "replacing", "        synchronise(unfinished)\n", ""),
        ),
        ("crash", "durability"),
        _ROUNDS,
        ("power loss",),
    ),
    Safeguard(
        "making a checkpoint's name durable",
        (Edit(regular_files, checkpoints, "replacing", "    synchronise(target.parent)\n", ""),),
        ("crash", "durability"),
        _ROUNDS,
        ("power loss",),
        first=10,
    ),
    Safeguard(
        "cutting the log back to the checkpoint",
        (
            Edit(
                *_SAVING,
                "recover_log",
                'log.truncate(saved.state["seq"], saved.state["seal"])',
                'log.seq = saved.state["seq"]',
            ),
        ),
        ("crash", "log", "folder", "progress", "replay"),
        _ROUNDS,
        ("kill driver",),
    ),
    Safeguard(
        "numbering what is logged after a checkpoint anew",
        (Edit(*_SAVING, "_save", "log.seq += 1  # entries", "0  # entries"),),
        ("crash", "log", "folder", "replay"),
        _ROUNDS,
        ("kill driver",),
    ),
    Safeguard(
        "numbering no two checkpoints alike",
        (Edit(*_SAVING, "_save", "log.seq += 1  # no two", "0  # no two"),),
        ("crash", "durability", "folder"),
        _ROUNDS,
        ("kill driver", "interrupt"),
        first=23,
    ),
    Safeguard(
        "the digest of a checkpoint",
        (Edit(checkpoints, checkpoints, "load", "_digest(encoded, arrays) == digest", "True"),),
        ("models", "replay", "crash", "messages", "folder"),
        _ROUNDS,
        ("kill driver", "damage"),
    ),
    Safeguard(
        "keeping the checkpoint before",
        (Edit(checkpoints, checkpoints, "save", "target.replace(folder / OLDER)", "pass"),),
        ("folder", "crash"),
        _ROUNDS,
        ("kill driver", "damage"),
    ),
    Safeguard(
        "copying vectors before they are written to a checkpoint",
        (
            Edit(
                checkpoints, checkpoints.CheckpointWriter, "start", "copies[key][...] = vector", "copies[key] = vector"
            ),
        ),
        ("crash", "models", "messages", "durability", "folder"),
        _ROUNDS,
        ("kill driver",),
    ),
)
