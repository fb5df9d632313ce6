"""CodedReduce: workers form a tree, every parent decodes its children's replies, and the driver hears of a few."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from anyk.checks import typed
from anyk.codes.base import Code, Decoder, Floats, Indices, Policy, Row, check_stragglers, check_workers, whole
from anyk.codes.cyclic import CyclicRepetition
from anyk.codes.decoders import SetDecoder
from anyk.codes.made import fixed_property
from anyk.codes.repetition import FractionalRepetition, Uncoded
from anyk.errors import BadInput

ROOT = -1  # the driver


class Share(NamedTuple):
    """What a node has to do: its own partitions with coefficients, and its children."""

    partitions: tuple[int, ...]
    coefficients: tuple[float, ...]
    children: tuple[int, ...]


@typed
@dataclass(frozen=True)
class TreeCode(Code):
    """Tree code (CodedReduce): a regular tree in which every parent tolerates ``stragglers`` missing children.

    Each node has ``children`` children, down to a depth L; the driver is the root. A node computes its own share of
    the data handed to it, cuts the rest into blocks and codes them to its children; it decodes their replies, adds
    its share and sends one vector up, so that nobody receives more than ``children`` of them. Every node computes the
    fraction ``1 / sum over l = 1 … L of (c / (s + 1))^l`` of the data (Reisizadeh, Prakash, Pedarsani and Avestimehr
    2019). Depth 1 is a plain gradient code.

    Workers are numbered layer by layer: 0 … c - 1 are the driver's children, and worker i's children follow its elder
    cousins'. The number of workers must be ``c + c^2 + … + c^L``. ``children`` left out is the largest number below
    n that has a tree of at least two layers, else n. ``stragglers`` (left out: 1) are per parent; any that many in
    all are tolerated. The code of each parent is fractional repetition where s + 1 divides c, else cyclic repetition.

    >>> code = TreeCode(30, children=5)
    >>> code.depth, code.partitions, code.load
    (2, 35, 4)
    """

    workers: int
    children: int | None = None
    stragglers: int = 1

    def __post_init__(self) -> None:
        n = check_workers(self.workers)
        sizes = {c: depth for c in range(1, n + 1) if (depth := _depth(n, c))}
        children = self.children
        if children is None:
            deep = [c for c, depth in sizes.items() if depth > 1 and c > max(1, self.stragglers)]
            children = max(deep, default=n)
        if whole("children", children) not in sizes:
            raise BadInput(
                f"tree:children={children} does not exist for {n} workers: they must number c + c^2 + … + c^L"
            )
        if self.stragglers and children <= check_stragglers(self.stragglers, n):
            raise BadInput(f"tree: stragglers must be below children ({children}), got {self.stragglers}")
        object.__setattr__(self, "children", children)

    def policy(self) -> Policy:
        return Policy(rounds="tree")

    @property
    def spec(self) -> str:
        return f"tree:children={self.children},stragglers={self.stragglers}"

    @property
    def _c(self) -> int:
        return int(self.children or 1)

    @property
    def depth(self) -> int:
        """L, layers of workers."""
        return _depth(self.workers, self._c)

    @property
    def partitions(self) -> int:
        """``sum over l of c^l (s + 1)^(L - l)``, for which all shares are whole."""
        c, r, depth = self._c, self.stragglers + 1, self.depth
        return sum(c**level * r ** (depth - level) for level in range(1, depth + 1))

    @property
    def tolerates(self) -> int:
        """Stragglers, wherever they are."""
        return self.stragglers

    @fixed_property
    def code(self) -> Code:
        """The code of every parent over its children."""
        c, s = self._c, self.stragglers
        if s == 0:
            return Uncoded(c)
        return FractionalRepetition(c, stragglers=s) if c % (s + 1) == 0 else CyclicRepetition(c, stragglers=s)

    @fixed_property
    def parents(self) -> tuple[int, ...]:
        """The parent of each worker; :data:`ROOT` for the driver."""
        c = self._c
        return tuple(ROOT if i < c else (i - c) // c for i in range(self.workers))

    def children_of(self, node: int) -> range:
        """The children of a worker, or of the driver (:data:`ROOT`)."""
        first = self._c * (node + 1)
        return range(first, first + self._c) if first < self.workers else range(0)

    @fixed_property
    def shares(self) -> tuple[Share, ...]:
        """The share of each worker."""
        own = (self.stragglers + 1) ** self.depth
        found: list[Share] = [Share((), (), ())] * self.workers
        handed: dict[int, list[tuple[int, float]]] = {ROOT: [(j, 1.0) for j in range(self.partitions)]}
        for node in range(ROOT, self.workers):
            items = handed.pop(node)
            mine = 0 if node == ROOT else own
            below = self.children_of(node)
            if node != ROOT:
                partitions, coefficients = zip(*items[:mine], strict=True)
                found[node] = Share(partitions, coefficients, tuple(below))
            size = (len(items) - mine) // self._c
            for child, (held, factors) in zip(below, self.code.rows if below else (), strict=True):
                handed[child] = [
                    (j, weight * factor)
                    for block, factor in zip(held, factors, strict=True)
                    for j, weight in items[mine + block * size : mine + (block + 1) * size]
                ]
        return tuple(found)

    @fixed_property
    def rows(self) -> Sequence[Row]:
        """What each worker computes itself, with the coefficients it has at the end; see :attr:`Code.rows`."""
        return tuple((share.partitions, share.coefficients) for share in self.shares)

    @fixed_property
    def covers(self) -> tuple[tuple[int, ...], ...]:
        """The partitions that each worker's message covers: its own and those of all below it."""
        found: list[tuple[int, ...]] = [()] * self.workers
        for node in reversed(range(self.workers)):
            below = [j for child in self.children_of(node) for j in found[child]]
            found[node] = tuple(dict.fromkeys([*self.shares[node].partitions, *below]))
        return tuple(found)

    def decoder(self) -> Decoder:
        return _TreeDecoder(self)

    def weights_below(self, node: int, ready: Sequence[int]) -> dict[int, float] | None:
        """Weights with which a parent adds up the messages of its children ``ready``; None: not decodable yet."""
        below = self.children_of(node)
        decoding = self.code.decode([child - below.start for child in ready])
        if not decoding.exact:
            return None
        return {below.start + i: float(decoding.weights[i]) for i in np.flatnonzero(decoding.weights).tolist()}

    def _solve(self, replies: Indices) -> Floats:
        """Weights along the tree, from the leaves up; least squares where the tree does not decode."""
        here = set(replies.tolist())
        ready: dict[int, dict[int, float]] = {}  # a node whose message can be made, and the weights below it
        for node in reversed(range(ROOT, self.workers)):
            below = [child for child in self.children_of(node) if child in ready]
            found = self.weights_below(node, below) if self.children_of(node) else {}
            if found is not None and (node in here or node == ROOT):
                ready[node] = found
        if ROOT not in ready:
            return super()._solve(replies)
        weights = np.zeros(self.workers)
        total = {ROOT: 1.0}
        for node in range(ROOT, self.workers):
            if node in total:
                if node != ROOT:
                    weights[node] = total[node]
                total |= {child: total[node] * weight for child, weight in ready[node].items()}
        return weights


class _TreeDecoder(SetDecoder):
    """Decodable when every parent on the way up can decode its children."""

    def add(self, worker: int) -> bool:
        self._replied.append(worker)
        if not self.decodable:
            self.decodable = self.decode().exact
        return self.decodable


def _depth(workers: int, children: int) -> int:
    """L with ``c + c^2 + … + c^L`` workers; 0 if there is none."""
    if children == 1:
        return workers if workers == 1 else 0
    total = depth = 0
    while total < workers:
        depth += 1
        total += children**depth
    return depth if total == workers else 0
