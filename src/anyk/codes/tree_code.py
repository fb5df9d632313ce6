"""CodedReduce: workers form a tree, and every parent decodes its children's replies for its own parent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from anyk.base.arrays import Floats, Indices
from anyk.base.checks import value_class
from anyk.base.errors import BadInput
from anyk.codes.base import Code, Decoder, Policy, RegisteredCode, Row, check_stragglers, check_workers
from anyk.codes.cyclic import CyclicRepetition
from anyk.codes.decoders import SetDecoder
from anyk.codes.made import fixed_property
from anyk.codes.repetition import FractionalRepetition, Uncoded

ROOT = -1  # the driver


class NodeShare(NamedTuple):
    """The duties of a node: its own partitions with coefficients, and its children."""

    partitions: tuple[int, ...]
    coefficients: tuple[float, ...]
    children: tuple[int, ...]


@value_class
class TreeCode(RegisteredCode):
    """Tree code (CodedReduce): a regular tree in which every parent tolerates ``stragglers`` missing children.

    Each node has ``children`` children, down to a depth L; the driver is the root. A node computes its own share of
    the data handed to it, cuts the remainder into blocks and codes them to its children. It decodes their replies, adds
    its share and sends one vector up, so that no node receives more than ``children`` vectors. Every node computes the
    fraction ``1 / sum over l = 1 … L of (c / (s + 1))^l`` of the data (Reisizadeh, Prakash, Pedarsani and Avestimehr
    2019). Depth 1 is a plain gradient code.

    Workers are numbered layer by layer: 0 … c - 1 are the driver's children, and worker i's children follow its elder
    cousins'. The number of workers must be ``c + c^2 + … + c^L``. ``children`` is by default the largest number below
    n that has a tree of at least two layers, else n. ``stragglers`` are per parent; any set of that many in all is
    tolerated. The code of each parent is fractional repetition if s + 1 divides c, else cyclic repetition. Raises
    :class:`~anyk.BadInput` for a tree that does not exist.

    >>> code = TreeCode(30, children=5)
    >>> code.depth, code.partitions, code.load
    (2, 35, 4)
    """

    workers: int
    children: int | None = None
    stragglers: int = 1
    name = "tree"
    optimal = True

    def __post_init__(self) -> None:
        n = check_workers(self.workers)
        sizes = {c: depth for c in range(1, n + 1) if (depth := _depth(n, c))}
        children = self.children
        if children is None:
            deep = [c for c, depth in sizes.items() if depth > 1 and c > max(1, self.stragglers)]
            children = max(deep, default=n)
        if children not in sizes:
            raise BadInput(
                f"tree:children={children} does not exist for {n} workers: they must number c + c^2 + … + c^L"
            )
        if self.stragglers and children <= check_stragglers(self.stragglers, n):
            raise BadInput(f"tree: stragglers must be below children ({children}), got {self.stragglers}")
        self._resolve(children=children)

    def policy(self) -> Policy:
        return Policy(rounds="tree")

    @property
    def _c(self) -> int:
        return int(self.children or 1)

    @property
    def depth(self) -> int:
        """Number of layers of workers, L."""
        return _depth(self.workers, self._c)

    @property
    def partitions(self) -> int:
        """Number of partitions, ``sum over l of c^l (s + 1)^(L - l)``, for which all shares are integers."""
        c, r, depth = self._c, self.stragglers + 1, self.depth
        return sum(c**level * r ** (depth - level) for level in range(1, depth + 1))

    @property
    def tolerates(self) -> int:
        """Stragglers, wherever they are."""
        return self.stragglers

    @fixed_property
    def code(self) -> Code:
        """Code of every parent over its children."""
        if self.stragglers == 0:
            return Uncoded(self._c)
        kind = CyclicRepetition if self._c % (self.stragglers + 1) else FractionalRepetition
        return kind(self._c, stragglers=self.stragglers)

    @fixed_property
    def parents(self) -> tuple[int, ...]:
        """Parent of each worker; :data:`ROOT` for the driver."""
        c = self._c
        return tuple(ROOT if i < c else (i - c) // c for i in range(self.workers))

    def children_of(self, node: int) -> range:
        """Return the children of a worker, or of the driver (:data:`ROOT`)."""
        first = self._c * (node + 1)
        return range(first, first + self._c) if first < self.workers else range(0)

    @fixed_property
    def shares(self) -> tuple[NodeShare, ...]:
        """NodeShare of each worker."""
        copies = (self.stragglers + 1) ** self.depth
        shares: list[NodeShare] = []
        handed: dict[int, list[tuple[int, float]]] = {ROOT: [(j, 1.0) for j in range(self.partitions)]}
        for node in range(ROOT, self.workers):
            items, below = handed.pop(node), self.children_of(node)
            if node != ROOT:
                partitions, coefficients = zip(*items[:copies], strict=True)
                shares.append(NodeShare(partitions, coefficients, tuple(below)))
                del items[:copies]
            size = len(items) // self._c
            for child, (blocks, factors) in zip(below, self.code.rows if below else (), strict=True):
                handed[child] = [
                    (j, weight * factor)
                    for block, factor in zip(blocks, factors, strict=True)
                    for j, weight in items[block * size : (block + 1) * size]
                ]
        return tuple(shares)

    @fixed_property
    def rows(self) -> Sequence[Row]:
        """Partitions that each worker computes itself, with their coefficients in the sum of all messages."""
        return tuple((share.partitions, share.coefficients) for share in self.shares)

    @fixed_property
    def covers(self) -> tuple[tuple[int, ...], ...]:
        """Partitions that each worker's message covers: its own and all below it."""
        covers: list[tuple[int, ...]] = [()] * self.workers
        for node in reversed(range(self.workers)):
            below = [j for child in self.children_of(node) for j in covers[child]]
            covers[node] = tuple(dict.fromkeys([*self.shares[node].partitions, *below]))
        return tuple(covers)

    def decoder(self) -> Decoder:
        return _TreeDecoder(self)

    def weights_below(self, node: int, ready: Sequence[int]) -> dict[int, float] | None:
        """Return weights of the messages of a parent's children ``ready``, by child; None: not decodable yet."""
        below = self.children_of(node)
        decoding = self.code.decode([child - below.start for child in ready])
        if not decoding.exact:
            return None
        return {below.start + i: float(decoding.weights[i]) for i in np.flatnonzero(decoding.weights).tolist()}

    def _solve(self, replies: Indices) -> Floats:
        """Return products of weights along the tree; least squares if the tree does not decode."""
        replied = set(replies.tolist())
        ready: dict[int, dict[int, float]] = {}  # the weights below each node whose message is decodable
        for node in reversed(range(ROOT, self.workers)):
            below = [child for child in self.children_of(node) if child in ready]
            weights_below = self.weights_below(node, below) if self.children_of(node) else {}
            if weights_below is not None and (node in replied or node == ROOT):
                ready[node] = weights_below
        if ROOT not in ready:
            return super()._solve(replies)
        return self.multiply_down(ready)

    def multiply_down(self, below: Mapping[int, Mapping[int, float]]) -> Floats:
        """Return products of weights along the tree, shape (workers,); ``below``: weights of each node's children."""
        total = np.append(np.zeros(self.workers), 1.0)  # the driver, node -1, comes first
        for node in range(ROOT, self.workers):
            for child, weight in below.get(node, {}).items():
                total[child] = total[node] * weight
        return total[:-1]


class _TreeDecoder(SetDecoder):
    """Decodable when every parent on the way up can decode its children."""

    def _may_suffice(self) -> bool:
        return True


def _depth(workers: int, children: int) -> int:
    """Return L with ``c + c^2 + … + c^L`` workers; 0 if there is none."""
    if children == 1:
        return workers if workers == 1 else 0
    total = depth = 0
    while total < workers:
        depth += 1
        total += children**depth
    return depth if total == workers else 0
