"""What the driver asks the nodes that hold slices, until they have answered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from anyk.base.errors import RunFailed
from anyk.clusters.nodes.node import PATIENCE, DriverOfNodes
from anyk.clusters.nodes.placement import Placement
from anyk.clusters.nodes.session import Done, Measure, ToHolder
from anyk.clusters.nodes.sliced_messages import SlicedMessage

Order = Callable[[int, int, int], ToHolder]  # of run, number of the question, and slice
Answers = dict[int, tuple[int, Done]]  # by slice: who answered first, and what
Late = Callable[[int, int, Done], None]  # is told an answer that was not the first: slice, rank, answer


class _Question:
    """What all who hold a slice are asked, until each has answered or holds it no more.

    ``keep``: messages that are needed for the answers.
    """

    def __init__(self, asked: set[tuple[int, int]], keep: Sequence[SlicedMessage], late: Late | None) -> None:
        self.open = asked  # slices and ranks
        self.keep, self.late = keep, late
        self.answers: Answers = {}


class SliceQuestions:
    """Asks the nodes that hold slices; ``numbers``: of questions and messages, each one once.

    Whichever node answers first for a slice is taken, and the other one's answer is compared with that.
    """

    def __init__(self, cluster: DriverOfNodes, placement: Placement, numbers: Iterator[int]) -> None:
        self._cluster, self._placement, self._numbers = cluster, placement, numbers
        self._open: dict[int, _Question] = {}

    def ask(self, order: Order, *, keep: Sequence[SlicedMessage] = (), late: Late | None = None) -> Answers:
        """Have all holders carry out an order; return the first answer for each slice.

        ``keep``: messages that they need for it. ``late`` is told further answers. Raises :class:`~anyk.RunFailed` with
        the reason if it cannot be done.
        """
        _, question = self._begin(order, self._placement.pairs(), keep, late)
        self._cluster.wait_until(lambda: len(question.answers) == len(self._placement.slices))
        return {number: question.answers[number] for number in self._placement.slices}

    def ask_all(self, order: Order) -> None:
        """Have all holders carry out an order, and wait for all of them."""
        _, question = self._begin(order, self._placement.pairs())
        self._cluster.wait_until(lambda: not question.open)

    def ask_one(self, slice_number: int, rank: int, order: Order) -> Done | None:
        """Have one node carry out an order for a slice; return its answer, None if it gives none or could not."""
        number, question = self._begin(order, [(slice_number, rank)])
        self._cluster.wait_until(lambda: not question.open or self._cluster.silence(rank) > PATIENCE)
        self._open.pop(number, None)
        return question.answers.get(slice_number, (rank, None))[1]

    def squared_norm(self, terms: Sequence[tuple[SlicedMessage, float]]) -> float:
        """Return the squared norm of a weighted sum of messages."""
        weights = [(message.number, weight) for message, weight in terms]
        answers = self.ask(
            lambda run, number, slice_number: Measure(run, number, slice_number, weights),
            keep=[message for message, _ in terms],
        )
        return sum(square for _, done in answers.values() for square in done.squares)

    def _begin(
        self,
        order: Order,
        pairs: Iterable[tuple[int, int]],
        keep: Sequence[SlicedMessage] = (),
        late: Late | None = None,
    ) -> tuple[int, _Question]:
        number, asked = next(self._numbers), list(pairs)
        question = self._open[number] = _Question(set(asked), keep, late)
        for slice_number, rank in asked:
            self._cluster.tell_rank(rank, order(self._cluster.run, number, slice_number))
        return number, question

    def is_asked(self, number: int, slice_number: int, rank: int) -> bool:
        """Return whether a question waits for a node's answer for a slice."""
        return number in self._open and (slice_number, rank) in self._open[number].open

    def answered(self, rank: int, done: Done) -> None:
        """Take in an answer.

        Raises :class:`~anyk.RunFailed` if it could not be done, or if two nodes have done unlike things.
        """
        question = self._open[done.number]
        self._close(done.number, done.slice, rank)
        if done.failure:
            raise RunFailed(done.failure if done.final else f"node {rank}: {done.failure}")
        if done.slice not in question.answers:
            question.answers[done.slice] = rank, done
            return
        first, before = question.answers[done.slice]
        if (done.digest, done.squares) != (before.digest, before.squares):
            raise RunFailed(
                f"nodes {first} and {rank} took the same step to different models: their processors compute unlike "
                "bits, or one of them is damaged; copies=2 needs nodes of the same kind"
            )
        if question.late is not None:
            question.late(done.slice, rank, done)

    def forget(self, slice_number: int, rank: int) -> None:
        """Wait no more for a node's answers for a slice."""
        for number in list(self._open):
            self._close(number, slice_number, rank)

    def _close(self, number: int, slice_number: int, rank: int) -> None:
        question = self._open[number]
        question.open.discard((slice_number, rank))
        if not question.open:
            del self._open[number]

    def steps_behind(self, slice_number: int, rank: int) -> int:
        """Return how many steps of a slice a node has yet to take that another one may have taken."""
        steps = [question for question in self._open.values() if question.late is not None]
        return sum((slice_number, rank) in question.open for question in steps)
