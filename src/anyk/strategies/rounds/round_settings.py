"""The settings of rounds, with the layout and other facts that follow from them before a run starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, fields
from functools import cached_property
from typing import Literal

import numpy as np

from anyk.arrays import Floats
from anyk.checks import AtLeastOne, AtLeastZero, Share
from anyk.codes import Code, Method, Policy, RepetitionCode, Selection
from anyk.codes.decoders import METHODS, method
from anyk.errors import BadInput
from anyk.plain import ByName, values_of
from anyk.protocol import CancelMode, Layout, slot_names
from anyk.specs import with_keys
from anyk.strategies.averaging.adapting import AdaptingSteps
from anyk.strategies.averaging.local_steps import LocalSteps
from anyk.strategies.crew import CrewStrategy
from anyk.strategies.rounds.balance import Balance, batch_of, even_parts, shares_of
from anyk.strategies.rounds.corrections import Scaling, at_snapshot, check_snapshot, scaling_of
from anyk.strategies.rounds.elastic import Elastic
from anyk.strategies.rounds.state import RoundState
from anyk.strategies.wait import Count, Decodable, Fraction, Wait, WaitLike, wait_rule


@dataclass(frozen=True, repr=False)
class RoundSettings(CrewStrategy[RoundState]):
    """Settings of rounds with their layout and spec; :class:`~anyk.strategies.Rounds` makes the decisions."""

    State = RoundState

    code: Code
    _: KW_ONLY
    wait: WaitLike = None
    scaling: Scaling | None = None
    cancel: CancelMode = "preempt"
    decoder: str | Method = "own"
    batch: AtLeastZero = 0
    models: AtLeastOne = 1
    snapshot: int = 0
    work: LocalSteps | None = None
    adapt: AdaptingSteps | None = None
    balance: Balance | None = None
    check: Share = 0.0
    elastic: Elastic | None = None
    order: Literal["random", "epoch"] = "random"

    def __post_init__(self) -> None:
        if self.work is not None:
            self.work.check(self.code.workers)
            if not self.code.own_messages or self.models > 1 or self.scaling or self.decoder != "own":
                raise BadInput(
                    f"local steps under '{self.code.spec}' have been tested as rounds of uncoded, of one model; leave "
                    "out models, scaling and decoder"
                )
        if self.adapt is not None:
            if self.work is None:
                raise BadInput("adapt is a rule for the number of local steps; give work=LocalSteps(…) as well")
            self.adapt.check(self.work)
        if self.balance is not None:
            self.balance.check(self.code)
        if self.elastic is not None:
            self.elastic.check(self.code)
            counts, most = self.rule.counts(), self.elastic.fewest
            if any(count > most for count in counts):
                raise BadInput(
                    f"wait={self.rule} is more than the smallest number of workers ({most}); give a share of those "
                    "present, such as wait=0.75n or wait=all"
                )
            if self.code.approximate and not self.rule.approximate:
                raise BadInput(
                    f"wait={self.rule} waits for the exact sum, which '{self.code.spec}' may never give as its fleet "
                    "changes; leave out wait, or give a share such as wait=0.75n"
                )
        clients = self.work is not None and self.work.clients is not None
        untested = self.snapshot or self.adapt or self.scaling == "marginal" or clients
        if (self.balance and (untested or self.models > 1 or self.elastic)) or (self.elastic and untested):
            raise BadInput(
                "balance=auto, or a range of workers or partitions, has been tested without the other, snapshot, "
                "clients, scaling=marginal and adapting local steps, balance=auto also without models; leave them out"
            )
        if self.order == "epoch" and (not self.batch or self.together or self.work is not None):
            raise BadInput(
                "order=epoch orders the mini-batches of gradients; give batch=…, and leave out shares and balance"
            )
        code, own, rule = self.code, self.own_decoder, self.rule
        if self.policy.projected and not (rule == Decodable() and own):
            raise BadInput(
                f"'{code.spec}' finds Byzantine workers by its own decoder and waits until it has; "
                "leave out wait and decoder"
            )
        if code.blocks > 1 and not own:
            raise BadInput(f"'{code.spec}' supports only its own decoder; leave out decoder")
        if self.method == METHODS["exact"] and rule.approximate:
            raise BadInput(
                f"decoder=exact refuses approximate sums, and wait={rule} may end a round with one; leave out either"
            )
        if self.snapshot:
            check_snapshot(self.snapshot, code, rule)
            if self.work is not None or self.models > 1 or self.batch or not own:
                raise BadInput("snapshot has been tested with wait, scaling and cancel only; leave out the rest")
        if self.check:
            if self.snapshot or self.work is not None or self.balance is not None or rule != Decodable():
                raise BadInput(
                    "check is for rounds that end when the sum is exact; leave out wait, snapshot, balance and work"
                )
            if not ((isinstance(code, RepetitionCode) and code.tolerates) or self._spanning):
                raise BadInput(
                    f"check needs a code with redundant replies, such as frc, cyclic or mds, got '{code.spec}'"
                )
        _ = self._samples
        _ = self._scaled  # refuse scaling that is not possible here, not in the first step

    # ------------------------------------------------------------------------------------------- settings

    @cached_property
    def policy(self) -> Policy:
        """Further duties of the code's rounds."""
        return self.code.policy()

    @cached_property
    def first_code(self) -> Code:
        """The code at the start of a run."""
        if self.elastic is not None:
            return self.elastic.code(self.elastic.start(self.code, range(self.code.workers)), self.code)
        return self.code if self.balance is None else self.balanced_code

    @cached_property
    def balanced_code(self) -> RepetitionCode:
        """The same code with its blocks cut into many partitions."""
        code = self.code
        assert isinstance(code, RepetitionCode)
        parts = even_parts(self.batch)
        shares = np.array([len(block) for block in code.blocks_of]) * (code.groups / code.partitions)
        return code.cut([max(1, round(parts * share)) for share in shares.tolist()])

    @cached_property
    def _samples(self) -> int:
        """Number of samples in the mini-batch of a partition; 0: all samples."""
        code = self.first_code
        return batch_of(self.batch, code.workers, code.partitions) if self.together else self.batch

    @cached_property
    def together(self) -> bool:
        """Whether the partitions of a block are computed together, as blocks differ in size."""
        return self.balance is not None or bool(shares_of(self.code))

    @cached_property
    def method(self) -> Method:
        """Method that decodes replies."""
        return method(self.decoder)

    @cached_property
    def own_decoder(self) -> bool:
        """Whether replies are decoded in the code's own way."""
        return self.method in (METHODS["own"], METHODS["exact"])

    @cached_property
    def rule(self) -> Wait:
        """The rule that ends a round before the sum is exact."""
        wait = self.wait
        if wait is None and self.work is not None and self.work.clients is not None:
            wait = self.work.clients
        if self.elastic is not None and (wait == "all" or (wait is None and self.code.approximate)):
            return Fraction(1.0 if wait == "all" else 0.9)
        if wait is None and self.code.approximate:
            wait = max(1, self.code.replies - max(1, self.code.replies // 10))
        return wait_rule(wait, replies=self.code.replies)

    @cached_property
    def enough(self) -> Wait:
        """The rule that ends a round."""
        return self.rule | Decodable()

    def _count_of(self, expected: int) -> int | None:
        """Return the number of replies that ends a round, too large to reach for "decodable"; None for other rules.

        ``expected``: the number of replies if no worker is late.
        """
        if self.snapshot:
            return None
        if isinstance(self.rule, Count):
            return self.rule.number
        if isinstance(self.rule, Fraction):
            return self.rule.of(expected)
        return self.code.replies + 1 if self.rule == Decodable() else None

    def _enough_of(self, s: RoundState) -> Wait:
        """Return the rule that ends this round."""
        return Decodable() if at_snapshot(s, self.snapshot) else self.enough

    @cached_property
    def _default_scaling(self) -> Scaling:
        unbiased = self.code.unbiased and self.own_decoder
        unbiased = unbiased or self.method == METHODS["one-step"] or self.work is not None
        return "none" if unbiased else "conditional"

    @cached_property
    def scaling_used(self) -> Scaling:
        """Correction of sums in which partitions are missing."""
        return self.scaling or self._default_scaling

    @cached_property
    def _scaled(self) -> Callable[[Selection, Floats], Selection]:
        return scaling_of(self.scaling_used, self.first_code, self.rule)

    @cached_property
    def slots(self) -> tuple[str, ...]:
        """Names of the models."""
        return slot_names(self.models) if self.adapt is None else self.adapt.slots

    @cached_property
    def _spanning(self) -> int:
        """Number of replies from which all others follow, whichever they are; 0 if replicas show it or none do."""
        code = self.code
        if self.policy.projected or isinstance(code, RepetitionCode) or code.approximate or code.blocks > 1:
            return 0
        return code.replies - code.tolerates if code.tolerates and code.messages == 1 else 0

    @cached_property
    def layout(self) -> Layout:
        code, work = self.first_code, self.work
        anything = (tuple(range(code.partitions)),) * code.workers
        return Layout(
            code.workers,
            code.partitions,
            code.assignment if self.balance is None and self.elastic is None else anything,
            self.slots,
            self.slots[1:] if self.adapt else (),
            None if work is None else ((),) * code.workers,
            blocks=code.blocks,
            voting=self.policy.projected,
            inner=None if work is None else work.inner,
            together=self.together,
            replicated=None if self.balance is None and self.elastic is None else not self.code.own_messages,
            losses=self.adapt is not None,
            minibatches=self._samples > 0,
            spanning=self._spanning,
            epochs=self.order == "epoch",
            fewest=0 if self.elastic is None else self.elastic.fewest,
            stateful=work is not None and work.keep,
        )

    @cached_property
    def spec(self) -> str:
        work, wait = self.work, None if self.rule == Decodable() else str(self.rule)
        usual = {f.name: f.default for f in fields(self)} | {"scaling": self._default_scaling, "shares": ()}
        values: ByName
        if work is None:
            decoder = next((name for name, method in METHODS.items() if method == self.method), None)
            values = {"wait": wait, "scaling": self.scaling_used, "decoder": decoder}
            values |= values_of(self, "batch", "models", "snapshot", "cancel", "check", "order")
        else:
            own = work.clients is None or wait != str(work.clients)
            values = {"wait": wait if own else None, **values_of(self, "cancel", "batch")}
            values["shares"] = shares_of(self.code)
        changed = {key: value for key, value in values.items() if value not in (None, usual[key])}
        changed |= {} if self.elastic is None else vars(self.elastic)
        changed |= {"balance": "auto"} if self.balance else {}
        if work is None:
            return with_keys(self.code.spec, changed)
        return work.show(changed) if self.adapt is None else self.adapt.show(work, changed)

    @property
    def summary(self) -> str:
        if self.work is not None:
            words = "workers take steps of their own, then their models are averaged"
        else:
            words = _in_words(self.code, None if self.rule == Decodable() else str(self.rule), self.snapshot)
        return words + ("; shares of the data follow the speed of workers" if self.balance else "")


def _in_words(code: Code, wait: str | None, snapshot: int) -> str:
    """Return a short description of rounds; ``wait``: the rule, None if they wait until the sum is exact."""
    n = code.workers
    each = "" if code.load == 1 else f"; each computes {code.load} of {code.partitions} parts"
    if wait is not None:
        first = f"the first {wait} of {n} replies" if wait.isdigit() else f"enough replies (wait={wait})"
        now_and_then = f", corrected by an exact one every {snapshot} rounds" if snapshot else ""
        return f"approximate gradient from {first}{each}{now_and_then}"
    if code.tolerates == 0 and not code.approximate:
        return f"exact gradient; waits for all {n} workers{each}"
    if code.approximate:
        return f"approximate gradient from most of {n} replies{each}"
    return f"exact gradient, whichever {code.tolerates} of {n} workers are late{each}"
