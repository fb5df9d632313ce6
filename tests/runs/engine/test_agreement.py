"""Messages with wrong but finite numbers: compared before they are used, and their sender is found."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anyk
from anyk.base.errors import RunFailed
from anyk.clusters import Simulated
from anyk.clusters.virtual import computing
from anyk.runs.engine.driver import Driver
from anyk.runs.engine.session import session
from anyk.runs.log import queries
from anyk.runs.log.log_writer import LogWriter

pytestmark = pytest.mark.in_process

STEPS = 6
BAD = 1  # the worker that sends wrong numbers


class Alternating(anyk.delays.Constant):
    """Workers with odd numbers take ten times as long as the others."""

    def seconds(self, uniforms: Any, worker: int) -> Any:
        return super().seconds(uniforms, worker) * (10.0 if worker % 2 else 1.0)


def negate(message: Any) -> None:
    np.negative(message, out=message)


def swap(message: Any) -> None:
    first, other = np.argmin(message), np.argmax(message)
    message[[first, other]] = message[[other, first]]


def change_one_bit(message: Any) -> None:
    message.view(np.uint64)[np.argmax(np.abs(message))] ^= 1


CHANGES = [negate, swap, change_one_bit]


def problem() -> Any:
    return anyk.problems.from_data("synthetic:rows=120,features=8")


def trained(spec: str, workers: int, **options: Any) -> anyk.Run:
    cluster = Simulated(workers, delays="exp:mean=1", seed=3, byzantine=options.pop("byzantine", ()))
    return anyk.train(problem(), spec, cluster, steps=STEPS, evaluate=None, **options)


def wrong_at(monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], None], *numbers: int) -> None:
    """Let Byzantine workers change only these of their messages."""
    count = iter(range(10**6))
    monkeypatch.setattr(
        computing, "reverse_attack", lambda message: change(message) if next(count) in numbers else None
    )


def convicted(run: anyk.Run) -> list[str]:
    return [note["text"].split(":")[0] for note in run.notes if note["kind"] == "wrong numbers"]


# ------------------------------------------------------------------------------------------- replicas


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("spec", ["frc:load=3,check=1", "frc:load=2,check=1"])
def test_a_message_that_is_wrong_once_is_not_used(
    spec: str, change: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With three replicas a third message shows which was wrong, with two their recomputation."""
    undisturbed = trained(spec, 6)
    wrong_at(monkeypatch, change, 2)
    run = trained(spec, 6, byzantine=(BAD,))
    assert run.summary["messages"]["differed"] >= 2
    assert convicted(run) == [f"a message of worker {BAD} was wrong"]
    assert run.model.tobytes() == undisturbed.model.tobytes()
    assert anyk.replay(run, problem=problem()).decisions


def test_two_of_three_replicas_convict_the_third() -> None:
    run = trained("frc:load=3,check=1", 6, byzantine=(BAD,))
    assert run.model == pytest.approx(trained("frc:load=3", 6).model, rel=1e-12)
    assert convicted(run) == [f"a message of worker {BAD} was wrong"] * 3
    assert [note["text"] for note in run.notes if note["kind"] == "given up"] == [
        f"worker {BAD}: 3 messages with wrong numbers"
    ]


def test_two_replicas_that_never_agree_end_the_run_and_name_both() -> None:
    with pytest.raises(RunFailed, match=r"worker 0: differs from what worker 1 sent.*worker 1: differs from what wor"):
        trained("frc:load=2,check=1", 6, byzantine=(BAD,))


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["frc:load=3,check=1", "frc:load=2,check=1", "cyclic:stragglers=2,check=1"])
def test_a_run_saved_while_messages_are_in_doubt_goes_on_alike(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def driver(saved: list[Any] | None = None) -> Driver:
        def save(driver: Driver) -> None:
            if saved is not None:
                vectors = {name: np.array(vector) for name, vector in driver.vectors().items()}
                saved.append((json.loads(json.dumps(driver.state())), vectors, calls[0]))

        cluster = Simulated(6, delays="exp:mean=1", seed=3, byzantine=(BAD,))
        gd = anyk.optimizers.GD(lr=0.5)
        strategy = anyk.strategy(spec, workers=6)
        return Driver(strategy, cluster, problem=problem(), optimizer=gd, log=LogWriter(), steps=3, on_event=save)

    calls = [0]

    def change(message: Any) -> None:
        calls[0] += 1
        if calls[0] in (1, 3):
            negate(message)

    monkeypatch.setattr(computing, "reverse_attack", change)
    saved: list[Any] = []
    uninterrupted = driver(saved)
    with session(uninterrupted):
        uninterrupted.run()
    assert uninterrupted.log is not None
    notes = uninterrupted.log.rows("SELECT text FROM notes WHERE kind = 'wrong numbers'")
    assert {note.split(":")[0] for (note,) in notes} == {f"a message of worker {BAD} was wrong"}
    assert len(saved) > 10
    for state, vectors, count in saved:
        calls[0] = count
        resumed = driver()
        with session(resumed, (state, vectors)):
            resumed.run()
        assert resumed.models["model"].tobytes() == uninterrupted.models["model"].tobytes()
        assert resumed.ledger.counts == uninterrupted.ledger.counts


def test_the_given_share_of_rounds_waits_for_every_sum_twice() -> None:
    """One replica of each sum takes a second and the other ten, so the time tells how many rounds waited."""
    share, steps = 0.3, 400
    delays = Alternating(1.0)
    run = anyk.train(
        problem(),
        f"frc:load=2,check={share}",
        Simulated(4, delays=delays),
        steps=steps,
        optimizer=anyk.optimizers.GD(lr=0.1),
        evaluate=None,
    )
    rounds = (run.seconds - steps) / 9.0
    assert rounds == pytest.approx(round(rounds))
    assert rounds == pytest.approx(share * steps, abs=4.0 * (share * (1.0 - share) * steps) ** 0.5)
    assert run.summary["messages"]["compared"] == 4 * round(rounds)
    percent = 100 * run.summary["messages"]["compared"] / (4 * rounds + 2 * (steps - rounds))
    assert run.comparison == f"compared {percent:.0f} % of messages, 0 differed"


# ------------------------------------------------------------------------------------------- other codes


@pytest.mark.parametrize("change", CHANGES[:2])
@pytest.mark.parametrize("spec", ["cyclic:stragglers=2,check=1", "mds:stragglers=2,check=1"])
def test_one_reply_more_than_needed_is_a_checksum(
    spec: str, change: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = trained(spec, 6)
    wrong_at(monkeypatch, change, 2)
    run = trained(spec, 6, byzantine=(BAD,))
    assert convicted(run) == [f"a message of worker {BAD} was wrong"]
    assert run.model == pytest.approx(undisturbed.model, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec", ["frc:load=3", "frc:load=2,batch=3", "cyclic:stragglers=3", "mds:stragglers=2", "bgc", "anytime"]
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_right_messages_raise_no_alarm(spec: str, dtype: str) -> None:
    name = f"{spec}{',' if ':' in spec else ':'}check=1" if spec.split(":")[0] in ("frc", "cyclic", "mds") else spec
    random = np.random.default_rng(0)
    data = anyk.problems.LogisticRegression(
        random.normal(size=(240, 30)).astype(dtype), 2.0 * random.integers(0, 2, 240) - 1.0
    )
    run = anyk.train(data, name, Simulated(12, delays="exp:mean=1"), steps=60, evaluate=None)
    messages = run.summary.get("messages", {"compared": 0, "differed": 0})
    assert messages["differed"] == 0
    assert messages["compared"] > 0 or name == spec


@pytest.mark.parametrize("spec", ["frc:load=3", "cyclic:stragglers=2"])
def test_planners_price_rounds_that_wait_for_two_messages(spec: str) -> None:
    """The closed form is that of the first decodable set, which is reached earlier."""
    seconds = np.random.default_rng(0).exponential(size=(5, 6))
    plain = anyk.strategy(spec, workers=6).facts.durations
    checked = anyk.strategy(f"{spec},check=0.5", workers=6).facts.durations
    assert plain is not None and plain(seconds, seconds) is not None
    assert checked is not None and checked(seconds, seconds) is None


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("uncoded:check=0.1", "check needs a code with redundant replies"),
        ("bgc:check=0.1", "check is for rounds that end when the sum is exact"),
        ("frc:load=2,check=0.1,wait=3", "check is for rounds that end when the sum is exact"),
        ("frc:load=2,check=1.5", "check must be a number from 0 to 1"),
        ("draco:check=0.1", "check needs a code"),
        ("compressed:of=(frc:load=2,check=0.1),by=(random-k:share=0.5)", "cannot compare compressed ones"),
    ],
)
def test_rounds_that_cannot_be_checked_are_refused(spec: str, why: str) -> None:
    with pytest.raises(anyk.BadInput, match=why):
        anyk.strategy(spec, workers=4)


@pytest.mark.slow
def test_search_for_different_messages_scales_with_the_log() -> None:
    work = []
    for steps in (50, 400):
        run = anyk.train(
            anyk.problems.from_data("synthetic:rows=60,features=4"),
            "frc:load=2",
            "simulated",
            workers=6,
            steps=steps,
            evaluate=None,
        )
        count = [0]

        def called(count: list[int] = count) -> None:
            count[0] += 1

        run.log._db.set_progress_handler(called, 100)  # instructions of SQLite's own machine
        assert queries.different_messages(run.log) == {}
        run.log._db.set_progress_handler(None, 0)
        work.append(count[0])
        run.close()
    assert work[1] < 2 * 8 * work[0], work
