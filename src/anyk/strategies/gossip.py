"""Decentralised averaging: every worker has a model of its own and mixes it with its neighbours' after local steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from anyk import keyed
from anyk.checks import check_workers, typed
from anyk.errors import BadInput
from anyk.graphs import GraphSpec, Matcha, Mixing, graph, matcha, settled
from anyk.protocol import (
    Chunk,
    Command,
    Dispatch,
    Event,
    Failed,
    Fleet,
    Joined,
    Layout,
    Lost,
    Mix,
    Reply,
    Stop,
    strategy_text,
)
from anyk.specs import bracketed, show

Barrier = Literal["local", "global"]


@typed
class Gossip:
    """Rounds of ``tau`` local steps, after each of which every node averages with its neighbours only.

    Worker i holds partition i and a model of its own. After round k node j begins round k + 1 at the average of the
    models x_i at the end of round k with weights W_k[i, j] (first step, then mix), read where they lie: no model passes
    through the driver to another worker. With ``barrier="local"`` it does so as soon as its neighbours' models are
    there, ``"global"`` waits for all. The run's model is the mean of all, a version for every round that all have
    ended; with a ``centre`` (elastic averaging) it is the centre, which takes part in the mixing.

    A node that is lost begins again at the newest version of the run's model. When it has been given up, its weight
    goes to those who would have read it.
    """

    slots = ("model",)
    inner = ""

    def __repr__(self) -> str:
        return strategy_text(self)

    def __init__(
        self, workers: int, *, tau: int = 1, batch: int = 0, barrier: Barrier = "local", alpha: float | None = None
    ) -> None:
        check_workers(workers)
        if tau < 1:
            raise BadInput(f"tau (local steps) must be at least 1, got {tau}")
        if batch < 0:
            raise BadInput(f"batch must be at least 1 sample (0: all of them), got {batch}")
        if barrier not in ("local", "global"):
            raise BadInput(f"barrier must be local or global, got {barrier!r}")
        self.workers = self.partitions = workers
        self.tau, self.batch, self.barrier, self.alpha = tau, batch, barrier, alpha
        self.assignment = tuple((i,) for i in range(workers))
        self.covers = ((),) * workers  # a message is a whole model
        # what changes:
        self.version = 0
        self._next = 0
        self._present: set[int] = set()
        self._gone: set[int] = set()
        self._under_way: dict[int, tuple[int, int]] = {}  # task -> node, round
        self._ended: dict[int, dict[int, int]] = {}  # round -> node -> task that ended it
        self._at = [0] * workers  # the round that a node is in, or is to begin
        self._anew: set[int] = set()  # nodes that have lost their model

    @property
    def layout(self) -> Layout:
        """See :class:`~anyk.protocol.Strategy`."""
        return Layout(self.workers, self.partitions, self.assignment, self.slots, covers=self.covers, inner=self.inner)

    @property
    def spec(self) -> str:
        """The short form."""
        raise NotImplementedError

    def weights(self, k: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        """W_k, shape (n, n): column j says how node j begins round k + 1."""
        raise NotImplementedError

    # ------------------------------------------------------------------------------------------- events

    def start(self, fleet: Fleet) -> Sequence[Command]:
        """See :class:`~anyk.protocol.Strategy`."""
        self.version = self._next = 0
        self._present, self._gone = set(fleet.present), set()
        self._under_way, self._ended, self._at = {}, {}, [0] * self.workers
        self._anew = set()
        return self._go()

    def on(self, event: Event) -> Sequence[Command]:
        """See :class:`~anyk.protocol.Strategy`."""
        if isinstance(event, Reply):
            found = self._under_way.pop(event.task, None)
            if found is None:
                return ()
            node, k = found
            self._ended.setdefault(k, {})[node] = event.task
            self._at[node] = k + 1
            return self._go()
        if isinstance(event, Failed):
            found = self._under_way.pop(event.task, None)
            if found is None:
                return ()
            node = found[0]
            self._anew.add(node)  # what it began from may be gone by now
            return self._go()
        if isinstance(event, Joined):
            if event.worker in self._present:
                return ()  # told twice that it is here
            self._present.add(event.worker)
            if event.worker in self._gone:  # the others have gone on without it
                self._gone.discard(event.worker)
                self._at[event.worker] = max(self._at[event.worker], self.version)
                self._anew.add(event.worker)
            return self._go()
        if isinstance(event, Lost):
            self._present.discard(event.worker)
            self._under_way = {task: at for task, at in self._under_way.items() if at[0] != event.worker}
            self._anew.add(event.worker)
            if event.gone:
                self._gone.add(event.worker)
            if len(self._gone) == self.workers:
                return (Stop("every worker has been given up", failed=True),)
            return self._go()
        return ()

    def _go(self) -> list[Command]:
        """Whatever can be done now: nodes begin their next rounds, and rounds that all have ended become versions."""
        commands: list[Command] = []
        while True:
            busy = {node for node, _ in self._under_way.values()}
            ready = [i for i in sorted(self._present - busy) if self._may_begin(i)]
            if ready:  # before the next version: they begin at the centre of this one
                commands.append(self._dispatch(ready))
                continue
            ended = self._ended.get(self.version, {})
            if not ended or any(i not in ended and i not in self._gone for i in range(self.workers)):
                return commands
            commands.append(self._mixed(ended))
            self.version += 1
            self._ended.pop(self.version - 1)

    def _may_begin(self, node: int) -> bool:
        k = self._at[node]
        if k == 0 or node in self._anew:
            return True
        ended = self._ended.get(k - 1, {})
        if self.alpha is not None:
            return self.version == k - 1  # the centre of the round before: neither older nor newer
        if self.barrier == "global":
            return all(i in ended or i in self._gone for i in range(self.workers))
        return all(int(i) in ended or int(i) in self._gone for i in np.flatnonzero(self.weights(k - 1)[:, node]))

    def _dispatch(self, nodes: Sequence[int]) -> Command:
        first, self._next = self._next, self._next + len(nodes)
        tasks = []
        for task, node in enumerate(nodes, first):
            k = self._at[node]
            self._under_way[task] = node, k
            mix, share = self._beginning(node, k)
            tasks.append((
                Chunk((node,), (1.0,), batch=self.batch, repeat=k * self.tau, steps=self.tau, mix=mix, share=share),
            ))  # fmt: skip
        return Dispatch(first, tuple(nodes), tasks)

    def _beginning(self, node: int, k: int) -> tuple[tuple[tuple[int, int, int, float], ...], float]:
        """The models, with weights, and the share of the run's model that a node begins round k at."""
        anew = node in self._anew
        self._anew.discard(node)
        if k == 0 or anew:
            return (), 1.0
        ended = self._ended[k - 1]
        if self.alpha is not None:
            return ((node, ended[node], 0, 1.0 - self.alpha),), self.alpha
        column = self.weights(k - 1)[:, node]
        here = [(int(i), float(column[i])) for i in np.flatnonzero(column)]
        missing = sum(weight for i, weight in here if i not in ended)  # of nodes that have been given up
        weights = {i: weight for i, weight in here if i in ended}
        if missing:
            weights[node] = weights.get(node, 0.0) + missing
        return tuple((i, ended[i], 0, weight) for i, weight in sorted(weights.items())), 0.0

    def _mixed(self, ended: dict[int, int]) -> Command:
        messages = [(task, 0) for _, task in sorted(ended.items())]
        if self.alpha is None:
            return Mix("model", messages, [1.0 / len(messages)] * len(messages))
        share = 1.0 - self.alpha * len(messages)
        return Mix("model", messages, [self.alpha] * len(messages), share=share)

    # ------------------------------------------------------------------------------------------- state

    def state(self) -> dict[str, Any]:
        """See :class:`~anyk.protocol.Strategy`."""
        return {
            "version": self.version,
            "next": self._next,
            "present": sorted(self._present),
            "gone": sorted(self._gone),
            "under_way": [[task, *at] for task, at in self._under_way.items()],
            "ended": [[k, list(tasks.items())] for k, tasks in self._ended.items()],
            "at": list(self._at),
            "anew": sorted(self._anew),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """See :class:`~anyk.protocol.Strategy`."""
        self.version, self._next = state["version"], state["next"]
        self._present, self._gone = set(state["present"]), set(state["gone"])
        self._under_way = {task: (node, k) for task, node, k in state["under_way"]}
        self._ended = {k: dict(tasks) for k, tasks in state["ended"]}
        self._at, self._anew = list(state["at"]), set(state["anew"])


_DEFAULTS: dict[str, Any] = {"tau": 1, "batch": 0, "barrier": "local", "seed": 0}


@typed
class DecentralisedSGD(Gossip):
    """D-PSGD (Lian et al. 2017): every node averages with its neighbours in a ``graph`` after ``tau`` local steps.

    ``graph`` is a spec (``anyk graphs`` lists them): ring, torus, exp, one-peer, complete, star, regular:degree=4,
    file:file=W.csv. Otherwise as :class:`Gossip`: first the local steps, then the mixing.

    >>> DecentralisedSGD(8, graph="ring").spec
    'dpsgd:graph=ring'
    """

    def __init__(
        self,
        workers: int,
        *,
        graph: GraphSpec = "ring",
        tau: int = 1,
        batch: int = 0,
        barrier: Barrier = "local",
    ) -> None:
        super().__init__(workers, tau=tau, batch=batch, barrier=barrier)
        self.graph: Mixing = _graph(graph, workers)

    @property
    def spec(self) -> str:
        """The short form."""
        values: dict[str, Any] = {"graph": bracketed(self.graph.spec), "tau": self.tau, "batch": self.batch}
        return show("dpsgd", values | {"barrier": self.barrier}, _DEFAULTS)

    def weights(self, k: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        """See :class:`Gossip`."""
        return self.graph.at(k)


@typed
class MatchaSGD(Gossip):
    """MATCHA (Wang, Sahu, Yang, Joshi and Kar 2019): a graph's edges in matchings, some of which are active in a round.

    Edges that hold the graph together are active more often. ``budget`` is the mean share of matchings active, so that
    a round's communication costs so much of the whole graph's; which are is drawn by (``seed``, round).

    >>> MatchaSGD(8, graph="ring", budget=0.5).spec
    'matcha:graph=ring,budget=0.5'
    """

    def __init__(
        self,
        workers: int,
        *,
        graph: GraphSpec = "ring",
        budget: float = 0.5,
        tau: int = 1,
        batch: int = 0,
        barrier: Barrier = "local",
        seed: int = 0,
    ) -> None:
        super().__init__(workers, tau=tau, batch=batch, barrier=barrier)
        self._name, self.budget, self.seed = settled(graph), budget, seed
        self.plan: Matcha = matcha(self._name, workers=workers, budget=budget)
        self._drawn: dict[int, np.ndarray[Any, np.dtype[np.float64]]] = {}

    @property
    def spec(self) -> str:
        """The short form."""
        values: dict[str, Any] = {
            "graph": bracketed(self._name),
            "budget": self.budget,
            "tau": self.tau,
            "batch": self.batch,
        }
        return show("matcha", values | {"barrier": self.barrier, "seed": self.seed}, _DEFAULTS)

    def weights(self, k: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        """See :class:`Gossip`."""
        if k not in self._drawn:
            self._drawn = {old: w for old, w in self._drawn.items() if old >= self.version - 1}
            self._drawn[k] = self.plan.at(k, self.seed)
        return self._drawn[k]


@typed
class ElasticSGD(Gossip):
    """Elastic averaging (Zhang, Choromanska and LeCun 2015), in rounds: workers and a centre pull each other.

    After ``tau`` local steps a worker's model moves by ``alpha`` towards the centre, and the centre by ``alpha``
    towards each of them. It averages for 0 < alpha < 2 / (n + 1) and fastest for 2 / (n + 2), the default;
    alpha = n / (n + 2), which a well-known talk prints, is the zeta of that best value and diverges for n of 3 or more.
    A worker may be one round ahead of the centre.

    >>> ElasticSGD(8).spec
    'easgd:alpha=0.2'
    """

    def __init__(self, workers: int, *, alpha: float | None = None, tau: int = 1, batch: int = 0) -> None:
        alpha = 2.0 / (workers + 2.0) if alpha is None else alpha
        if not 0.0 < alpha < 2.0 / (workers + 1.0):
            raise BadInput(
                f"alpha of 'easgd' must be above 0 and below 2 / (n + 1) = {2 / (workers + 1):.4g} for {workers} "
                f"workers, else models drift apart; best is 2 / (n + 2) = {2 / (workers + 2):.4g}, got {alpha:g}"
            )
        super().__init__(workers, tau=tau, batch=batch, alpha=alpha)

    @property
    def spec(self) -> str:
        """The short form."""
        return show("easgd", {"alpha": self.alpha, "tau": self.tau, "batch": self.batch}, _DEFAULTS)


def _graph(spec: str, workers: int) -> Mixing:
    return graph(spec, workers=workers)


@typed
class PairwiseGossip:
    """AD-PSGD (Lian, Zhang, Zhang and Liu 2018): nobody waits; who has taken its steps averages with one random other.

    Node i, done with ``tau`` local steps from its model, takes the mean of its own and node j's newest models, j drawn
    by (``seed``, how many times before), which becomes node j's; its own becomes that plus what its steps have changed.
    Node j goes on with its steps, which then count from the model they began at. The nodes' models live side by side on
    the driver's machine, where this mean is taken; the run's model is the mean of all, a version every n times.

    >>> PairwiseGossip(8).spec
    'ad-psgd'
    """

    inner = ""

    def __repr__(self) -> str:
        return strategy_text(self)

    def __init__(self, workers: int, *, tau: int = 1, batch: int = 0, seed: int = 0) -> None:
        if workers < 2:
            raise BadInput(f"'ad-psgd' averages in pairs; workers must be at least 2, got {workers}")
        if tau < 1:
            raise BadInput(f"tau (local steps) must be at least 1, got {tau}")
        if batch < 0:
            raise BadInput(f"batch must be at least 1 sample (0: all of them), got {batch}")
        self.workers = self.partitions = workers
        self.tau, self.batch, self.seed = tau, batch, seed
        self.auxiliary = tuple(f"node {i}" for i in range(workers))
        self.slots = ("model", *self.auxiliary)
        self.assignment = tuple((i,) for i in range(workers))
        self.covers = ((),) * workers
        # what changes:
        self.count = 0  # averages in pairs so far
        self._next = 0
        self._gone: set[int] = set()
        self._under_way: dict[int, int] = {}  # task -> node
        self._taken = [0] * workers  # local steps of each node so far

    @property
    def layout(self) -> Layout:
        """See :class:`~anyk.protocol.Strategy`."""
        return Layout(
            self.workers, self.partitions, self.assignment, self.slots, self.auxiliary, self.covers, inner=self.inner
        )

    @property
    def spec(self) -> str:
        """The short form."""
        return show("ad-psgd", {"tau": self.tau, "batch": self.batch, "seed": self.seed}, _DEFAULTS)

    def start(self, fleet: Fleet) -> Sequence[Command]:
        """See :class:`~anyk.protocol.Strategy`."""
        self.count = self._next = 0
        self._gone, self._under_way, self._taken = set(), {}, [0] * self.workers
        return [self._dispatch(fleet.present)] if fleet.present else []

    def on(self, event: Event) -> Sequence[Command]:
        """See :class:`~anyk.protocol.Strategy`."""
        if isinstance(event, Reply):
            node = self._under_way.pop(event.task, None)
            if node is None:
                return ()
            return [*self._averaged(node, event.task), self._dispatch((node,))]
        if isinstance(event, Failed):
            if self._under_way.pop(event.task, None) is None:
                return ()
            return (self._dispatch((event.worker,)),)
        if isinstance(event, Joined):
            self._gone.discard(event.worker)
            busy = event.worker in self._under_way.values()
            return () if busy else (self._dispatch((event.worker,)),)
        if isinstance(event, Lost):
            self._under_way = {task: node for task, node in self._under_way.items() if node != event.worker}
            if event.gone:
                self._gone.add(event.worker)
            if len(self._gone) == self.workers:
                return (Stop("every worker has been given up", failed=True),)
        return ()

    def _averaged(self, node: int, task: int) -> list[Command]:
        others = [i for i in range(self.workers) if i != node and i not in self._gone]
        commands: list[Command] = []
        mine = f"node {node}"
        if others:
            draw = keyed.uniform(self.seed, "ad-psgd", number=self.count)
            other = f"node {others[int(draw * len(others))]}"
            commands.append(Mix(other, (), (), share=0.5, others=((mine, 0.5),)))
            commands.append(Mix(mine, ((task, 0),), (1.0,), others=((other, 1.0),), relative=True))
        else:
            commands.append(Mix(mine, ((task, 0),), (1.0,), share=1.0, relative=True))
        self.count += 1
        if self.count % self.workers == 0:
            here = [i for i in range(self.workers) if i not in self._gone]
            commands.append(Mix("model", (), (), others=tuple((f"node {i}", 1.0 / len(here)) for i in here)))
        return commands

    def _dispatch(self, nodes: Sequence[int]) -> Command:
        first, self._next = self._next, self._next + len(nodes)
        tasks = []
        for task, node in enumerate(nodes, first):
            self._under_way[task] = node
            chunk = Chunk((node,), (1.0,), f"node {node}", batch=self.batch, repeat=self._taken[node], steps=self.tau)
            self._taken[node] += self.tau
            tasks.append((chunk,))
        return Dispatch(first, tuple(nodes), tasks)

    def state(self) -> dict[str, Any]:
        """See :class:`~anyk.protocol.Strategy`."""
        under_way = list(self._under_way.items())
        counts = {"count": self.count, "next": self._next, "taken": list(self._taken)}
        return counts | {"gone": sorted(self._gone), "under_way": under_way}

    def restore(self, state: dict[str, Any]) -> None:
        """See :class:`~anyk.protocol.Strategy`."""
        self.count, self._next, self._taken = state["count"], state["next"], list(state["taken"])
        self._gone, self._under_way = set(state["gone"]), dict(state["under_way"])
