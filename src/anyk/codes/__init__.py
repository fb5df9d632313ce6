"""Codes: who computes what, and how the answers of any k workers give the sum back."""

from anyk.codes.base import Code, Decoder, Decoding, LeastSquaresDecoder, Selection
from anyk.codes.cyclic import CyclicRepetition
from anyk.codes.partial import PartialStragglers
from anyk.codes.repetition import FractionalRepetition, RepetitionCode, Uncoded
from anyk.specs import Registry

registry: Registry[Code] = Registry("code", given=("workers",))
registry.register("uncoded")(Uncoded)
registry.register("frc")(FractionalRepetition)
registry.register("cyclic")(CyclicRepetition)
registry.register("partial")(PartialStragglers)

register = registry.register


def code(spec: str, *, workers: int) -> Code:
    """Build a code from its spec for ``workers`` workers.

    Raises :class:`~anyk.errors.BadInput` when the spec is wrong or no such code exists for that many workers.

    >>> code("frc:load=3", workers=30).tolerates
    2
    """
    return registry.build(spec, workers=workers)


__all__ = [
    "Code",
    "CyclicRepetition",
    "Decoder",
    "Decoding",
    "FractionalRepetition",
    "LeastSquaresDecoder",
    "PartialStragglers",
    "RepetitionCode",
    "Selection",
    "Uncoded",
    "code",
    "register",
    "registry",
]
