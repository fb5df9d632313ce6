"""Decentralised averaging: every worker has its own model, and mixes it with its neighbours' after local steps."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np

from anyk.base.arrays import Floats
from anyk.base.checks import AtLeastOne, AtLeastZero, check_workers, typed
from anyk.base.errors import BadInput
from anyk.base.specs import bracketed
from anyk.graphs import GraphSpec, Matcha, Mixing, graph, matcha, resolve_paths
from anyk.protocol import (
    Chunk,
    Command,
    Commands,
    CompressorFacts,
    Dispatch,
    Failed,
    Fleet,
    Joined,
    Layout,
    Mix,
    Reply,
    StrategyFacts,
)
from anyk.strategies.crew import Crew, CrewStrategy, spec_of

Barrier = Literal["local", "global"]
# models (worker, task, chunk, weight), and the share of the centre
Mixture = tuple[tuple[tuple[int, int, int, float], ...], float]


@dataclass(slots=True)
class GossipState:
    """The progress of each node: rounds under way and ended."""

    crew: Crew
    at: list[int]  # the present or next round of each node
    version: int = 0
    under_way: dict[int, tuple[int, int]] = field(default_factory=dict)  # task -> node, round
    ended: dict[int, dict[int, int]] = field(default_factory=dict)  # round -> node -> task that ended it
    anew: set[int] = field(default_factory=set)  # nodes without a model, which start again


@dataclass(frozen=True, repr=False)
class Gossip(CrewStrategy[GossipState]):
    """Rounds of ``tau`` local steps, at whose end every node averages with its neighbours only.

    Worker i has partition i and its own model. Node j starts round k + 1 at the average of the models x_i at the end of
    round k with weights W_k[i, j] (first step, then mix). It reads them from their workers; no model passes through the
    driver to another worker. With ``barrier="local"`` it starts as soon as its neighbours' models are available,
    with ``"global"`` it waits for all. The run's model is the mean of all models, with a version for every round that
    all have ended; in elastic averaging it is the centre, which takes part in the mixing.

    A node that is lost starts again at the newest version of the run's model. If it has been given up, the nodes that
    would have read its model add its weight to their own.
    """

    State = GossipState

    workers: int
    _: KW_ONLY
    tau: AtLeastOne = 1
    batch: AtLeastZero = 0

    def __post_init__(self) -> None:
        check_workers(self.workers)

    @cached_property
    def layout(self) -> Layout:
        n = self.workers
        return Layout(n, n, tuple((i,) for i in range(n)), covers=((),) * n, inner="", minibatches=self.batch > 0)

    @property
    def facts(self) -> StrategyFacts:
        return StrategyFacts(check_compressor=self._check_compressor)

    def _check_compressor(self, by: CompressorFacts) -> None:
        raise BadInput(f"'{self.spec}' does not compose with compressed messages: workers use each other's models")

    @abstractmethod
    def may_begin(self, s: GossipState, node: int) -> bool:
        """Return whether the models from which a node's next round starts are available."""

    def readers(self, s: GossipState, node: int, k: int) -> Iterable[int]:
        """Return the nodes that may be able to start a round, now that a node has ended round k."""
        return range(self.workers)

    @abstractmethod
    def beginning(self, s: GossipState, node: int, k: int) -> Mixture:
        """Return the models with weights, and the share of the centre, at which a node starts round k."""

    def centre_slot(self, node: int) -> str:
        """Return the slot of the centre whose share :meth:`beginning` returns; by default the run's model."""
        return "model"

    def mixed(self, ended: Mapping[int, int]) -> Commands:
        """Return the commands that make the run's next model; ``ended``: by node, the task that ended its round."""
        messages = [(task, 0) for task in ended.values()]
        return [Mix("model", messages, [1.0 / len(messages)] * len(messages))]

    # ------------------------------------------------------------------------------------------- events

    def start(self, fleet: Fleet) -> tuple[GossipState, Commands]:
        s = GossipState(Crew.of(fleet), [0] * self.workers)
        return s, self._go(s)

    def on_reply(self, state: GossipState, event: Reply) -> Commands:
        node, k = state.under_way.pop(event.task, (-1, 0))
        if node == -1:
            return ()
        state.ended.setdefault(k, {})[node] = event.task
        state.at[node] = k + 1
        return self._go(state, self.readers(state, node, k))

    def on_failed(self, state: GossipState, event: Failed) -> Commands:
        node, _ = state.under_way.pop(event.task, (-1, 0))
        if node == -1:
            return ()
        state.anew.add(node)  # the models from which it started may be gone
        return self._go(state, (node,))

    def on_joined(self, state: GossipState, event: Joined) -> Commands:
        worker, given_up = event.worker, event.worker in state.crew.gone
        if not state.crew.join(worker):
            return ()
        if given_up:  # the others have continued without it
            state.at[worker] = max(state.at[worker], state.version)
            state.anew.add(worker)
        return self._go(state)

    def worker_left(self, state: GossipState, worker: int) -> Commands:
        state.under_way = {task: work for task, work in state.under_way.items() if work[0] != worker}
        state.anew.add(worker)
        return super().worker_left(state, worker) or self._go(state)

    def _go(self, s: GossipState, nodes: Iterable[int] | None = None) -> list[Command]:
        """Start the rounds of nodes that are ready, and make a version of each round that all have ended.

        ``nodes``: the nodes that may have become ready; by default all.
        """
        commands: list[Command] = []
        while True:
            idle = s.crew.present if nodes is None else s.crew.present.intersection(nodes)
            busy = {node for node, _ in s.under_way.values()}
            ready = [i for i in sorted(idle - busy) if self._ready(s, i)]
            if ready:  # before the next version, as they start at the centre of this one
                commands.append(self._dispatch(s, ready))
            if not self._all_ended(s, s.version):
                return commands
            commands.extend(self.mixed(dict(sorted(s.ended.pop(s.version).items()))))
            s.version += 1
            nodes = None

    def _all_ended(self, s: GossipState, k: int) -> bool:
        """Return whether all nodes that have not been given up, at least one, have ended round k."""
        ended, gone = s.ended.get(k), s.crew.gone
        if not ended or len(ended) + len(gone) < self.workers:
            return False
        return all(i in ended or i in gone for i in range(self.workers))

    def _ready(self, s: GossipState, node: int) -> bool:
        return s.at[node] == 0 or node in s.anew or self.may_begin(s, node)

    def _dispatch(self, s: GossipState, nodes: Sequence[int]) -> Command:
        first = s.crew.number(len(nodes))
        tasks = []
        for task, node in enumerate(nodes, first):
            k = s.at[node]
            s.under_way[task] = node, k
            anew = k == 0 or node in s.anew
            s.anew.discard(node)
            mix, share = ((), 1.0) if anew else self.beginning(s, node, k)
            slot = "model" if anew else self.centre_slot(node)
            chunk = Chunk(
                (node,), (1.0,), slot, batch=self.batch, repeat=k * self.tau, steps=self.tau, mix=mix, share=share
            )
            tasks.append((chunk,))
        return Dispatch(first, tuple(nodes), tasks)


@dataclass(frozen=True, repr=False, kw_only=True)
class Neighbours(Gossip):
    """Gossip along the edges of a graph, which may change from round to round."""

    barrier: Barrier = "local"

    @abstractmethod
    def weights(self, s: GossipState, k: int) -> Floats:
        """Return W_k, shape (n, n): column j has the weights at which node j starts round k + 1."""

    def may_begin(self, s: GossipState, node: int) -> bool:
        k = s.at[node]
        if self.barrier == "global":
            return self._all_ended(s, k - 1)
        ended, gone = s.ended.get(k - 1, {}), s.crew.gone
        return all(i in ended or i in gone for i in np.flatnonzero(self.weights(s, k - 1)[:, node]).tolist())

    def readers(self, s: GossipState, node: int, k: int) -> Iterable[int]:
        if self.barrier == "global":
            return super().readers(s, node, k)
        return [*np.flatnonzero(self.weights(s, k)[node]).tolist(), node]

    def beginning(self, s: GossipState, node: int, k: int) -> Mixture:
        ended = s.ended[k - 1]
        column = self.weights(s, k - 1)[:, node]
        terms = [(int(i), float(column[i])) for i in np.flatnonzero(column)]
        missing = sum(weight for i, weight in terms if i not in ended)  # of nodes that have been given up
        weights = {i: weight for i, weight in terms if i in ended}
        if missing:
            weights[node] = weights.get(node, 0.0) + missing
        return tuple((i, ended[i], 0, weight) for i, weight in sorted(weights.items())), 0.0


@typed
@dataclass(frozen=True, repr=False, kw_only=True)
class DecentralisedSGD(Neighbours):
    """D-PSGD (Lian et al. 2017): every node averages with its neighbours in a ``graph`` after ``tau`` local steps.

    ``graph`` is a spec (``anyk list graphs`` lists them): ring, torus, exp, one-peer, complete, star, regular:degree=4,
    file:file=W.csv. As in :class:`Gossip`, the local steps precede the mixing.

    >>> DecentralisedSGD(8, graph="ring").spec
    'dpsgd:graph=ring'
    """

    graph: GraphSpec = "ring"

    @cached_property
    def mixing(self) -> Mixing:
        """The graph's mixing matrices."""
        return graph(self.graph, workers=self.workers)

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.mixing  # an invalid graph is refused here, not in the first round

    @cached_property
    def spec(self) -> str:
        return spec_of("dpsgd", self, {"graph": bracketed(self.mixing.spec)})

    def weights(self, s: GossipState, k: int) -> Floats:
        return self.mixing.at(k)


@lru_cache(maxsize=16)  # as each node of a round needs it
def _matrix(plan: Matcha, k: int, seed: int) -> Floats:
    """Return the matrix of round ``k``."""
    return plan.at(k, seed)


@typed
@dataclass(frozen=True, repr=False, kw_only=True)
class MatchaSGD(Neighbours):
    """MATCHA (Wang, Sahu, Yang, Joshi and Kar 2019): a graph's edges in matchings, some active in each round.

    Edges that connect the graph are active more often. ``budget`` is the mean share of matchings that are active, and
    so a round's communication relative to the complete graph's; they are sampled by (``seed``, round).

    >>> MatchaSGD(8, graph="ring", budget=0.5).spec
    'matcha:graph=ring,budget=0.5'
    """

    graph: GraphSpec = "ring"
    budget: float = 0.5
    seed: int = 0

    @cached_property
    def plan(self) -> Matcha:
        """Matchings, and the probability of each to be active."""
        return matcha(resolve_paths(self.graph), workers=self.workers, budget=self.budget)

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.plan  # an invalid graph is refused here, not in the first round

    @cached_property
    def spec(self) -> str:
        return spec_of("matcha", self, {"graph": bracketed(resolve_paths(self.graph)), "budget": self.budget})

    def weights(self, s: GossipState, k: int) -> Floats:
        return _matrix(self.plan, k, self.seed)


@typed
@dataclass(frozen=True, repr=False, kw_only=True)
class ElasticSGD(Gossip):
    """Elastic averaging (Zhang, Choromanska and LeCun 2015), in rounds: workers and a centre pull each other.

    After ``tau`` local steps a worker's model moves by ``alpha`` towards the centre, and the centre by ``alpha``
    towards each worker's. It averages for 0 < alpha < 2 / (n + 1) and fastest for 2 / (n + 2), the default;
    alpha = n / (n + 2), as a well-known talk has it, is the zeta of that best value and diverges for n of 3 or more.
    A worker may be one round ahead of the centre.

    >>> ElasticSGD(8).spec
    'easgd:alpha=0.2'
    """

    alpha: float | None = None

    def __post_init__(self) -> None:
        n, alpha = self.workers, self.pull
        if not 0.0 < alpha < 2.0 / (n + 1.0):
            raise BadInput(
                f"alpha of 'easgd' must be above 0 and below 2 / (n + 1) = {2 / (n + 1):.4g} for {n} workers, else "
                f"models drift apart; best is 2 / (n + 2) = {2 / (n + 2):.4g}, got {alpha:g}"
            )
        super().__post_init__()

    @property
    def pull(self) -> float:
        """Share of their difference by which models approach each other in a round: ``alpha``, or the best value."""
        return 2.0 / (self.workers + 2.0) if self.alpha is None else self.alpha

    @cached_property
    def spec(self) -> str:
        return spec_of("easgd", self, {"alpha": self.pull})

    def may_begin(self, s: GossipState, node: int) -> bool:
        # the version of the centre must be that of the round before
        return s.version == s.at[node] - 1

    def beginning(self, s: GossipState, node: int, k: int) -> Mixture:
        return ((node, s.ended[k - 1][node], 0, 1.0 - self.pull),), self.pull

    def mixed(self, ended: Mapping[int, int]) -> Commands:
        messages = [(task, 0) for task in ended.values()]
        return [Mix("model", messages, [self.pull] * len(messages), share=1.0 - self.pull * len(messages))]
