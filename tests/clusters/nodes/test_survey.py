"""A survey of three machines of a job, which are programs on one; and what follows from what they measured."""

import json
from itertools import combinations

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from anyk.cli import main
from anyk.clusters import MachineSurvey
from anyk.clusters.nodes.survey import Machine, ReadSpeed, rounds_of_pairs
from anyk.fleet import NodeLink, scale
from anyk.views import machines_table, pairs_table, step_lines, survey_lines
from clusters.nodes.test_nodes import ended, free_port, start

CHECK = ("-m", "anyk", "cluster", "check")


@given(st.integers(1, 40))
def test_rounds_have_disjoint_pairs_and_every_pair_once(count):
    rounds = rounds_of_pairs(count)
    for pairs in rounds:
        members = [rank for pair in pairs for rank in pair]
        assert len(members) == len(set(members))
    assert sorted(pair for pairs in rounds for pair in pairs) == list(combinations(range(count), 2))
    assert len(rounds) == count - 1 + count % 2


def made(count=4, *, slow=None, unreachable=(), rate=1e8, differences=()):
    machines = [
        Machine(i, f"m{i}", f"10.0.0.{i + 1}", 29601, 8, ["H100"] * i, {"anyk": "1", "wire": "1"}) for i in range(count)
    ]
    reads = [
        ReadSpeed(a, b, *((None, None) if (a, b) in unreachable else (rate / (3.0 if b == slow else 1.0), 2e-4)))
        for a in range(count)
        for b in range(count)
        if a != b
    ]
    return MachineSurvey(
        machines=machines, reads=reads, differences=list(differences), store="10.0.0.1:29500", seconds=0.2
    )


def printed(*things):
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        for thing in things:
            console.print(thing, markup=False, highlight=False, soft_wrap=True)
        return console.export_text()


def test_a_machine_that_sends_slowly_is_named_and_counted():
    survey = made(slow=2)
    assert survey.slow == {2: pytest.approx(3.0)} and survey.bandwidth == 1e8
    assert "node 2 sends 3 times slower than the others" in printed(*pairs_table(survey))
    prediction = scale("frc:load=2", parameters=1 << 23, network=NodeLink(1 << 25), nodes=(4,), slow=3.0)
    text = " ".join(step_lines(survey, prediction))
    assert "node 2 as 3 times slower: with slices, everybody waits 1.5 s more" in text
    assert made().slow == {}


def test_reads_that_fail_are_told_with_address_and_port():
    survey = made(unreachable=[(1, 3)])
    assert [(read.reader, read.source) for read in survey.unreachable] == [(1, 3)]
    assert "node 1 cannot read from node 3: does a firewall let it through to 10.0.0.4, port 29601?" in printed(
        *pairs_table(survey)
    )
    nobody = made(2, unreachable=[(0, 1), (1, 0)])
    assert nobody.bandwidth is None and nobody.round_trip is None and nobody.slow == {}
    assert "0 and 1" in printed(*pairs_table(nobody))


def test_machines_versions_and_the_slowest_pairs_of_many():
    text = printed(machines_table(made()), *survey_lines(made()))
    assert "2  m2" in text and "2 x H100" in text and "no GPU" in text and "the same versions on all: anyk 1\n" in text
    assert "node 1 has torch 2" in printed(*survey_lines(made(differences=["node 1 has torch 2, and the driver 3"])))
    many = printed(*pairs_table(made(12)))
    assert "the slowest 28 of 66 pairs" in many
    assert json.loads(json.dumps(made(slow=2).report()))["slow"] == {"2": pytest.approx(3.0)}


@pytest.mark.parametrize(
    ("spec", "settings", "said"),
    [
        (
            "frc:load=2",
            {},
            [
                "through rank 0: DistributedDataParallel is the better choice",
                "in slices: 0.5 s less than an all-reduce, even if nobody is late, if computing 1 times more takes less",
            ],
        ),
        ("uncoded", {}, ["in slices: as long as an all-reduce; DistributedDataParallel is the better choice"]),
        (
            "frc:load=2",
            {"compute": 1.0},
            [
                "with 2 s of computing (1 s for the all-reduce)",
                "in slices: DistributedDataParallel is the better choice, unless it waits for late machines 0.5 s a step more",
            ],
        ),
        ("compressed:of=(uncoded),by=half", {}, ["none (compressed messages have no slices)"]),
        ("frc:load=2", {}, ["without computing, which takes 2 times as long as for the all-reduce"]),
    ],
)
def test_it_is_said_when_an_all_reduce_is_the_better_choice(spec, settings, said):
    prediction = scale(spec, parameters=1 << 23, network=NodeLink(1 << 25), nodes=(4,), **settings)
    text = " ".join(step_lines(made(), prediction))
    for words in said:
        assert words in text, text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "needs a SPEC such as processes, or to be started on each machine of a job by torchrun, srun or ssh"),
        (["processes", "--model", "1e6"], "--model is for the machines of a job"),
        (["processes", "--strategy", "uncoded"], "--strategy is for the machines of a job"),
    ],
)
def test_without_a_launcher_it_is_said_what_is_needed(words, said, monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    result = CliRunner().invoke(main, ["cluster", "check", *words])
    assert result.exit_code == 2 and said in result.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--workers", "3"], "--workers is for a cluster that is started"),
        (["--strategy", "frc:load=2"], "frc:load=2 does not exist for 3 workers"),
        (["--model", "big"], "--model should be the number"),
    ],
)
def test_a_launched_check_refuses_before_machines_meet(words, said, monkeypatch):
    for name, value in {"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    result = CliRunner().invoke(main, ["cluster", "check", *words])
    assert result.exit_code == 2 and said in result.output


@pytest.mark.slow
def test_three_machines_read_from_each_other():
    port = free_port()
    others = [start(rank, 3, port, *CHECK) for rank in (1, 2)]
    first = start(0, 3, port, *CHECK, "--json", "-", "--model", "1e6")
    with ended(first, *others):
        out, errors = first.communicate(timeout=250)
        assert first.returncode == 0, errors
        for other in others:
            assert other.communicate(timeout=250) == ("", "") and other.returncode == 0
    report = json.loads(out)
    assert [machine["rank"] for machine in report["machines"]] == [0, 1, 2]
    assert [(read["reader"], read["source"]) for read in report["reads"]] == [
        (0, 1),
        (0, 2),
        (1, 0),
        (1, 2),
        (2, 0),
        (2, 1),
    ]
    assert all(read["bandwidth"] > 1e6 and 0 < read["round_trip"] < 5 for read in report["reads"])
    assert report["differences"] == [] and report["step"]["rows"][0]["spec"] == "cyclic:stragglers=1"
    assert report["machines"][0]["versions"]["anyk"] and report["store"] == f"127.0.0.1:{port}"


@pytest.mark.slow
def test_a_machine_that_does_not_come_is_named():
    port = free_port()
    code = "from anyk.clusters import survey_nodes; survey_nodes(within=12.0)"
    other = start(1, 3, port, "-c", code)
    first = start(0, 3, port, "-c", code)
    with ended(first, other):
        _, errors = first.communicate(timeout=250)
        assert first.returncode == 1
        assert "node 2 did not come within 12 s; is the command started there, with the same WORLD_SIZE" in errors
        _, errors = other.communicate(timeout=250)
        assert other.returncode == 1 and "some of the machines did not come: rank 0 names them" in errors


@pytest.mark.slow
def test_versions_that_differ_are_told_by_name_and_both_sides():
    port = free_port()
    older = "import anyk.clusters.nodes.site as site; site.WIRE = 0; from anyk.__main__ import main; import sys; "
    other = start(1, 2, port, "-c", f"{older}sys.argv = ['anyk', 'cluster', 'check']; main()")
    first = start(0, 2, port, *CHECK)
    with ended(first, other):
        out, errors = first.communicate(timeout=250)
        assert "node 1 has wire 0, and the driver wire 1; install the same versions on all nodes" in " ".join(
            out.split()
        )
        assert first.returncode == 1 and "cannot train together yet" in errors
