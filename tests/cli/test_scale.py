"""anyk scale: the table, the picture, JSON, and what is refused."""

import json

import pytest
from click.testing import CliRunner

from anyk.cli import main

SETTINGS = ["--model", "1e7", "--network", "1Gb/s", "--quiet"]


def scale(*words):
    return CliRunner().invoke(main, ["scale", *words])


@pytest.mark.slow
def test_table_picture_and_json_of_several_numbers_of_nodes(tmp_path):
    picture, file = tmp_path / "scale.svg", tmp_path / "scale.json"
    result = scale("frc:load=2", *SETTINGS, "--nodes", "4..8", "--picture", str(picture), "--json", str(file))
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert "slices take least time with 4 to 8 nodes; the star and the all-reduce with none of those tried" in lines
    assert [line.split()[:5] for line in lines if line[:1] in "48" and "slices" in line] == [
        ["4", "1.36", "0.356", "0.51", "slices"],
        ["8", "3.4", "0.445", "0.595", "slices"],
    ]
    assert "<svg" in picture.read_text(encoding="utf-8")
    report = json.loads(file.read_text(encoding="utf-8"))
    assert report["wins"]["slices"] == [[4, 8]] and report["network"]["bandwidth"] > 1e8


def test_what_a_slow_holder_costs_is_said():
    result = scale("frc:load=2", *SETTINGS, "--nodes", "8", "--slow-node", "3")
    assert "With 8 nodes, everybody waits 0.624 s more in each step for the slice of the model" in " ".join(
        result.output.split()
    )


def test_without_slices_or_exact_sums_that_is_said():
    text = " ".join(scale("draco:byzantine=1", *SETTINGS, "--nodes", "6").output.split())
    assert "no slices with 'draco:byzantine=1': replies are compared number by number" in text and " – " in text
    assert "are not the exact sum" in scale("pasgd:tau=3", *SETTINGS, "--nodes", "4").output.replace("\n", " ")
    some = scale("frc:load=3", *SETTINGS, "--nodes", "4,6")
    assert "4 nodes: frc:load=3 does not exist for 4 workers" in some.output and some.exit_code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["uncoded", "--model", "1e8", "--network", "10G"], "write bits as in 10Gb/s"),
        (["uncoded", "--model", "400MB", "--network", "1Gb/s"], "--model should be the number"),
        (["uncoded", "--model", "1e8", "--network", "1Gb/s", "--nodes", "many"], "nodes should be numbers"),
        (["frc:load=3", "--model", "1e8", "--network", "1Gb/s", "--nodes", "4"], "frc:load=3 does not exist for 4"),
        (["dpsgd", "--model", "1e8", "--network", "1Gb/s", "--nodes", "4"], "from worker to worker"),
        (["uncoded", "--network", "1Gb/s"], "needs --model"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(words, said):
    result = scale(*words, *(["--quiet"] if len(words) > 3 else []))
    assert result.exit_code == 2 and said in " ".join(result.output.split())
    assert len(result.output.strip().splitlines()) == 1
