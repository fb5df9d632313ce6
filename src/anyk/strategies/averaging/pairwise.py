"""Averaging in pairs of workers, without waiting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property

from anyk.base.checks import AtLeastOne, AtLeastZero, typed
from anyk.base.errors import BadInput
from anyk.base.keyed import keyed_uniform
from anyk.protocol import (
    Chunk,
    Command,
    Commands,
    Dispatch,
    Failed,
    Fleet,
    Layout,
    Mix,
    Reply,
)
from anyk.strategies.crew import Crew, CrewStrategy, spec_of


@dataclass(slots=True)
class PairState:
    """The tasks under way, and the progress of each node."""

    crew: Crew
    steps_taken: list[int]  # local steps of each node so far
    count: int = 0  # averages in pairs so far
    under_way: dict[int, int] = field(default_factory=dict)  # task -> node


@typed
@dataclass(frozen=True, repr=False)
class PairwiseGossip(CrewStrategy[PairState]):
    """AD-PSGD (Lian, Zhang, Zhang and Liu 2018): after its local steps a node averages with a random other node.

    No node waits. When node i has taken ``tau`` local steps, node j is sampled by (``seed``, number of averages so
    far). The mean of their newest models becomes the model of node j; the mean plus the change made by its local steps
    becomes node i's. Node j continues its steps, whose change counts from the model at which they started. The
    driver stores the models of all nodes and computes the means. The run's model is the mean over all nodes, with a new
    version after every n averages.

    >>> PairwiseGossip(8).spec
    'ad-psgd'
    """

    State = PairState

    workers: int
    _: KW_ONLY
    tau: AtLeastOne = 1
    batch: AtLeastZero = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.workers < 2:
            raise BadInput(f"'ad-psgd' averages in pairs; workers must be at least 2, got {self.workers}")

    @cached_property
    def layout(self) -> Layout:
        n = self.workers
        nodes = tuple(f"node {i}" for i in range(n))
        assignment, slots = tuple((i,) for i in range(n)), ("model", *nodes)
        return Layout(
            workers=n,
            partitions=n,
            assignment=assignment,
            slots=slots,
            auxiliary=nodes,
            covers=((),) * n,
            inner="",
            minibatches=self.batch > 0,
        )

    @cached_property
    def spec(self) -> str:
        return spec_of("ad-psgd", self, {})

    def start(self, fleet: Fleet) -> tuple[PairState, Commands]:
        s = PairState(Crew.of(fleet), [0] * self.workers)
        return s, [self._dispatch(s, fleet.present)] if fleet.present else []

    def on_reply(self, state: PairState, event: Reply) -> Commands:
        node = state.under_way.pop(event.task, None)
        return () if node is None else [*self._averaged(state, node, event.task), self._dispatch(state, (node,))]

    def on_failed(self, state: PairState, event: Failed) -> Commands:
        node = state.under_way.pop(event.task, None)
        return () if node is None else (self._dispatch(state, (node,)),)

    def worker_returned(self, state: PairState, worker: int) -> Commands:
        return (self._dispatch(state, (worker,)),)

    def worker_left(self, state: PairState, worker: int) -> Commands:
        state.under_way = {task: node for task, node in state.under_way.items() if node != worker}
        return super().worker_left(state, worker)

    def _averaged(self, s: PairState, node: int, task: int) -> list[Command]:
        others = [i for i in range(self.workers) if i != node and i not in s.crew.gone]
        commands: list[Command] = []
        mine = f"node {node}"
        if others:
            draw = keyed_uniform(self.seed, "ad-psgd", number=s.count)
            other = f"node {others[int(draw * len(others))]}"
            commands.append(Mix(other, (), (), share=0.5, others=((mine, 0.5),)))
            commands.append(Mix(mine, ((task, 0),), (1.0,), others=((other, 1.0),), relative=True))
        else:
            commands.append(Mix(mine, ((task, 0),), (1.0,), share=1.0, relative=True))
        s.count += 1
        if s.count % self.workers == 0:
            present = [i for i in range(self.workers) if i not in s.crew.gone]
            commands.append(Mix("model", (), (), others=tuple((f"node {i}", 1.0 / len(present)) for i in present)))
        return commands

    def _dispatch(self, s: PairState, nodes: Sequence[int]) -> Command:
        first = s.crew.number(len(nodes))
        tasks = []
        for task, node in enumerate(nodes, first):
            s.under_way[task] = node
            chunk = Chunk((node,), (1.0,), f"node {node}", batch=self.batch, repeat=s.steps_taken[node], steps=self.tau)
            s.steps_taken[node] += self.tau
            tasks.append((chunk,))
        return Dispatch(first, tuple(nodes), tasks)
