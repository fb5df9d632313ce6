"""The settings of the K family, with what follows from them before a run starts."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from functools import cached_property

from anyk.base.checks import AtLeastOne, AtLeastZero, NonnegativeNumber, Positive, PositiveNumber, check_workers
from anyk.base.errors import BadInput
from anyk.base.plain import values_of
from anyk.base.specs import bracketed, show_spec
from anyk.protocol import CancelMode, Layout
from anyk.strategies.averaging.local_steps import LocalSteps
from anyk.strategies.crew import CrewStrategy, spec_of
from anyk.strategies.kfamily.growth import Growth
from anyk.strategies.kfamily.state import Kind, KState, Stale


@dataclass(frozen=True, repr=False)
class KFamilySettings(CrewStrategy[KState]):
    """Settings of the K family; :class:`~anyk.strategies.KFamily` describes them and makes the decisions."""

    State = KState

    workers: int
    _: KW_ONLY
    kind: Kind = "async"
    k: AtLeastOne = 1
    lr_scale: PositiveNumber = 1.0
    batch: AtLeastZero = 0
    stale: Stale = "constant"
    cutoff: AtLeastZero = 0
    bound: Positive | None = None
    compensate: NonnegativeNumber = 0.0
    cancel: CancelMode = "preempt"
    growth: Growth | None = None
    work: LocalSteps | None = None

    def __post_init__(self) -> None:
        kind, k, bound = self.kind, self.k, self.bound
        check_workers(self.workers)
        single = kind in ("k-async", "k-sync")
        if self.growth is not None:
            self.growth.check(self)
        if single and k > self.workers:
            most = f"{self.workers}; the batch kinds take more gradients than workers"
            raise BadInput(f"k of '{kind}' must be 1 to {most}, got {k}")
        if (self.stale == "distance") != (bound is not None):
            raise BadInput(
                "stale=distance needs bound=…, the squared distance up to which a gradient counts fully, above 0; "
                f"got stale={self.stale}, bound={bound}"
            )
        if self.growth is not None and (self.stale != "constant" or self.cutoff or self.compensate or self.work):
            raise BadInput(
                f"'{self.growth.name}' has been tested with plain gradients only; leave out stale, cutoff, "
                "compensate and local steps"
            )
        if self.work is not None:
            tested = LocalSteps(self.work.tau, outer=self.work.outer, rate=self.work.rate)
            if kind != "k-batch-async" or self.work != tested or self.compensate or self.lr_scale != 1.0:
                raise BadInput(
                    "without waiting, local steps are tested as k-batch-async with tau, outer and rate; "
                    "leave out the rest"
                )

    @property
    def synchronous(self) -> bool:
        """Whether a step cancels the tasks under way."""
        return self.kind in ("k-sync", "k-batch-sync")

    @property
    def batches(self) -> bool:
        """Whether a worker may contribute several gradients to a step."""
        return self.kind in ("k-batch-sync", "k-batch-async")

    @cached_property
    def _one(self) -> bool:
        """Whether a step is one gradient of a complete partition, as in most asynchronous runs: the fast path."""
        plain = not self.batch and self.stale == "constant" and not self.compensate
        return self.k == 1 and not self.synchronous and plain and self.growth is None and self.work is None

    @cached_property
    def layout(self) -> Layout:
        n, local = self.workers, self.work is not None
        return Layout(
            n,
            n,
            tuple((i,) for i in range(n)),
            covers=((),) * n if local else None,
            inner="" if local else None,
            losses=self.growth is not None and self.growth.losses,
            minibatches=self.batch > 0,
        )

    @cached_property
    def spec(self) -> str:
        if self.growth is not None:
            return self.growth.show(self)
        if self.work is not None:
            values = {"tau": self.work.tau, "k": self.k, "rate": self.work.rate}
            values |= values_of(self, "batch", "stale", "cutoff", "bound")
            usual = {"rate": 1.0, "batch": 0, "stale": "sqrt", "cutoff": 0, "bound": None, "outer": None}
            return show_spec("fedbuff", values | {"outer": bracketed(self.work.outer)}, usual)
        first = {} if self.kind == "async" else {"k": self.k}
        return spec_of(self.kind, self, first, omit=("workers", "kind", "k"))

    @property
    def summary(self) -> str:
        few = "every gradient" if self.k == 1 else f"every {self.k} gradients"
        return f"takes a step at {few}, however old its version; waits for nobody"
