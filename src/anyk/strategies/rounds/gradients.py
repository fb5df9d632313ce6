"""Gradients: workers send partial gradients, and a step of the optimiser is taken by their decoded sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal

from anyk.base.checks import AtLeastOne, typed
from anyk.base.errors import BadInput
from anyk.base.plain import part
from anyk.base.specs import with_keys
from anyk.codes import Code, Method, Selection
from anyk.codes.decoders import METHODS, method
from anyk.protocol import (
    Chunk,
    Combine,
    Command,
    CompressorFacts,
    DelayLaw,
    Dispatch,
    Layout,
    Pace,
    StrategyFacts,
    Task,
    slot_names,
)
from anyk.strategies.rounds.checked_rounds import CheckedRounds
from anyk.strategies.rounds.gradient_facts import durations, in_words, no_durations, pace
from anyk.strategies.rounds.round_work import OWN_DECODERS, RoundWork
from anyk.strategies.rounds.scaling import Scaling
from anyk.strategies.rounds.snapshot import Snapshot
from anyk.strategies.rounds.state import Ending, RoundState
from anyk.strategies.rounds.terms import RoundTerms
from anyk.strategies.wait import Decodable


@dataclass(slots=True)
class GradientState:
    """The stored messages of earlier gradients."""

    snapshot: Any = part()  # the messages of the last snapshot


@typed
@dataclass(frozen=True)
class Gradients(RoundWork):
    """Workers send partial gradients, and a step of the optimiser is taken by their decoded sum.

    ``scaling`` corrects a sum with partitions missing: ``conditional`` divides by the mean coefficient (the covered
    share, under a repetition code), given who replied (unbiased if workers and groups are alike, exact if complete);
    ``marginal`` always divides by the expected share ``1 - p`` (needs a repetition code and a number in ``wait``);
    ``none`` changes nothing. The default is conditional, but none for codes and decoders that are unbiased already.
    ``decoder`` is the method that decodes the replies: the code's ``own`` way, ``exact``, ``least-squares``,
    ``one-step``, ``algorithmic`` or a :class:`~anyk.codes.Method`.

    ``models``: number of models that are trained simultaneously, one round each in turn. ``order="epoch"``: the
    mini-batches of a partition are consecutive parts of a permutation, so that an epoch of steps uses each sample once.
    ``snapshot``: messages of exact rounds correct the steps of the others
    (:class:`~anyk.strategies.rounds.snapshot.Snapshot`); for repetition codes. ``checks``: some rounds wait until
    messages can be compared (:class:`~anyk.strategies.rounds.checked_rounds.CheckedRounds`).

    >>> import anyk
    >>> anyk.strategies.Rounds(anyk.codes.Uncoded(4), wait=3, work=Gradients(models=2)).spec
    'uncoded:wait=3,models=2'
    """

    State = GradientState

    _: KW_ONLY
    scaling: Scaling | None = None
    decoder: str | Method = "own"
    models: AtLeastOne = 1
    snapshot: Snapshot | None = None
    checks: CheckedRounds | None = None
    order: Literal["random", "epoch"] = "random"

    def check(self, rounds: RoundTerms) -> None:
        """Raise :class:`~anyk.BadInput` if these rounds cannot send gradients in this way."""
        self._check_decoder(rounds)
        if self.order == "epoch" and (not rounds.batch or rounds.together):
            raise BadInput(
                "order=epoch orders the mini-batches of equal shares of the data; give batch=…, and leave out what "
                "makes shares differ"
            )
        if self.scaling == "marginal" and rounds.changes is not None:
            raise BadInput(
                "scaling=marginal divides by shares that are expected under one code, which changes under "
                f"{rounds.changes.name}; take scaling=conditional"
            )
        if self.snapshot is not None:
            self.snapshot.check(rounds)
        if self.checks is not None:
            if self.snapshot is not None:
                raise BadInput("check is for rounds that end when the sum is exact; leave out snapshot")
            self.checks.check(rounds)

    def _check_decoder(self, rounds: RoundTerms) -> None:
        code, rule, own_decoder = rounds.code, rounds.rule, rounds.own_decoder
        if rounds.policy.projected and not (rule == Decodable() and own_decoder):
            raise BadInput(
                f"'{code.spec}' finds Byzantine workers by its own decoder and waits until it has; "
                "leave out wait and decoder"
            )
        if code.blocks > 1 and not own_decoder:
            raise BadInput(f"'{code.spec}' supports only its own decoder; leave out decoder")
        if self.method == METHODS["exact"] and rule.approximate:
            raise BadInput(
                f"decoder=exact refuses approximate sums, and wait={rule} may end a round with one; leave out either"
            )

    def show(self, rounds: RoundTerms) -> str:
        """Return the spec of these rounds."""
        usual: dict[str, Any] = {
            "scaling": self._usual_scaling(rounds.code),
            "decoder": "own",
            "batch": 0,
            "models": 1,
            "cancel": "preempt",
            "order": "random",
        }
        values = {
            "wait": rounds.wait_shown,
            "scaling": self.scaling_under(rounds.code),
            "decoder": next((name for name, method in METHODS.items() if method == self.method), None),
            "batch": rounds.batch,
            "models": self.models,
            "snapshot": None if self.snapshot is None else self.snapshot.every,
            "cancel": rounds.cancel,
            "check": None if self.checks is None else self.checks.share,
            "order": self.order,
        }
        changed = {key: value for key, value in values.items() if value is not None and value != usual.get(key)}
        return with_keys(rounds.code.spec, {**changed, **rounds.keys_of_changes})

    # ------------------------------------------------------------------------------------------- facts

    def facts(self, rounds: RoundTerms) -> StrategyFacts:
        """Return the facts of these rounds that depend on the work."""
        code, exact = rounds.code, not rounds.enough.approximate
        # each worker receives a model; it sends several messages, or one that may be a fraction of a vector
        vectors = float(code.workers + code.replies) if code.messages > 1 else code.workers * (1.0 + 1.0 / code.blocks)
        usual_ending = self.snapshot is None and self.checks is None
        return StrategyFacts(
            exact=exact,
            compares_all=rounds.policy.projected or (self.checks is not None and self.checks.share == 1.0),
            vectors_sent=vectors if exact else None,
            pace=partial(self._pace, rounds),
            durations=partial(durations, rounds) if usual_ending else no_durations,
            check_compressor=partial(self._check_compressor, rounds),
        )

    def _pace(self, rounds: RoundTerms, delays: DelayLaw) -> Pace:
        if self.snapshot is not None:
            return Pace(None, None, "no closed form with snapshots; simulate")
        return pace(rounds, self.method, delays)

    def _check_compressor(self, rounds: RoundTerms, by: CompressorFacts) -> None:
        """Raise :class:`~anyk.BadInput` if these messages must not be compressed by this compressor."""
        spec, code = rounds.spec, rounds.code
        if rounds.policy.projected or self.checks is not None:
            raise BadInput(f"'{spec}' finds wrong workers by comparing messages, and cannot compare compressed ones")
        if code.blocks > 1:
            raise BadInput(f"the messages of '{spec}' are a fraction of the vector already; leave compression out")
        if self.snapshot is not None:
            raise BadInput(f"'{spec}' uses messages again, which '{by.spec}' would blur; leave out snapshot")
        if by.promise == "contractive" and not code.own_messages:
            raise BadInput(
                f"'{by.spec}' keeps what it leaves out, which replicas of '{spec}' do not share; take random-k (exact) "
                "or qsgd (in expectation), or rounds of uncoded"
            )

    def summary(self, rounds: RoundTerms) -> str:
        """Return a short description of these rounds."""
        every = None if self.snapshot is None else self.snapshot.every
        return in_words(
            rounds.code, rounds.wait_shown, "" if every is None else f", corrected by an exact one every {every} rounds"
        )

    @cached_property
    def slots(self) -> tuple[str, ...]:
        """Names of the models."""
        return slot_names(self.models)

    @cached_property
    def method(self) -> Method:
        """Method that decodes replies."""
        return method(self.decoder)

    @property
    def own_decoder(self) -> bool:
        """Whether replies are decoded in the code's own way."""
        return self.method in OWN_DECODERS

    def layout(self, of_code: Layout) -> Layout:
        """Return the layout of a code's rounds with the models, and the order of mini-batches."""
        return replace(of_code, slots=self.slots, epochs=self.order == "epoch")

    def scaling_under(self, code: Code) -> Scaling:
        """Return how sums under a code are corrected if partitions are missing."""
        return self.scaling or self._usual_scaling(code)

    def _usual_scaling(self, code: Code) -> Scaling:
        unbiased = (code.unbiased and self.own_decoder) or self.method == METHODS["one-step"]
        return "none" if unbiased else "conditional"

    # ------------------------------------------------------------------------------------------- one round

    def start(self, s: RoundState) -> tuple[GradientState, list[Command]]:
        """Return the state at the start of a run."""
        return GradientState(None if self.snapshot is None else self.snapshot.State()), []

    def tasks(self, code: Code, batch: int) -> tuple[tuple[Task, ...], ...]:
        """Return the tasks per model and worker."""
        c = code.messages
        rows = [(tuple(map(int, p)), tuple(map(float, w))) for p, w in code.rows]  # a custom code may have arrays
        return tuple(
            tuple(
                tuple(Chunk(p, w, slot, batch=batch) for p, w in rows[i * c : i * c + c]) for i in range(code.workers)
            )
            for slot in self.slots
        )

    def dispatch(self, s: RoundState, first: int, workers: Sequence[int], batch: int) -> Dispatch:
        """Return the command that gives these workers their tasks."""
        tasks = s.tasks[s.version % self.models]
        chunks = tasks if len(workers) == len(tasks) else tuple(tasks[i] for i in workers)
        # with several models, versions differ from rounds
        return Dispatch(first, workers, chunks, None if self.models == 1 else s.before + s.version)

    def ending(self, rounds: RoundTerms, s: RoundState) -> Ending | None:
        """Return the condition that ends the present round in place of the wait rule; None: the wait rule."""
        if self.snapshot is not None:
            return self.snapshot.ending(s)
        return None if self.checks is None else self.checks.ending(s, rounds.spanning)

    def step(self, s: RoundState, decoding: Selection) -> tuple[Command, Sequence[int]]:
        """Return the step by the decoded sum, and the tasks to be cancelled after it."""
        if self.snapshot is not None:
            return self.snapshot.corrected(s, decoding)
        task_of, messages = s.task_of, s.code.messages
        used = [(task_of[reply], reply % messages) for reply in decoding.replies]
        slot = self.slots[s.version % self.models]
        combine = Combine(slot, used, decoding.weights, residual=decoding.residual, gain=decoding.gain)
        return combine, range(s.first, s.crew.next)
