"""What links do to each other, in closed form: one second of computing, one of latency, six workers."""

from __future__ import annotations

from pathlib import Path

import pytest

import anyk
from anyk.base.errors import BadInput
from anyk.delays import communication, parse
from anyk.fleet import simulated_pace
from anyk.testing import Squares

pytestmark = pytest.mark.in_process

N = 6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "parallel", "serial"),
    [
        ("sync", 2.0, 1.0 + N),  # the driver speaks with one after another
        ("pasgd:tau=1", 2.0, 1.0 + N),
        ("partial", 2.0, 1.0 + N),  # both messages belong to one exchange
        ("k-sync:k=2", 2.0, 1.0 + 2),  # who is cut off before its turn takes none
        ("dpsgd:graph=ring", 2.0, 1.0 + 2),  # two neighbours
        ("dpsgd:graph=complete", 2.0, 1.0 + N - 1),
        ("easgd", 2.0, N),  # all speak with the centre, and each computes in the others' turns
        ("async", 2.0 / N, 1.0),
        ("fedbuff:tau=1", 2.0 / N, 1.0),
    ],
)
def test_a_round_of_one_second_with_links_of_one_second(spec: str, parallel: float, serial: float) -> None:
    for links, expected in (("parallel", parallel), ("shared", parallel), ("serial", serial)):
        pace = simulated_pace(
            anyk.strategy(spec, workers=N),
            parse("constant:1"),
            communication=communication(f"link:latency=1,links={links}"),
            updates=400,
        )
        assert pace.seconds == pytest.approx(expected, abs=0.03), links  # the first round may begin at the driver's


@pytest.mark.parametrize(
    ("spec", "seconds"),
    [
        ("sync", {"parallel": 1.6, "shared": 6.4, "serial": 6.4}),  # 800 bytes down, 800 up, to 4 workers
        ("frc:load=2", {"parallel": 1.6, "shared": 4.8, "serial": 4.8}),  # the third reply is of the second group
        ("dpsgd:graph=ring", {"parallel": 0.8, "shared": 1.6, "serial": 1.6}),  # the models of two neighbours
        ("compressed:of=sync,by=(top-k:share=0.1)", {"parallel": 0.92, "shared": 3.68, "serial": 3.68}),
    ],
)
def test_bytes_over_a_thousand_bytes_a_second(spec: str, seconds: dict[str, float]) -> None:
    for links, expected in seconds.items():
        fleet = anyk.cluster("simulated", workers=4, communication=f"link:bandwidth=1000,links={links}")
        run = anyk.train(Squares(4, d=100), spec, fleet, steps=5)
        times = run.history["seconds"]
        assert times[-1] - times[-2] == pytest.approx(expected), links
        assert run.seconds == run.floor_seconds
        run.close()


def test_a_resumed_run_finds_the_driver_as_busy_as_it_was(tmp_path: Path) -> None:
    setting = {"workers": 4, "delays": "exp:mean=0.3", "seed": 3, "communication": "link:latency=0.2,links=serial"}
    problem = anyk.problems.from_data("synthetic:rows=60,features=4")
    uninterrupted = anyk.train(problem, "async", anyk.cluster("simulated", **setting), steps=14)  # type: ignore[arg-type]
    cluster = anyk.cluster("simulated", **setting)  # type: ignore[arg-type]
    anyk.train(problem, "async", cluster, steps=6, out=tmp_path / "run").close()
    resumed = anyk.resume(tmp_path / "run", steps=14)
    assert (resumed.seconds, resumed.model.tobytes()) == (uninterrupted.seconds, uninterrupted.model.tobytes())
    for run in (uninterrupted, resumed):
        run.close()


@pytest.mark.parametrize("links", ["parallel", "serial", "shared"])
def test_specs_are_read_back(links: str) -> None:
    for spec in ("exp:mean=0.1", f"link:latency=(exp:mean=0.1),links={links}", f"link:bandwidth=1000,links={links}"):
        link = communication(spec)
        assert communication(link.spec) == link
        assert link.links == (links if "link:" in spec else "parallel")


def test_what_is_no_link_is_refused() -> None:
    with pytest.raises(BadInput, match="links in 'link:latency=1,links=many' should be one of parallel, serial, share"):
        communication("link:latency=1,links=many")
    with pytest.raises(BadInput, match="^communication 'link' has no key 'latncy'; did you mean 'latency'?"):
        communication("link:latncy=1")
    with pytest.raises(BadInput, match="^links must be parallel, serial or shared, got 'many'$"):
        anyk.delays.Communication(parse("none"), links="many")  # type: ignore[arg-type]


@pytest.mark.parametrize("key", ["by=item", "by=round", "per=load", "uninterruptible=true"])
def test_latencies_do_not_depend_on_what_a_task_computes(key: str) -> None:
    for spec in (f"exp:mean=0.1,{key}", f"link:latency=(exp:mean=0.1,{key}),bandwidth=1e6"):
        with pytest.raises(BadInput, match="the latency of communication is the same for each task"):
            communication(spec)


def test_the_latency_of_a_trace_has_no_slope(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("0.1,0.2\n0.2,0.1\n")
    communication(f"trace:{tmp_path / 't.csv'}")
    with pytest.raises(BadInput, match="slope have no meaning there"):
        communication(f"trace:{tmp_path / 't.csv'},slope=1,load=0.5")
