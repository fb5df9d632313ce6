"""A sum is only taken if the coefficients that workers were given, with the replies' weights, are what is stated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import anyk
from anyk.base.errors import RunFailed
from anyk.protocol import Combine, Command, Dispatch, Event, Reply
from anyk.runs.engine.agreement import Agreement
from anyk.runs.log import queries
from anyk.strategies import Rounds
from anyk.views.result_tables import race_notes

SPECS = [
    "frc:load=2",
    "comm-efficient:blocks=2",
    "cyclic:stragglers=2",
    "partial:stragglers=1,load=3",
    "uncoded:wait=4",
]


class Misdealt(Rounds):
    """Gives one worker a coefficient that is not its code's."""

    def _dispatch(self, s: Any, workers: Sequence[int]) -> list[Command]:
        (command,) = super()._dispatch(s, workers)
        assert isinstance(command, Dispatch)
        chunk, *remaining = command.chunks[0]
        first, *others = chunk.coefficients
        tasks = [(chunk._replace(coefficients=(1.01 * first, *others)), *remaining), *command.chunks[1:]]
        return [command._replace(chunks=tasks)]


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS)
def test_coefficients_that_are_not_the_codes_end_the_run(spec: str) -> None:
    problem = anyk.problems.from_data("synthetic:rows=60,features=4")
    right = anyk.strategy(spec, workers=6)
    wrong = Misdealt(right.code, wait=right.wait)
    with pytest.raises(RunFailed, match="^step 0: the coefficients that workers were given, with the weights of the"):
        anyk.train(problem, wrong, anyk.clusters.Simulated(6), steps=2)
    anyk.train(problem, right, anyk.clusters.Simulated(6), steps=2).close()


class Half(anyk.strategies.Rounds):
    """Uses two of four replies with weight 1, and gives ``stated`` as the residual of that sum."""

    stated: float | None = None

    def on(self, state: Any, event: Event) -> Sequence[Command]:
        commands = [*super().on(state, event)] if isinstance(event, Reply) else []
        return [c._replace(residual=self.stated, weights=[1.0] * 2) if isinstance(c, Combine) else c for c in commands]


def test_what_is_not_stated_is_worked_out() -> None:
    problem = anyk.problems.from_data("synthetic:rows=60,features=4")
    half = Half(anyk.codes.Uncoded(4), wait=2)
    run = anyk.train(problem, half, anyk.clusters.Simulated(4), steps=2)
    assert run.receipt(1).residual == 0.5**0.5
    run.close()
    object.__setattr__(half, "stated", 0.5)
    with pytest.raises(RunFailed) as error:
        anyk.train(problem, half, anyk.clusters.Simulated(4), steps=2)
    assert str(error.value) == (
        "step 0: the coefficients that workers were given, with the weights of the replies, add up to a residual of "
        "0.707, and the strategy states 0.5; the model is left as it was"
    )


@pytest.mark.parametrize(("spec", "pairs"), [("frc:load=3", [(0, 1), (1, 2)]), ("cyclic:stragglers=2", [])])
def test_different_messages_compared_too_late_are_noted(
    spec: str, pairs: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the others arrive after the step."""
    monkeypatch.setattr(Agreement, "take", lambda _, reply: (reply,))
    problem = anyk.problems.from_data("synthetic:rows=60,features=4")
    for byzantine in ((), (1,)):
        cluster = anyk.clusters.Simulated(6, byzantine=byzantine)
        with anyk.train(problem, anyk.strategy(f"{spec},wait=all", workers=6), cluster, steps=4) as run:
            different = queries.different_messages(run.log)
            texts = [note["text"] for note in run.notes if note["kind"] == "different messages"]
            lines = [line for line in race_notes([run]) if "different" in line]
        assert different == (dict.fromkeys(pairs, (4, 0)) if byzantine else {})
        assert len(texts) == bool(different) and lines == [f"{run.config.strategy}: {sentence}" for sentence in texts]
        assert all("work: 0 and 1 (4 times, first at step 0), 1 and 2 (4 times" in sentence for sentence in texts)
