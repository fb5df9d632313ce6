"""Cooperative averaging: any mixing matrix over the workers' models and auxiliary models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from anyk.base.arrays import Floats
from anyk.base.checks import AtLeastZero, typed
from anyk.base.errors import BadInput
from anyk.base.specs import bracketed
from anyk.graphs import GraphSpec, Mixing, graph
from anyk.protocol import Cancel, Commands, Layout, Mix
from anyk.strategies.averaging.gossip import GossipState, Mixture, Neighbours
from anyk.strategies.crew import spec_of


@typed
@dataclass(frozen=True, repr=False, kw_only=True)
class CooperativeSGD(Neighbours):
    """Cooperative SGD (Wang and Joshi 2018): models X of n workers and v ``auxiliary`` ones, mixed by any matrix W.

    ``X <- (X - lr G) W`` after ``tau`` local steps; auxiliary models have no gradients. ``matrix`` is the spec of a
    graph over n + v nodes, the workers first; ``file:file=W.csv`` reads W, where W[i, j] is the weight of i in j's next
    model. Rows and columns add up to 1, which preserves the mean of all models, and zeta = ``||W - J||_2`` is below 1,
    so that models converge to each other; the theorem of the paper is for symmetric W. Workers that read an auxiliary
    model wait for it, and may be one round ahead of it.

    The run's model is the mean of the auxiliary models, or of the workers' models if there are none. Elastic averaging
    (``easgd``) is ``auxiliary=1`` with :func:`anyk.graphs.elastic`; D-PSGD (``dpsgd``) is ``auxiliary=0``, and periodic
    averaging (``pasgd``) is that with ``matrix=complete``. With several auxiliary models the driver stores up to three
    vectors for each.

    >>> CooperativeSGD(8, matrix="exp", tau=2).spec
    'coop:matrix=exp,tau=2'
    """

    matrix: GraphSpec = "complete"
    auxiliary: AtLeastZero = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        spec, mixing = self.spec, self.mixing
        if self.auxiliary and len(mixing.rounds) > 1:
            raise BadInput(f"'{spec}' has another matrix each round; auxiliary models need one that stays the same")
        off = max(float(np.abs(w.sum(axis=axis) - 1.0).max()) for w in mixing.rounds for axis in (0, 1))
        if not off <= 1e-6:
            raise BadInput(f"rows and columns of the matrix in '{spec}' must add up to 1, they miss it by {off:.3g}")
        if not mixing.zeta < 1.0 - 1e-9:
            raise BadInput(
                f"the matrix in '{spec}' must have a zeta below 1, else models do not come together, got "
                f"{mixing.zeta:.4g}"
            )
        cancelled = np.flatnonzero(self._pulls.any(axis=0) & (np.abs(self._pulls.sum(axis=0)) < 1e-12))
        if cancelled.size:
            raise BadInput(
                f"the weights that worker {cancelled[0]} gives auxiliary models in '{spec}' add up to 0, which is not "
                "supported; change the matrix"
            )

    @cached_property
    def mixing(self) -> Mixing:
        """The matrix, or a cycle of matrices, over workers and auxiliary models."""
        return graph(self.matrix, workers=self.workers + self.auxiliary)

    @cached_property
    def spec(self) -> str:
        auxiliary = {"auxiliary": self.auxiliary} if self.auxiliary else {}
        return spec_of("coop", self, {"matrix": bracketed(self.mixing.spec)} | auxiliary)

    @cached_property
    def _pulls(self) -> Floats:
        """Weights of the auxiliary models in the workers' next models, shape (auxiliary, workers)."""
        return self.mixing.at(0)[self.workers :, : self.workers]

    @cached_property
    def _means(self) -> tuple[tuple[float, ...], ...]:
        """Weights of the auxiliary models in each of the different means that workers read."""
        columns = [column / column.sum() for column in self._pulls.T if column.any()]
        return tuple(dict.fromkeys(tuple(column.tolist()) for column in columns))

    @cached_property
    def layout(self) -> Layout:
        plain = super().layout
        if self.auxiliary < 2:
            return plain
        names = [f"{what} {i}" for what in ("auxiliary", "next") for i in range(self.auxiliary)]
        names += [f"mean {i}" for i in range(len(self._means))]
        return replace(plain, slots=("model", *names), auxiliary=tuple(names))

    def weights(self, s: GossipState, k: int) -> Floats:
        """Return the weights among workers."""
        return self.mixing.at(k)[: self.workers, : self.workers]

    def may_begin(self, s: GossipState, node: int) -> bool:
        # auxiliary models must be those of the round before
        return (s.version == s.at[node] - 1 or not self._pulls[:, node].any()) and super().may_begin(s, node)

    def beginning(self, s: GossipState, node: int, k: int) -> Mixture:
        mix, _ = super().beginning(s, node, k)
        return mix, float(self._pulls[:, node].sum())

    def centre_slot(self, node: int) -> str:
        """Return the mean of auxiliary models with the node's weights."""
        column = self._pulls[:, node]
        if self.auxiliary < 2 or not column.any():
            return "model"
        return f"mean {self._means.index(tuple((column / column.sum()).tolist()))}"

    def mixed(self, ended: Mapping[int, int]) -> Commands:
        """Return the commands that mix the auxiliary models and take their mean.

        The weight of a worker that has been given up goes to the auxiliary models that would have read it.
        """
        n, v = self.workers, self.auxiliary
        if not v:
            return super().mixed(ended)
        columns = self.mixing.at(0)[:, n:]
        messages, read = [(task, 0) for task in ended.values()], columns[list(ended)]
        retained = columns[n:] + np.diag(columns[:n].sum(axis=0) - read.sum(axis=0))
        if v == 1:
            return [Mix("model", messages, read[:, 0].tolist(), share=float(retained[0, 0]))]

        def of(weights: Any) -> tuple[tuple[str, float], ...]:
            return tuple((f"auxiliary {i}", float(weight)) for i, weight in enumerate(weights) if weight)

        return [
            Mix("model", messages, read.mean(axis=1).tolist(), others=of(retained.mean(axis=1)), keep=messages),
            *(Mix(f"next {i}", messages, read[:, i].tolist(), others=of(retained[:, i])) for i in range(v)),
            Cancel(tuple(ended.values())),
            *(Mix(f"auxiliary {i}", (), (), others=((f"next {i}", 1.0),)) for i in range(v)),
            *(Mix(f"mean {i}", (), (), others=of(weights)) for i, weights in enumerate(self._means)),
        ]
