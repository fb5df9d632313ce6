"""Optimisers whose states the nodes hold in slices, as the driver knows them."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from anyk.base.arrays import Vector, Vectors
from anyk.base.errors import BadInput
from anyk.clusters.contract import Key
from anyk.clusters.nodes.holders import Holders
from anyk.clusters.nodes.node import DriverOfNodes
from anyk.clusters.nodes.session import Done, Hold, OfferedPart, Show
from anyk.clusters.nodes.sliced_versions import SlicedVersions, check_offered
from anyk.clusters.nodes.wire import Offered, bytes_of
from anyk.clusters.remote.wire import Form, form_of, vector_type
from anyk.clusters.steps import named_outer, split_states
from anyk.optimizers import Optimizer, unclipped

OfferedState = list[tuple[str, Form, OfferedPart]]  # the vectors of a state at a slice, by name


class HeldOptimizers:
    """Gives the holders optimisers and the states to begin with, and reads the states that they have.

    ``needs`` returns the versions of a slot from which steps may be taken, or which they may need.
    """

    def __init__(
        self, cluster: DriverOfNodes, holders: Holders, versions: SlicedVersions, needs: Callable[[str], list[Key]]
    ) -> None:
        self._cluster, self._holders, self._versions, self._needs = cluster, holders, versions, needs
        self._questions, self._placement = holders.questions, holders.placement
        self._optimizers: dict[str, Optimizer] = {}
        self._states: dict[str, Vectors | None] = {}  # not given to the holders yet; None: fresh ones
        self._held: dict[str, tuple[Optimizer, bytes]] = {}  # as the holders have them
        self._factors: dict[str, dict[int, tuple[Form, OfferedPart] | None]] = {}  # the regulariser's, by slice
        self._offers: list[Offered] = []

    def start(self, slot: str, optimizer: Optimizer, states: Vectors | None) -> None:
        """Note the optimiser of a slot; raise :class:`~anyk.BadInput` for one that cannot step slices."""
        _check_sliceable(optimizer)
        self._optimizers[slot] = optimizer
        self._states[slot] = optimizer.given_state() or None if states is None else states

    def clear(self) -> None:
        """Withdraw what the driver offers."""
        for offered in self._offers:
            self._cluster.carrier.drop(offered.key)
        self._offers.clear()

    def at_step(self, slot: str, optimizer: Optimizer, version: int, scale: float) -> Optimizer:
        """Return what takes a step; raise :class:`~anyk.BadInput` if that is not the slot's optimiser."""
        if optimizer is not self._optimizers[slot]:
            raise BadInput(
                "with slices no node has the whole gradient: parameters with hooks, and loops that take steps "
                "themselves, need a cluster without slices"
            )
        return optimizer.at_step(version, scale)

    def renew(self, slot: str, optimizer: Optimizer, penalties: Vector | None) -> bytes:
        """Give the holders all for the first step; return the optimiser if they have a different one, else nothing.

        ``penalties``: the regulariser's factors by coordinate.
        """
        if slot in self._states:
            self._held[slot] = optimizer, pickle.dumps(optimizer)
            self._hold(slot, penalties)
            return b""
        before, pickled_before = self._held[slot]
        if optimizer is before:
            return b""
        pickled = pickle.dumps(optimizer)
        self._held[slot] = optimizer, pickled
        return b"" if pickled == pickled_before else pickled

    def _hold(self, slot: str, penalties: Vector | None) -> None:
        """Give the holders the optimiser of a slot, with the slices of its state and of the regulariser's factors."""
        states, optimizer = self._states.pop(slot), self._held[slot][0]
        slices: dict[int, OfferedState | None] = dict.fromkeys(self._placement.slices)
        factors = self._factors[slot] = dict.fromkeys(self._placement.slices)
        for number, (first, last) in self._placement.slices.items():
            coordinates = slice(first, last)
            if states is not None:
                inner, outer = split_states(states)
                sliced = optimizer.state_at(inner, coordinates) | named_outer(_outer_at(outer, coordinates))
                slices[number] = [(name, *self._offered_part(vector)) for name, vector in sliced.items()]
            if penalties is not None:
                factors[number] = self._offered_part(penalties[coordinates])
        self._versions.locate(self._needs(slot))
        self._questions.ask_all(lambda run, question, of: self._hold_order(slot, slices[of], run, question, of))

    def _hold_order(self, slot: str, states: OfferedState | None, run: int, question: int, number: int) -> Hold:
        return Hold(
            run,
            question,
            number,
            slot,
            self._held[slot][1],
            states=states,
            penalties=self._factors[slot][number],
            needs=self._needs(slot),
            offers=self._versions.keys(slot),
        )

    def _offered_part(self, vector: Vector) -> tuple[Form, OfferedPart]:
        contiguous = np.ascontiguousarray(vector)
        form, carrier = form_of(contiguous), self._cluster.carrier
        assert form is not None
        self._offers.append(carrier.offer(bytes_of(contiguous)))
        return form, OfferedPart(0, self._offers[-1], carrier.address)

    # ------------------------------------------------------------------------------------------- states

    def states(self, slot: str, model: Callable[[], Vector]) -> Vectors:
        """Return the state of a slot's optimiser at the newest version, which ``model`` returns."""
        optimizer = self._optimizers[slot]
        if slot in self._states:
            states = self._states[slot]
            return optimizer.start(model()) if states is None else states
        version = self._versions.newest[slot]
        parts: list[tuple[Vectors, Vectors]] = []
        while len(parts) < len(self._placement.slices):  # one that showed its slice may have been lost
            answers = self._questions.ask(lambda run, number, of: Show(run, number, of, slot, version))
            read = [self._read_states(number, rank, done) for number, (rank, done) in answers.items()]
            parts = [split_states(states) for states in read if states is not None]
        joined = optimizer.joined_state([inner for inner, _ in parts])
        return joined | named_outer(_joined_outer([outer for _, outer in parts]))

    def _read_states(self, number: int, rank: int, done: Done) -> Vectors | None:
        """Read the state that a holder of a slice offers; return None if it is lost."""
        states: Vectors = {}
        reads = []
        for name, form, part in self._shown(number, rank, done):
            states[name] = np.empty(form[1], dtype=vector_type(form))
            reads.append((bytes_of(states[name]), part.offered, part.address))
        moved = not self._cluster.read_now(reads, moved=lambda: rank not in self._placement.ranks[number])
        return None if moved else states

    def _shown(self, number: int, rank: int, done: Done) -> OfferedState:
        """Return the parts of a state that a holder of a slice offers."""
        first, last = self._placement.slices[number]
        parts = []
        for name, form, offered in done.offered:
            kind = vector_type(form)
            check_offered(rank, offered, form[1] * kind.itemsize, most=max(last - first, 1) * kind.itemsize)
            parts.append((name, form, OfferedPart(0, offered, self._cluster.address_of(rank))))
        return parts

    # ------------------------------------------------------------------------------------------- who comes back

    def bring_back(self) -> None:
        """Make nodes up to date that can hold slices again: with the state of the other copy, before its next step."""
        for number, rank in self._holders.returning():
            if all(self._hand_over(slot, number, rank) for slot in self._held):
                self._holders.resume(number, rank)
            else:
                self._holders.put_off(number, rank)

    def _hand_over(self, slot: str, number: int, rank: int) -> bool:
        """Give a node a slice of a slot's state as another one has it; return whether it has it now."""
        version, giver = self._versions.newest[slot], self._placement.ranks[number][0]
        self._cluster.locate(rank, self._needs(slot))
        answer = self._questions.ask_one(
            number, giver, lambda run, question, of: Show(run, question, of, slot, version)
        )
        if answer is None:
            return False
        order = partial(self._hold_order, slot, self._shown(number, giver, answer))
        done = self._questions.ask_one(number, rank, order)
        if done is None:
            return False
        self._versions.note_return(slot, number, rank, done)
        return True


def _check_sliceable(optimizer: Optimizer) -> None:
    if optimizer.watches is not None:
        raise BadInput(f"with slices the optimiser '{optimizer.spec}' would have to know evaluations; use a schedule")
    w = np.zeros(2)
    with unclipped(optimizer).stepping(w, optimizer.start(w), 0, 1.0, np.empty(2), 0) as step:
        if step is None:
            raise BadInput(
                f"the optimiser '{optimizer.spec}' steps all coordinates together, and with slices no node has them "
                "all; use one that steps each coordinate separately, such as adamw, or a cluster without slices"
            )


def _outer_at(states: Vectors, coordinates: slice) -> Vectors:
    """Return the state of an outer optimiser at some coordinates; numbers of torch's are as they are."""
    return {name: vector if ":" in name else vector[coordinates] for name, vector in states.items()}


def _joined_outer(parts: Sequence[Vectors]) -> Vectors:
    return {
        name: vector if ":" in name else np.concatenate([outer[name] for outer in parts])
        for name, vector in parts[0].items()
    }
