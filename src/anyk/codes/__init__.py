"""Codes: encoding matrices, and decoders that recover the sum from the replies of any k workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated

from anyk.base.checks import check_value
from anyk.base.errors import BadInput
from anyk.base.registries import Registry, build_or_suggest
from anyk.codes.base import EXACT, Code, MatrixCode, Policy, check_workers, incidence
from anyk.codes.bernoulli import BernoulliCode, RegularisedBernoulliCode, StochasticBlockCode
from anyk.codes.binary import BinaryCode
from anyk.codes.biregular import BiregularCode, ExpanderCode, KroneckerCode, RandomBiregularCode, second_singular
from anyk.codes.byzantine import DracoCode, locate
from anyk.codes.communication_efficient import CommunicationEfficient
from anyk.codes.cyclic import CyclicRepetition
from anyk.codes.decoders import (
    Algorithmic,
    Decoder,
    Decoding,
    Exact,
    LeastSquaresDecoder,
    LeastSquaresMethod,
    Method,
    OneStep,
    Own,
    Selection,
    method,
)
from anyk.codes.designs import BlockDesignCode, designs_for
from anyk.codes.edges import EdgeCode
from anyk.codes.file_code import FileCode
from anyk.codes.heterogeneous import HeterogeneousCode
from anyk.codes.made import LEFT_OUT
from anyk.codes.mds import CyclicMDS
from anyk.codes.partial import PartialStragglers
from anyk.codes.progress_codes import ChunkOrderCode, NestedCode, ProgressCode
from anyk.codes.repetition import BatchedCoupons, FractionalRepetition, RepetitionCode, Uncoded, harmonic
from anyk.codes.search import check_count, is_exhaustive, is_optimal, replies_of, worst_stragglers
from anyk.codes.tree_code import TreeCode

registry: Registry[Code] = Registry("code", supplied=("workers",))
register = registry.register
CodeSpec = Annotated[str, registry]


def rising(least: int, most: int) -> Iterator[int]:
    """Yield every integer up to 4, then about 1.4 times the one before.

    >>> list(rising(2, 20))
    [2, 3, 4, 6, 8, 11, 15]
    """
    value = least
    while value <= most:
        yield value
        value = max(value + 1, round(1.4 * value)) if value >= 4 else value + 1


def _register(name: str, kind: type[Code], key: str, *, least: int = 1, most: int = 8) -> None:
    """Register a code with a grid over one key, for planning: rising values up to half of the workers."""

    def grid(workers: int) -> Iterator[str]:
        return (f"{name}:{key}={value}" for value in rising(least, min(most, workers // 2)))

    register(name, grid=grid)(kind)


# exact
register("uncoded")(Uncoded)
_register("frc", FractionalRepetition, "stragglers", most=32)
_register("cyclic", CyclicRepetition, "stragglers")
_register("mds", CyclicMDS, "stragglers")
_register("binary", BinaryCode, "stragglers")
_register("nested", NestedCode, "stragglers")
_register("progress", ChunkOrderCode, "load", least=2)
_register("partial", PartialStragglers, "stragglers")
_register("bcc", BatchedCoupons, "batches", least=2, most=32)
_register("comm-efficient", CommunicationEfficient, "stragglers")
register("draco", grid=lambda workers: ())(DracoCode)  # against Byzantine workers, not stragglers
register("tree")(TreeCode)

# approximate


def _register_random(name: str, kind: Callable[..., Code], load_key: str, summary: str) -> None:
    """Register a random code with a parameter that is called ``load`` in a spec."""

    def build(workers: int, *, load: int = LEFT_OUT, seed: int = 0) -> Code:
        return kind(workers, seed=seed, **{load_key: load})

    build.__doc__ = summary
    register(name)(build)


_register_random(
    "bgc",
    BernoulliCode,
    "expected_load",
    "Bernoulli gradient code: each worker holds each partition with probability load / m.",
)
_register_random(
    "rbgc",
    RegularisedBernoulliCode,
    "expected_load",
    "Regularised Bernoulli code: as bgc, but no worker holds more than twice the expected load.",
)


@register("sbc")
def _sbc(
    workers: int,
    *,
    load: float = LEFT_OUT,
    block: int = LEFT_OUT,
    inside: float = 0.8,
    outside: float = LEFT_OUT,
    seed: int = 0,
) -> Code:
    """Stochastic block code: communities of workers and partitions, dense inside, sparse across."""
    return StochasticBlockCode(workers, expected_load=load, block=block, inside=inside, outside=outside, seed=seed)


register("expander")(ExpanderCode)
register("biregular")(RandomBiregularCode)


_register_random(
    "graph",
    EdgeCode,
    "degree",
    "Graph code: workers are the edges of a random regular graph of degree load, partitions its vertices.",
)
register("bibd")(BlockDesignCode)


@register("kronecker")
def _kronecker(
    workers: int, *, left: CodeSpec = "frc:stragglers=1", right: CodeSpec = "biregular", split: int | None = None
) -> Code:
    """Product of two codes, each in brackets: left=(frc:load=2) for split workers, right=(bibd) for n / split."""
    check_workers(workers)
    splits = [a for a in range(2, workers) if workers % a == 0] if split is None else [check_value(split, int, "split")]
    if not splits or not 1 <= splits[0] <= workers or workers % splits[0]:
        reason = "no two numbers above 1 multiply to that" if split is None else f"split={split} does not divide them"
        raise BadInput(f"kronecker does not exist for {workers} workers: {reason}")
    problems = []
    for a in sorted(splits, key=lambda a: abs(a - workers**0.5)):
        try:
            return KroneckerCode(registry.build(left, workers=a), registry.build(right, workers=workers // a))
        except BadInput as error:
            problems.append(f"split={a}: {error}")
    raise BadInput(f"kronecker:left=({left}),right=({right}) does not exist for {workers} workers; {problems[0]}")


register("hetero")(HeterogeneousCode)
register("matrix", grid=lambda workers: ())(FileCode)


def code(spec: str | Code, *, workers: int) -> Code:
    """Return the code of a spec for this number of workers; a code for this number is returned unchanged.

    Raises :class:`~anyk.BadInput` if the spec is wrong or no such code exists for this number of workers.

    >>> code("frc:load=3", workers=30).tolerates
    2
    """
    if not isinstance(spec, Code):
        return build_or_suggest(registry.build, spec, check_value(workers, int, "workers"))
    if spec.workers != workers:
        raise BadInput(f"the code '{spec.spec}' is for {spec.workers} workers, not for {workers}")
    return spec


__all__ = [
    "EXACT",
    "Algorithmic",
    "BatchedCoupons",
    "BernoulliCode",
    "BinaryCode",
    "BiregularCode",
    "BlockDesignCode",
    "ChunkOrderCode",
    "Code",
    "CommunicationEfficient",
    "CyclicMDS",
    "CyclicRepetition",
    "Decoder",
    "Decoding",
    "DracoCode",
    "EdgeCode",
    "Exact",
    "ExpanderCode",
    "FileCode",
    "FractionalRepetition",
    "HeterogeneousCode",
    "KroneckerCode",
    "LeastSquaresDecoder",
    "LeastSquaresMethod",
    "MatrixCode",
    "Method",
    "NestedCode",
    "OneStep",
    "Own",
    "PartialStragglers",
    "Policy",
    "ProgressCode",
    "RandomBiregularCode",
    "RegularisedBernoulliCode",
    "RepetitionCode",
    "Selection",
    "StochasticBlockCode",
    "TreeCode",
    "Uncoded",
    "check_count",
    "check_workers",
    "code",
    "designs_for",
    "harmonic",
    "incidence",
    "is_exhaustive",
    "is_optimal",
    "locate",
    "method",
    "register",
    "registry",
    "replies_of",
    "second_singular",
    "worst_stragglers",
]
