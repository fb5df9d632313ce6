"""Delays of workers, as delay models or measured traces."""

from typing import Annotated, Literal

from anyk.base.errors import BadInput
from anyk.base.registries import Registry, with_files
from anyk.base.specs import absolute, parse_spec
from anyk.delays.base import MOST, DelayModel, DelayStream, SecondsOrZero
from anyk.delays.bursts import Bursts
from anyk.delays.column_meanings import Named
from anyk.delays.links import Communication, Links, Traffic
from anyk.delays.measured_times import TimeTable, in_order, plain_name, summarised
from anyk.delays.models import (
    HEAVIEST,
    Bimodal,
    Constant,
    Exponential,
    Fit,
    Heterogeneous,
    Mixture,
    NoDelay,
    Pareto,
    ScipyLaw,
    ShiftedExponential,
    Uniform,
    fit,
)
from anyk.delays.time_tables import interpreted, read_arrays, read_times
from anyk.delays.trace import TableDelays, Trace

registry: Registry[DelayModel] = Registry("delay model")
for _model in (
    NoDelay,
    Constant,
    Uniform,
    Exponential,
    ShiftedExponential,
    Pareto,
    Bimodal,
    Heterogeneous,
    ScipyLaw,
    Trace,
):
    registry.register(_model.name)(_model)

register = registry.register


@register(Mixture.name)
def _mixture(
    laws: str,
    *,
    weights: tuple[float, ...],
    by: Literal["task", "round", "item"] = "task",
    per: Literal["task", "load"] = "task",
    uninterruptible: bool = False,
) -> DelayModel:
    """Each delay follows one of several models: laws=(exp:mean=0.5)/(exp:mean=5.5),weights=0.9/0.1."""
    specs = laws.strip("()").split(")/(")
    return Mixture(tuple(map(parse, specs)), weights, by=by, per=per, uninterruptible=uninterruptible)


@register(Bursts.name)
def _bursts(
    normal: Annotated[str, registry],
    slow: Annotated[str, registry],
    *,
    share: float = 0.1,
    length: float = 10.0,
    by: Literal["task", "round", "item"] = "task",
    per: Literal["task", "load"] = "task",
    uninterruptible: bool = False,
) -> DelayModel:
    """Slow for several rounds in succession: normal=(exp:mean=0.5),slow=(exp:mean=5),share=0.1,length=10."""
    return Bursts(
        parse(normal), parse(slow), share=share, length=length, by=by, per=per, uninterruptible=uninterruptible
    )


def parse(spec: str | DelayModel) -> DelayModel:
    """Build a delay model from its spec; every model also takes ``by``, ``per`` and ``uninterruptible``.

    A delay model is returned unchanged. Raises :class:`~anyk.BadInput` if the spec is wrong.

    >>> parse("exp:mean=0.5").spec
    'exp:mean=0.5'
    """
    if isinstance(spec, DelayModel):
        return spec
    name = parse_spec(spec)[0]
    if name.lower().endswith((".csv", ".csv.gz", ".npz", ".parquet")) and name not in registry:
        raise BadInput(f"no delay model '{name}'; to replay the times in that file, give trace:{name}")
    return registry.build(spec)


_links: Registry[Communication] = Registry("communication")


@_links.register("link")
def _link(
    *, latency: Annotated[str, registry] = "none", bandwidth: float = 0.0, links: Links = "parallel"
) -> Communication:
    """A latency, which is a delay model or a number of seconds, and bytes over a bandwidth."""
    constant = latency[:1].isdigit() or latency[:1] == "."
    return Communication(parse(f"constant:{latency}" if constant else latency), bandwidth, links)


def resolve_paths(spec: str) -> str:
    """Return the spec of a delay model or of communication with absolute paths, so that it is valid in any folder."""
    return str(with_files(spec, absolute, registry, _links))


def communication(spec: str | DelayModel | Communication) -> Communication:
    """Build a model of communication from a delay model (the latency) or a spec: ``link:latency=0.01,bandwidth=1e8``.

    ``latency``: seconds, or a delay model in brackets, ``link:latency=(exp:mean=0.1),bandwidth=1e8,links=serial``.
    ``bandwidth``: bytes per second. ``links``: ``parallel`` (default), ``serial`` or ``shared``, see
    :class:`Communication`, which is returned unchanged. Raises :class:`~anyk.BadInput` if the spec is wrong.

    >>> communication("constant:0.5").spec, communication("link:latency=0.5,bandwidth=1e6").spec
    ('constant:value=0.5', 'link:latency=(constant:value=0.5),bandwidth=1000000')
    """
    if isinstance(spec, Communication):
        return spec
    if isinstance(spec, DelayModel):
        return Communication(spec)
    return _links.build(spec) if parse_spec(spec)[0] in _links.entries else Communication(parse(spec))


__all__ = [
    "HEAVIEST",
    "MOST",
    "Bimodal",
    "Bursts",
    "Communication",
    "Constant",
    "DelayModel",
    "DelayStream",
    "Exponential",
    "Fit",
    "Heterogeneous",
    "Mixture",
    "Named",
    "NoDelay",
    "Pareto",
    "ScipyLaw",
    "SecondsOrZero",
    "ShiftedExponential",
    "TableDelays",
    "TimeTable",
    "Trace",
    "Traffic",
    "Uniform",
    "communication",
    "fit",
    "in_order",
    "interpreted",
    "parse",
    "plain_name",
    "read_arrays",
    "read_times",
    "register",
    "registry",
    "resolve_paths",
    "summarised",
]
