"""The interface of a problem: an objective, its data in partitions, and the partial gradients that workers compute.

The objective is ``(1/N) sum of sample losses + (l2/2) |w|^2``. Workers send sums over their samples, without the
regulariser; the driver divides by N and adds the regulariser once a step. So a learning rate means the same under
every strategy, and the replies of sparse data stay sparse.

:class:`Problem` and :class:`Partitions` are protocols: a custom class has their members and inherits from nothing.
Optional members are declared with their defaults in :class:`ProblemAbilities` and :class:`PartitionAbilities`.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from anyk.base.arrays import Array, DType, Vector
from anyk.base.errors import BadInput
from anyk.base.keyed import keyed_generator
from anyk.base.plain import ByName
from anyk.problems.values import Leaves, Values

Ends = NDArray[np.int64]  # where consecutive pieces of samples begin and the last one ends
Index = NDArray[np.intp]  # the type with which NumPy scatters fastest
Better = Literal["higher", "lower"]
Evaluated = Literal["train", "held_out"] | None
Recipe = ByName  # plain data
Tell = Callable[[str], None]  # receives sentences for the user
NO_HELD_OUT = "metrics are computed on held-out samples, and there are none; give held_out=… as well"


class Partitions(Protocol):
    """The data in m disjoint partitions, as workers receive it: by pickle, but each array exists once on a machine.

    ``sizes[j]`` is the number of samples in partition j, ``dimension`` the length d of the model, ``dtype`` the number
    type of the model and of gradients. :class:`PartitionAbilities` lists the optional members.
    """

    dimension: int
    dtype: DType
    sizes: tuple[int, ...]

    def load(self, partitions: Sequence[int]) -> None:
        """Prepare these partitions; called once on each worker, before any work, with the partitions assigned to it."""
        ...

    def support(self, partition: int) -> Index | None:
        """Return the sorted coordinates that the partition's gradient can touch; None: all coordinates."""
        ...

    def partial_gradient(self, partition: int, w: Vector, rows: Index | None = None, /) -> Vector:
        """Return the gradient at ``w`` (length d) of the sum of the partition's sample losses, on its support.

        ``rows``: sorted numbers of samples within the partition, to which the sum is restricted; only mini-batches use
        it.
        """
        ...


class PartitionAbilities:
    """The optional members of partitions, with their defaults.

    - ``tolerance``: the relative difference up to which gradients of the same partition at the same model count as
      equal. The driver compares them now and then if several workers compute them; 0: never.
    - ``least``: the smallest number of samples that give a gradient; 2 with batch norm, for example.
    - ``penalty``: set by the driver for local steps, if the problem's regulariser has a factor of each coordinate.
    - ``only(partitions)``: the same without the data of all other partitions, for workers that share no memory with the
      driver. The supports of all partitions remain. None: every worker receives all data.
    - ``adopt(other)``: take over the data of what ``only`` returned for other partitions, for workers to which
      partitions are assigned during the run. None: such workers receive all data at the start.
    - ``piece(first, last)``: consecutive partitions as an object with one partition, so that a worker computes them
      together. None: it computes one after the other.
    - ``carry(numbers, places, content)``: compute the next gradients with these of the problem's ``changing_values``.
    - ``draw_rows(partition, count, random)``: the sorted rows of a mini-batch, drawn from a NumPy generator; None: they
      are drawn without replacement, each with the same probability.
    - ``partial_loss(partition, w, rows=None)``: the sum of the partition's sample losses at ``w``, over these rows or
      all, without the regulariser; for ``Evaluate(where="workers")``.
    """

    tolerance: float = 0.0
    least: int = 1
    penalty: Vector | None = None
    only: Callable[[Sequence[int]], Any] | None = None
    adopt: Callable[[Any], None] | None = None
    piece: Callable[[int, int], Any] | None = None
    partial_loss: Callable[..., float] | None = None
    carry: Callable[[Sequence[float], Sequence[int], Sequence[Vector]], None] | None = None
    _custom: object = None  # partitions whose class is not derived from this one

    def compare_replicas(self) -> None:
        """Prepare the comparison of gradients of the same partition, if a user's code computes them.

        Called on the driver, before partitions are sent, if several workers receive the same partition; it sets
        ``tolerance``.
        """

    def compare_workers(self, *, replicas: bool) -> None:
        """Compute a small gradient with which :meth:`Partitions.load` compares a worker's, if a user's code does so.

        Called on the driver, before partitions are sent, under every strategy; ``replicas``: whether a code adds up
        several workers' gradients of a partition, which then must not depend on the worker. This method and ``load``
        raise :class:`~anyk.BadInput` where gradients differ by more than rounding.
        """

    def draw_rows(self, partition: int, count: int, random: np.random.Generator) -> Index | None:
        """Return None: each row of a partition has the same probability."""
        return None  # explicit, as mypy demands

    def check_partial_loss(self) -> None:
        """Raise :class:`~anyk.BadInput` if workers cannot evaluate the loss."""
        if self.partial_loss is None:
            name = type(self._custom or self).__name__
            raise BadInput(
                f"workers cannot evaluate {name}, which has no partial_loss(partition, w, rows); give it one, or "
                "evaluate where='driver' or 'aside'"
            )


class Problem(Protocol):
    """An objective with its data, on the driver; :class:`ProblemAbilities` lists the optional members."""

    dimension: int
    dtype: DType
    samples: int
    l2: float
    metric: str

    @property
    def better(self) -> Better:
        """Whether larger or smaller values of the metric are better."""
        ...

    def split(self, partitions: int, shares: Sequence[int] | None = None) -> Partitions:
        """Divide the training data into partitions, as even as possible or in proportion to ``shares``."""
        ...

    def initial(self) -> Vector:
        """Return the model to begin with, shape (d,)."""
        ...

    def loss(self, w: Vector) -> float:
        """Return the objective at ``w``."""
        ...

    def metrics(self, w: Vector) -> dict[str, float]:
        """Return the quality on held-out data, by name, ``metric`` first; empty without held-out data.

        With ``majority``, the share of the most frequent class, or ``r2``, tables show what to compare a metric with.
        """
        ...

    def recipe(self) -> Recipe | None:
        """Return plain data from which :func:`anyk.problems.from_recipe` makes the problem again; None: impossible."""
        ...


class ProblemAbilities:
    """The optional members of a problem, with their defaults.

    - ``penalty``: the regulariser's factor of each coordinate, shape (d,), if it is not ``l2`` for all.
    - ``endless``: whether the training data is a stream (:class:`~anyk.data.Stream`). Then only gradients of
      mini-batches are computed, and at most the loss of a sample; ``samples`` is a large number that partitions divide
      evenly.
    - ``evaluated_on``: the data that is evaluated by default. ``"held_out"`` if computing the loss would read training
      data that is not in memory, None if there is no held-out data either.
    - ``uneven``: how rows are spread over partitions by label (:class:`~anyk.problems.Dirichlet`), if not in order.
    - ``by_weight``: whether mini-batches are drawn in proportion to the samples' weights.
    - ``step_samples``: the number of samples in a step, if a strategy does not state it; None: all.
    - ``data_remarks``: sentences on how the data were understood, which runs note in their logs.
    - ``shapes``: the shapes of the parameters that the model consists of.
    - ``digest()``: a text that differs if the data differ, or None; by default it is made of the arrays among the
      problem's attributes. A run is neither resumed nor replayed with other data.
    - ``smoothness()``: the largest curvature of the objective, whose inverse is the default learning rate.
    - ``predictor()``: the :class:`~anyk.problems.Predictor` that a run stores.
    - ``changing_values``: numbers and arrays that change during a run and travel with each version of the model
      (:class:`~anyk.problems.values.Values`). ``with_values(leaves)``: returns the problem with other values, with
      which it is evaluated; None: it has no values.
    - ``watch_code()``: returns an object that notices if a user's code computes something else than at the start
      (:class:`~anyk.problems.watch.CodeWatch`), or None if nothing can change; without it the problem's attributes and
      the gradient of its first samples are watched. ``check_unchanged(begins=…)``: raises
      :class:`~anyk.BadInput` if something of which the problem has copies has changed since it was made, and
      returns sentences on what may differ; ``begins``: whether the run begins with the problem's initial model.
    - ``write_model(w, file)``: writes the model as safetensors. ``module_at(w)``: returns it as a PyTorch module.
      ``moving_norms``: the names of its batch norms whose running statistics are computed from the training data.
    - ``unused_parameters``: the numbers of the parameters in ``shapes`` that the loss does not use. ``marks_unused``:
      whether gradients have :data:`~anyk.base.arrays.NO_GRADIENT` at parameters that it does not use, and only there;
      then optimisers leave these alone.
    - ``hooked_parameters``: the names of the parameters that have hooks. ``through_hooks(w, gradient)``: returns what
      the hooks make of the gradient of a step.
    """

    penalty: float | Vector | None = None
    endless: bool = False
    evaluated_on: Evaluated = "train"
    uneven: Any = None
    by_weight: bool = False
    step_samples: int | None = None
    data_remarks: Sequence[str] = ()
    shapes: Sequence[tuple[int, ...]] | None = None
    digest: Callable[[], str | None] | None = None
    smoothness: Callable[[], float] | None = None
    predictor: Callable[[], Any] | None = None
    write_model: Callable[[Any, Path], None] | None = None
    module_at: Callable[[Any], Any] | None = None
    moving_norms: Sequence[str] = ()
    unused_parameters: frozenset[int] = frozenset()
    marks_unused: bool = False
    hooked_parameters: Sequence[str] = ()
    through_hooks: Callable[[Vector, Vector], Vector] | None = None
    changing_values: Values | None = None
    with_values: Callable[[Leaves], Any] | None = None
    watch_code: Callable[[], Any] | None = None
    check_unchanged: Callable[..., list[str]] | None = None
    _custom: object = None  # a problem whose class is not derived from this one

    def sampled(self, samples: int) -> Any:
        """Return the problem with this number of its training samples and of its held-out ones (:func:`some_rows`)."""
        raise BadInput(
            f"{type(self._custom or self).__name__} cannot be evaluated on a sample of its data; give it a method "
            "sampled(samples), or leave samples out"
        )


Abilities = TypeVar("Abilities", PartitionAbilities, ProblemAbilities)


def _with_defaults(thing: object, kind: type[Abilities]) -> Abilities:
    """Return the thing itself if it is of this kind, or else the members that it has, with defaults for the others."""
    if isinstance(thing, kind):
        return thing
    abilities = kind()
    abilities._custom = thing
    vars(abilities).update(
        {name: getattr(thing, name) for name in vars(kind) if name[0] != "_" and hasattr(thing, name)}
    )
    return abilities


def abilities_of(problem: Problem) -> ProblemAbilities:
    """Return the optional members of a problem, with defaults for those that its class lacks."""
    return _with_defaults(problem, ProblemAbilities)


def partition_abilities(partitions: Partitions) -> PartitionAbilities:
    """Return the optional members of partitions, with defaults for those that their class lacks."""
    return _with_defaults(partitions, PartitionAbilities)


def stacked(parts: Sequence[Any]) -> Any:
    """Return the rows of several arrays, dense or sparse, as one array."""
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    from scipy import sparse

    return sparse.vstack(parts, format="csr")


def cut(samples: int, partitions: int, shares: Sequence[int] | None = None) -> Ends:
    """Return where pieces of the samples begin and the last piece ends, shape (partitions + 1,); none is empty.

    Pieces have even sizes, the larger ones first, or sizes as close as possible to ``shares``. Raises
    :class:`~anyk.BadInput` if there are too few samples.

    >>> cut(7, 3).tolist(), cut(8, 3, [2, 1, 1]).tolist()
    ([0, 3, 5, 7], [0, 4, 6, 8])
    """
    if partitions < 1 or samples < partitions:
        raise BadInput(
            f"{samples} rows cannot be cut into {partitions} partitions of at least one row; use at most {samples}"
        )
    if shares is None:
        sizes = np.full(partitions, samples // partitions)
        sizes[: samples % partitions] += 1
        return np.concatenate(([0], np.cumsum(sizes)))
    weights = np.asarray(shares, dtype=float)
    ends = np.concatenate(([0], np.round(np.cumsum(weights) / weights.sum() * samples).astype(np.int64)))
    ends = np.maximum.accumulate(np.maximum(ends - np.arange(partitions + 1), 0)) + np.arange(partitions + 1)
    return np.minimum(ends, samples - np.arange(partitions, -1, -1))


def even_ends(size: int, most: int) -> list[int]:
    """Return the ends of even batches of at most ``most`` samples: batch norm could not use a last batch of one."""
    return [0, size] if size <= most else list(cut(size, -(-size // most)).tolist())


def some_rows(rows: int, samples: int, of: str) -> Index | slice:
    """Return ``samples`` sorted random row numbers, keyed by the purpose ``of``, or all rows if there are no more.

    >>> len(some_rows(1000, 10, "held out")), some_rows(4, 10, "held out")
    (10, slice(None, None, None))
    """
    if samples >= rows:
        return slice(None)
    return np.sort(keyed_generator(0, "evaluate", of, rows).choice(rows, samples, replace=False))


_MEMBERS = ("dimension", "dtype", "samples", "l2", "metric", "better", "split", "initial", "loss", "metrics", "recipe")


def missing_members(problem: object) -> list[str]:
    """Return the members of a problem that an object lacks."""
    return [member for member in _MEMBERS if not hasattr(problem, member)]


def ensure_problem(problem: object) -> None:
    """Raise :class:`~anyk.BadInput` if this is not a problem."""
    missing = missing_members(problem)
    if isinstance(problem, type) or missing:
        which = f", which has no {missing[0]}" if missing else ""
        plain = isinstance(problem, str | int | float | None)
        description = repr(problem) if plain else f"a {type(problem).__name__}{which}"
        if missing and hasattr(problem, "shape"):
            description = (
                f"data ({type(problem).__name__} of shape {tuple(problem.shape)}); make a problem of it and its targets"
            )
        raise BadInput(f"problem must be one of anyk.problems, as in LogisticRegression(X, y), got {description}")


def initial_of(problem: Problem) -> Array:
    """Return a problem's initial model; raise :class:`~anyk.BadInput` unless it is real numbers, one a coordinate."""
    given: Any = problem.initial()
    initial: Array = np.asanyarray(given.detach().cpu().numpy() if hasattr(given, "detach") else given)
    real = initial.dtype.kind in "biuf" and not isinstance(initial, np.ma.MaskedArray)
    if not real or initial.shape != (problem.dimension,):
        raise BadInput(
            f"initial() of the problem must give {problem.dimension:,} real numbers, got {type(given).__name__} of "
            f"shape {initial.shape} ({initial.dtype})"
        )
    return initial


def penalty_of(problem: Problem) -> float | Vector:
    """Return the regulariser's factor of each coordinate, shape (d,), or of all coordinates.

    Raises :class:`~anyk.BadInput` if ``penalty`` is neither.
    """
    penalty = abilities_of(problem).penalty
    if penalty is None:
        return problem.l2
    factors: Any = np.asarray(penalty)
    is_suitable = factors.dtype.kind in "fiu" and factors.shape in ((), (problem.dimension,))
    if not is_suitable or isinstance(penalty, np.ma.MaskedArray):
        raise BadInput(
            f"a problem's penalty must be a number or {problem.dimension} numbers, one for each coordinate, got "
            f"{reprlib.repr(penalty)}"
        )
    return factors if factors.ndim else float(factors)


def with_values(problem: Problem, leaves: Leaves) -> Problem:
    """Return the problem with other values, with which it is evaluated."""
    change = abilities_of(problem).with_values
    assert change is not None  # a problem with values has it
    changed: Problem = change(leaves)
    return changed


def rows_of(problem: Problem) -> str:
    """Return the amount of training data in words."""
    return "a stream" if abilities_of(problem).endless else f"{problem.samples:,} rows"


def problem_text(problem: Any) -> str:
    """Return the text that ``repr`` shows: the problem's kind and sizes."""
    name = type(problem).__name__
    return f"<{name}: {rows_of(problem)}, {problem.dimension:,} parameters, metric {problem.metric}>"
