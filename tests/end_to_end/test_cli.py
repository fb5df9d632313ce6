"""The command line as a person uses it, with good input and bad."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

import anyk
from anyk.cli import main

pytestmark = pytest.mark.slow

SMALL = [
    "--data",
    "synthetic:rows=120,features=5",
    "--workers",
    "6",
    "--cluster",
    "simulated",
    "--delays",
    "exp:mean=1",
]


def run(*arguments):
    return CliRunner().invoke(main, list(arguments))


def test_a_race_ends_with_table_picture_and_json(tmp_path):
    result = run("race", *SMALL, "--steps", "15", "--strategy", "uncoded", "--strategy", "agc:load=3,wait=3",
                 "--strategy", "async:lr_scale=0.1", "--out", str(tmp_path / "race"), "--json", str(tmp_path / "r.json"),
                 "--page", str(tmp_path / "race" / "report.html"))  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "Race of 3 strategies" in (tmp_path / "race" / "report.html").read_text(encoding="utf-8")
    for word in ("uncoded", "agc:load=3,wait=3", "async:lr_scale=0.1", "speed-up", "vs uncoded"):
        assert word in result.output
    assert (tmp_path / "race" / "race.png").read_bytes().startswith(b"\x89PNG")
    report = json.loads((tmp_path / "r.json").read_text())
    assert list(report) == ["data", "workers", "fewest", "partitions", "delays", "cluster", "seed", "environment", "seeds", "speed_up_over",
                            "speed_up_by", "runs"]  # fmt: skip
    assert report["workers"] == 6
    for line in report["runs"]:
        assert list(line) == ["strategy", "steps", "models", "jobs", "seconds", "floor_seconds", "loss", "metric",
                              "metrics", "best", "time_to_target", "replies_used", "run", "seed", "speed_up"]  # fmt: skip
        assert line["steps"] == 15
        assert line["seconds"] == line["floor_seconds"]
        assert line["metric"]["name"] == "auc"
        assert line["time_to_target"] is None
        assert anyk.Run.open(line["run"]).steps == 15
    assert [line["strategy"] for line in report["runs"]] == ["uncoded", "agc:load=3,wait=3", "async:lr_scale=0.1"]
    assert [line["replies_used"] for line in report["runs"]][::2] == [90, 15]


def test_train_show_resume_replay(tmp_path):
    folder = str(tmp_path / "run")
    result = run("train", *SMALL, "--strategy", "frc:load=2", "--steps", "4", "--out", folder, "--json", "-")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["runs"][0]["steps"] == 4
    outcome = run("show", folder)
    assert "frc:load=2" in outcome.output
    assert "counted 12" in outcome.output
    receipt = run("show", folder, "--step", "2")
    assert "partitions counted with weight:" in receipt.output
    assert "cut off" in receipt.output
    assert run("show", folder, "--step", "2", "--json", folder + ".json").exit_code == 0
    plain = json.loads(Path(folder + ".json").read_text())["receipt"]
    assert plain["version"] == 2 and len(plain["weights"]) == 6 and plain["used"][0].keys() >= {"worker", "weight"}
    for words in (("--staleness", "--dark"), ("--curve", "loss"), ("--dark",)):
        refused = run("show", folder, *words)
        assert refused.exit_code == 2 and f"{words[-1] if words[-1] != 'loss' else '--curve'} is for" in refused.output
    assert run("show", folder, "--picture", str(tmp_path / "x.png")).exit_code == 0
    assert (tmp_path / "x.png").exists()
    resumed = run("resume", folder, "--steps", "9")
    assert resumed.exit_code == 0, resumed.output
    assert "9" in resumed.output
    replayed = run("replay", folder)
    assert "the same decisions and the same bits of model" in replayed.output


LISTED = {
    "strategies": "async", "codes": "frc", "delays": "pareto", "data": "amazon", "models": "two-layer",
    "optimizers": "adamw", "schedules": "inverse", "clusters": "ray", "compressors": "top-k",
    "callbacks": "early-stopping", "graphs": "one-peer", "wait-rules": "deadline", "records": "npz",
    "exporters": "perfetto", "report-figures": "residual",
}  # fmt: skip


@pytest.mark.parametrize("kind", LISTED)
def test_lists_say_what_there_is(kind):
    result = run("list", kind)
    assert result.exit_code == 0
    listed = json.loads(run("list", kind, "--json", "-").stdout)
    assert all(entry["summary"] and entry["usage"] in result.output for entry in listed)
    assert LISTED[kind] in {entry["name"] for entry in listed}


def test_all_kinds_are_listed_and_others_are_refused_by_name():
    assert {entry["name"] for entry in json.loads(run("list", "--json", "-").stdout)} == set(LISTED)
    for words, sentence in (
        (["cluster"], "no kind 'cluster'; did you mean 'clusters'?"),
        (["things"], "kinds: strategies, wait-rules, codes, "),
        (["delays", "--workers", "3"], "are for 'anyk list codes'"),
        (["codes", "--stragglers", "3"], "--stragglers 3 needs --workers"),
    ):
        failed = run("list", *words)
        assert failed.exit_code == 2 and failed.output.startswith("anyk: ") and sentence in failed.output


WRONG_WORDS = {
    ("--foo",): "'anyk' has no option '--foo'; see 'anyk --help'",
    ("trian",): "'anyk' has no command 'trian'; did you mean 'train'?",
    ("delays",): "'anyk' has no command 'delays'; 'anyk list delays' lists them",
    ("codes", "shwo"): "'anyk codes' has no command 'shwo'; did you mean 'show'?",
    ("train", "--stepz", "4"): "'anyk train' has no option '--stepz'; did you mean '--steps'?",
    ("train", "--steps", "x"): "--steps should be a whole number, got 'x'",
    ("train", "--target", "high"): "--target should be a number, got 'high'",
    ("train", "--steps"): "--steps needs a value",
    ("train", "--quiet=1"): "--quiet takes no value",
    ("train", "extra"): "'anyk train' takes no further argument, got 'extra'; see 'anyk train --help'",
    ("show",): "'anyk show' needs RUN; see 'anyk show --help'",
    ("trace", "record", "x"): "'anyk trace record' needs --out; see 'anyk trace record --help'",
    ("race", "--curve", "los"): "--curve should be one of metric, loss, got 'los'; did you mean 'loss'?",
    ("plan", "x", "--unit", "h"): "--unit should be one of s, ms, us, ns, got 'h'",
    (
        "resume",
        "r",
        "--lr",
        "1",
    ): "'anyk resume' has no option '--lr'; a run keeps what it began with: 'anyk train --from "
    "RUN --lr …' goes on from it in a new folder",
}


@pytest.mark.parametrize("words", WRONG_WORDS, ids=" ".join)
def test_words_that_are_not_understood_are_one_sentence(words):
    done = run(*words)
    assert (done.exit_code, done.stdout, done.stderr) == (2, "", f"anyk: {WRONG_WORDS[words]}\n")


def test_every_result_has_the_same_option():
    """-o and --out name what a command makes; --picture, --page, --table and --json what comes beside it."""
    for command in every_command(main):
        for option in command.params:
            if "--out" in option.opts or "-o" in option.opts:
                assert option.opts == ["-o", "--out"], command.name


def every_command(group):
    for command in group.commands.values():
        yield from every_command(command) if hasattr(command, "commands") else [command]


def test_the_shell_completes_commands_and_options():
    complete = ShellComplete(main, {}, "anyk", "_ANYK_COMPLETE")
    assert {item.value for item in complete.get_completions([], "tr")} == {"trace", "train"}
    assert "--strategy" in {item.value for item in complete.get_completions(["train"], "--str")}


def test_codes_side_by_side_say_why_some_do_not_exist():
    result = run("list", "codes", "--workers", "12", "--stragglers", "2")
    assert "12 workers, 2 of them stragglers" in result.output
    assert "no block design is known for 12 workers; nearest: 11 or 13 workers" in result.output
    rows = {
        row["name"]: row
        for row in json.loads(run("list", "codes", "--workers", "12", "--stragglers", "2", "--json", "-").stdout)
    }
    assert set(rows) == {entry.name for entry in anyk.codes.registry}
    assert rows["bibd"]["error"].startswith("no block design")
    frc = rows["frc"]
    assert (frc["spec"], frc["load"], frc["tolerates"], frc["worst"]) == ("frc:stragglers=2", 3, 2, 0.0)
    assert rows["uncoded"]["residual"] == pytest.approx((2 / 12) ** 0.5) and rows["uncoded"]["worst_known"]
    assert rows["bgc"]["worst_known"]  # all pairs of workers were compared
    for bad, sentence in (
        (["--workers", "0"], "workers must be"),
        (["--workers", "30", "--stragglers", "30"], "stragglers must be 0 to 29, below workers, got 30"),
    ):
        failed = run("list", "codes", *bad)
        assert failed.exit_code == 2 and sentence in failed.output


def test_one_code_is_shown_with_its_matrix_and_its_theory(tmp_path):
    result = run("codes", "show", "bibd", "--workers", "7", "--picture", str(tmp_path / "fano.png"))
    assert result.exit_code == 0, result.output
    for phrase in (
        "bibd:family=projective",
        "worker   0: 4 5 6",
        "    6  1 . 1 . 1 . .",
        "Koyluoglu",
        "residual 0.189",
    ):
        assert phrase in result.output
    assert (tmp_path / "fano.png").stat().st_size > 5000
    plain = json.loads(run("codes", "show", "bibd", "--workers", "7", "--json", "-").stdout)
    assert plain["rows"][0] == [[4, 5, 6], [1.0, 1.0, 1.0]] and plain["worst"] ** 2 * 7 == pytest.approx(0.25)
    assert "nearest: 27 or 31 workers" in run("codes", "show", "bibd", "--workers", "30").output
    exact = run("codes", "show", "graph:load=2", "--workers", "8").output  # by least squares: to rounding
    assert "with 1 random straggler: residual 0, noise gain 2.83; worst residual 0\n" in exact


def test_codes_are_compared_in_numbers_and_a_picture(tmp_path):
    picture = tmp_path / "codes.png"
    words = ["codes", "compare", "frc:load=3", "bibd", "--workers", "21", "--stragglers", "6", "--sets", "50"]
    result = run(*words, "--picture", str(picture))
    assert result.exit_code == 0 and "chosen to hurt" in result.output and picture.stat().st_size > 5000
    frc, bibd = json.loads(run(*words, "--picture", str(picture), "--json", "-").stdout)
    assert frc["stragglers"] == [0, 1, 2, 3, 4, 5, 6]
    assert [round(21 * r * r) for r in frc["adversarial"]] == [0, 0, 0, 3, 3, 3, 6]
    assert bibd["random"] == pytest.approx(bibd["expected"], abs=1e-9)  # all sets are alike
    assert bibd["bound"] == pytest.approx(bibd["adversarial"], abs=1e-9)
    assert "no code 'fcr'; did you mean 'frc'?" in run("codes", "compare", "fcr").output


def test_a_strategy_is_explained():
    result = run("strategies", "show", "k-sync:k=4", "--workers", "8", "--delays", "exp:mean=1")
    for phrase in ("k-sync:k=4, that is uncoded:wait=4", "0.634524 s", "mean of the 4th of 8 delays", "0 versions"):
        assert phrase in result.output
    plain = json.loads(run("strategies", "show", "async", "--workers", "8", "--json", "-").stdout)
    assert (plain["seconds"], plain["staleness"]) == (0.125, 7.0)
    assert "did you mean 'k-sync'" in run("strategies", "show", "k-snyc").output


def test_a_config_file_gives_defaults_and_arguments_win(tmp_path):
    config = tmp_path / "race.toml"
    config.write_text('data = "synthetic:rows=120,features=5"\nworkers = 4\nsteps = 3\ncluster = "simulated"\n'
                      'strategy = "frc:load=2"\n')  # fmt: skip
    result = run("train", "--config", str(config), "--steps", "5", "--settings")
    assert "workers        4" in result.output
    assert "config file" in result.output
    assert "command line" in result.output
    done = run("train", "--config", str(config), "--steps", "5", "--out", str(tmp_path / "o"), "--json", "-")
    report = json.loads(done.stdout)
    assert (report["workers"], report["runs"][0]["steps"], report["runs"][0]["strategy"]) == (4, 5, "frc:load=2")
    config.write_text("steeps = 3\n")
    assert "unknown key 'steeps'" in run("train", "--config", str(config)).output


BAD = [
    (["--strategy", "k-snyc"], "no strategy 'k-snyc'"),
    (["--strategy", "frc:lod=3"], "has no key 'lod'; did you mean 'load'?"),
    (["--strategy", "frc:load=3,load=4"], "'load' is given twice"),
    (["--strategy", "frc:load=4", "--workers", "30"], "nearest: frc:load=3, frc:load=5, or 28 or 32 workers"),
    (["--strategy", "uncoded:wait=31", "--workers", "30"], "wait must be 1 to 30"),
    (["--delays", "exp:mean=0"], "mean must be a number above 0 and of at most 1e+09, got 0.0"),
    (["--delays", "exp:mean=nan"], "mean in 'exp:mean=nan' should be a number"),
    (["--delays", "exq:mean=1"], "no delay model 'exq'; did you mean 'exp'?"),
    (["--delays", "trace:nowhere.npz"], "no trace file 'nowhere.npz'"),
    (["--cluster", "procesess"], "no cluster 'procesess'; did you mean 'processes'?"),
    (["--optimizer", "torch:os.system", "--lr", "1"], "no 'system' in os; it has no torch.optim.Optimizer"),
    (["--optimizer", "adan"], "no optimizer 'adan'; did you mean 'adam'?"),
    (["--lr", "-1"], "a learning rate must be a finite number above 0, got -1"),
    (["--lr", "fast"], "no learning-rate schedule 'fast'"),
    (["--steps", "0"], "steps must be a whole number of at least 1 or None, got 0"),
    (["--workers", "0"], "workers must be"),
    (["--workers", "100000000"], "workers must be 1 to 1,000,000, got 100000000"),
    (["--workers", "100000000", "--strategy", "async"], "workers must be 1 to 1,000,000, got 100000000"),
    (["--workers", "2000"], "rows cannot be cut into 2000 partitions"),
    (["--target", "2"], "a target of 2 cannot be reached: auc lies between 0 and 1"),
    (["--l2", "-1"], "l2 must be a finite number of at least 0"),
    (["--data", "digitz"], "no data set 'digitz'; did you mean 'digits'?"),
    (["--data", "file"], "--data-file"),
    (["--data", "amazon", "--data-file", "nowhere.csv"], "nowhere.csv"),
    (["--plugin", "nowhere.py"], "no plug-in file 'nowhere.py'"),
    (["--config", "nowhere.toml"], "no config file 'nowhere.toml'"),
]


@pytest.mark.parametrize(("arguments", "sentence"), BAD, ids=lambda value: str(value)[:50])
def test_bad_input_gets_one_sentence_and_exit_code_2(arguments, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    base = ["train", "--data", "synthetic:rows=120,features=5", "--cluster", "simulated", "--steps", "2"]
    result = run(*base, *arguments)
    assert result.exit_code == 2, result.output
    assert sentence in result.output
    assert "Traceback" not in result.output
    assert len(result.output.strip().splitlines()) == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--strategy", "uncoded", "--strategy", "uncoded"], "'uncoded' is in the race twice"),
        (["--strategy", "frc:load=5"], "nearest: frc:load="),
        (["--workers", "0"], "workers must be"),
        (["--strategy", "async", "--models", "2"], "cannot race with 2 models"),
    ],
)
def test_an_impossible_race_is_refused_before_any_output(arguments, sentence, tmp_path):
    folder = tmp_path / "race"
    result = run("race", *SMALL, "--steps", "2", "--out", str(folder), *arguments)
    assert result.exit_code == 2 and sentence in result.output, result.output
    assert len(result.output.strip().splitlines()) == 1
    assert not folder.exists()


def test_several_models_race_without_being_told_which_strategies(tmp_path):
    result = run("race", *SMALL, "--steps", "2", "--models", "2", "--out", str(tmp_path / "race"))
    assert result.exit_code == 0, result.output
    with anyk.Race.open(tmp_path / "race") as race:
        assert [one.config.strategy for one in race.runs] == [
            f"{spec}models=2" for spec in ("uncoded:", "frc:load=3,", "frc:load=3,wait=2,")
        ]
    with pytest.raises(anyk.BadInput, match="closed"):
        race.runs[0].receipt(1)


@pytest.mark.parametrize("option", ["--problem", "--plugin"])
def test_a_script_that_ends_itself_when_it_is_imported_is_named(option, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import sys\n\ndef make(): ...\n\nsys.exit(0)\n")
    value = f"{script}:make" if option == "--problem" else str(script)
    result = run("train", *SMALL[2:], option, value, "--steps", "2", "--out", str(tmp_path / "run"))
    assert result.exit_code == 2, result.output
    assert "script.py' failed: SystemExit: 0" in result.output
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
@pytest.mark.parametrize("arguments", [["list", "delays"], ["codes", "show", "bibd", "--workers", "7"]])
def test_output_that_cannot_be_written_is_said_in_a_sentence(arguments):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "anyk", *arguments], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 2
    assert done.stderr == "anyk: the output cannot be written (No space left on device)\n"


@pytest.mark.parametrize("arguments", [["list", "delays"], ["codes", "show", "bibd", "--workers", "7"]])
def test_a_closed_output_is_no_error(arguments):
    command = [sys.executable, "-m", "anyk", *arguments]
    done = subprocess.run(["sh", "-c", 'exec "$0" "$@" >&-', *command], stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "arguments", [["list", "delays"], ["list", "codes"], ["list", "codes", "--json", "-"], ["--help"]]
)
def test_a_reader_that_ends_is_no_error(arguments):
    with subprocess.Popen(["true"], stdin=subprocess.PIPE) as reader:
        reader.wait()
        done = subprocess.run(
            [sys.executable, "-m", "anyk", *arguments], stdout=reader.stdin, stderr=subprocess.PIPE, text=True
        )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("error", [BrokenPipeError(32, "Broken pipe"), MemoryError("74 GiB")])
def test_an_error_of_a_callback_is_not_taken_for_the_commands(error, tmp_path):
    (tmp_path / "callback.py").write_text(
        f"import anyk\n\nclass Sending(anyk.Callback):\n    def on_step(self, info):\n        raise {error!r}\n"
    )
    callback = f"{tmp_path / 'callback.py'}:Sending"
    result = run("train", *SMALL, "--steps", "2", "--out", str(tmp_path / "run"), "--callback", callback)
    assert result.exit_code == 1, result.output
    assert f"{type(error).__name__}: " in result.output and "raised by on_step of the callback Sending" in result.output


@pytest.mark.parametrize("what", [(), ("Unable to allocate 74.5 GiB for an array",)])
def test_too_little_memory_is_said_in_a_sentence(what, tmp_path, monkeypatch):
    def full(*_, **__):
        raise MemoryError(*what)

    monkeypatch.setattr("anyk.strategies.strategy", full)
    result = run("train", *SMALL, "--steps", "2", "--out", str(tmp_path / "run"))
    assert result.exit_code == 2
    reason = f" ({what[0]})" if what else ""
    assert result.output == f"anyk: this takes more memory than there is{reason}; use fewer workers or less data\n"


def test_data_that_cannot_be_trained_on(tmp_path):
    one_class, gaps = tmp_path / "one.csv", tmp_path / "gaps.csv"
    one_class.write_text("a,target\n" + "1,1\n" * 20)
    gaps.write_text("a,target\n" + "1,0\n2,1\n" * 10 + "nan,1\n")
    for file, words in ((one_class, "class"), (gaps, "not finite in 1 row")):
        result = run(
            "train", "--data", "file", "--data-file", str(file), "--workers", "3", "--out", str(tmp_path / "o")
        )
        assert result.exit_code == 2
        assert words in result.output


def test_an_existing_folder_is_not_overwritten(tmp_path):
    arguments = ["train", *SMALL, "--steps", "2", "--out", str(tmp_path / "run")]
    assert run(*arguments).exit_code == 0
    second = run(*arguments)
    assert second.exit_code == 2
    assert "exists; choose another, or go on with it: anyk resume" in second.output


_TRAINS_MEANWHILE = """
import pathlib, anyk, click.testing
from anyk.cli import main

def make():
    if not list(pathlib.Path("runs").glob("*/run.toml")):
        other = click.testing.CliRunner().invoke(main, ["train", "--data", "synthetic:rows=60,features=3",
            "--workers", "3", "--cluster", "simulated", "--steps", "2", "--strategy", "frc:load=3", "--quiet"])
        assert other.exit_code == 0, other.output
    return anyk.problems.from_data("synthetic:rows=60,features=3")
"""


def test_simultaneous_runs_get_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "meanwhile.py").write_text(_TRAINS_MEANWHILE)
    arguments = ["train", "--cluster", "simulated", "--workers", "3", "--problem", "meanwhile.py:make", "--quiet"]
    first = run(*arguments, "--steps", "2")
    assert first.exit_code == 0, first.output
    strategies = {path.name: anyk.Run.open(path).config.strategy for path in (tmp_path / "runs").iterdir()}
    assert strategies == {"train-1": "uncoded", "train-2": "frc:load=3"}
    failed = run(*arguments, "--steps", "0")
    assert failed.exit_code == 2 and len(list((tmp_path / "runs").iterdir())) == 2  # its own is gone
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    (tmp_path / "below" / "runs").write_text("no folder")
    refused = run("train", *SMALL, "--steps", "2")
    assert refused.exit_code == 2 and "the folder 'runs/train-1' cannot be made (Not a directory)" in refused.output


def test_a_table_has_what_to_compare_its_numbers_with(tmp_path):
    random = np.random.default_rng(0)
    a, b = random.normal(50.0, 20.0, 400), random.normal(size=400)
    labels = np.where(a - 50 + 10 * b > 0, "yes", "no")
    (tmp_path / "two.csv").write_text(
        "a,b,y\n" + "\n".join(f"{x},{z},{y}" for x, z, y in zip(a, b, labels, strict=True))
    )
    (tmp_path / "line.csv").write_text("x,y\n" + "\n".join(f"{x},{100 + 2 * x + z}" for x, z in zip(a, b, strict=True)))

    def trained(file, *arguments):
        common = ["--cluster", "simulated", "--workers", "4", "--data-file", str(tmp_path / file)]
        return run("train", "--quiet", *common, "--out", str(tmp_path / "run" / file), *arguments).stdout.splitlines()

    titles, values, note, *_ = trained("two.csv", "--data", "file")[1:]
    assert titles.split()[-2:] == ["auc", "accuracy"] and float(values.split()[-1]) > 0.95
    assert re.fullmatch(r"for comparison, the most frequent class alone has accuracy 0\.5\d*", note)
    titles, values, *rows = trained("line.csv", "--data", "file:target=y")[1:]
    assert titles.split()[-2:] == ["mse", "R²"] and 0.99 < float(values.split()[-1]) < 1.0
    assert len(rows) == 1  # the folder; the loss has settled
    slow = trained("two.csv", "--data", "file", "--lr", "0.01", "--steps", "40", "--out", str(tmp_path / "slow"))
    line = "the loss was still falling fast at the end; more steps, or another learning rate than 0.01, would probably"
    assert any(slow_line.startswith(line) for slow_line in slow)
    options = ("--cluster", "simulated", "--workers", "4", "--optimizer", "gd", "--lr", "3", "--steps", "2", "--quiet")
    risen = run("train", "--data", "synthetic:task=regression", *options, "--out", str(tmp_path / "risen"))
    assert risen.exit_code == 0 and "the loss ended above that of the first model; lower the" in risen.stdout
    assert any(slow_line.startswith(line) for slow_line in run("show", str(tmp_path / "slow")).stdout.splitlines())


def test_divergence_exits_with_1(tmp_path):
    result = run("train", "--cluster", "simulated", "--workers", "4", "--quiet", "--steps", "5", "--lr", "1e9",
                 "--out", str(tmp_path / "finite"))  # fmt: skip
    assert result.exit_code == 1
    assert re.search(r"anyk: diverged: the loss was 2\.3 at step 0 and is \S+ at step 5; lower the", result.stderr)
    result = run("train", "--data", "synthetic:task=regression", "--cluster", "simulated", "--workers", "4",
                 "--lr", "1e9", "--optimizer", "gd", "--steps", "500", "--out", str(tmp_path / "run"))  # fmt: skip
    assert result.exit_code == 1
    assert "diverged at step" in result.output


def test_ctrl_c_leaves_a_run_that_resumes(tmp_path):
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "anyk", "train", "--data", "digits", "--workers", "4", "--delays", "constant:0.05",
               "--steps", "1000", "--out", str(folder)]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while not (folder / "log.sqlite").exists() or anyk_steps(folder) < 3:
            time.sleep(0.1)
            assert process.poll() is None
        os.kill(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=250)
    assert process.returncode == 130
    assert f"interrupted; go on with: anyk resume {folder}" in errors
    resumed = run("resume", str(folder), "--steps", "10000", "--seconds", "1")
    assert resumed.exit_code == 0, resumed.output


def test_long_names_stand_in_one_piece(tmp_path):
    """Who copies a path from the output must get it whole, whatever its length and its brackets."""
    folder = tmp_path / ("a-long-name-" * 15) / "run[bold]"
    result = run("train", *SMALL, "--steps", "2", "--quiet", "--out", str(folder))
    assert result.exit_code == 0 and f"run: {folder}\n" in result.output
    picture = tmp_path / ("a-long-name-" * 15) / "run[bold].png"
    assert f"picture: {picture}\n" in run("show", str(folder), "--picture", str(picture)).output


def anyk_steps(folder):
    try:
        run = anyk.Run.open(folder)
        steps = run.steps
        run.close()
    except anyk.BadInput:
        return 0
    return steps


def test_the_amazon_race_in_the_simulator(data_folder, tmp_path):
    """The papers' set-up: the approximate code reaches the exact code's AUC in a fraction of the seconds."""
    file = data_folder / "amazon_employee_access_train.csv.gz"
    result = run("race", "--data", "amazon", "--data-file", str(file), "--cluster", "simulated", "--delays", "exp:mean=0.5",
                 "--steps", "40", "--strategy", "uncoded", "--strategy", "frc:load=3", "--strategy", "agc:load=3,wait=11",
                 "--out", str(tmp_path / "race"), "--json", str(tmp_path / "r.json"))  # fmt: skip
    assert result.exit_code == 0, result.output
    uncoded, coded, approximate = json.loads((tmp_path / "r.json").read_text())["runs"]
    assert uncoded["loss"] == pytest.approx(coded["loss"], rel=1e-9)
    assert approximate["metric"]["value"] > uncoded["metric"]["value"] - 0.01
    assert uncoded["seconds"] > 3.5 * coded["seconds"] > 7 * approximate["seconds"]


def test_a_network_from_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ["race", "--model", "two-layer:hidden=8", "--workers", "4", "--cluster", "simulated", "--steps", "5"]
    arguments += ["--delays", "exp:mean=1", "--strategy", "k-sync:k=3", "--strategy", "async:lr_scale=0.1", "--quiet"]
    done = run(*arguments, "--curve", "loss", "--picture", "a.png")
    assert done.exit_code == 0, done.output
    assert "digits, two-layer:hidden=8: 1,437 rows, 618 parameters" in done.output
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
    resumed = run("resume", "runs/race-1/k-sync-k=3", "--steps", "7", "--quiet")
    assert resumed.exit_code == 0, resumed.output


def test_a_strategy_is_checked_and_a_failing_seed_is_a_command(tmp_path, monkeypatch):
    monkeypatch.setattr(anyk.strategies.registry, "entries", dict(anyk.strategies.registry.entries))
    good = run("strategies", "check", "k-async:k=2", "--workers", "4", "--schedules", "5")
    assert good.exit_code == 0 and "k-async:k=2, 4 workers: 5 schedules passed" in good.output
    (tmp_path / "mine.py").write_text(
        "from anyk.strategies import KFamily, register\n"
        "class Mine(KFamily):\n"
        "    spec = 'mine'\n"
        "    def __init__(self, workers: int) -> None:\n"
        "        super().__init__(workers)\n"
        "    def on(self, state, event):\n"
        "        return super().on(state, event) if state.version < 3 else ()\n"
        "register('mine')(Mine)\n"
    )
    bad = run("strategies", "check", "mine", "--plugin", str(tmp_path / "mine.py"), "--seed", "7")
    assert bad.exit_code == 1
    hint = "again: anyk strategies check 'mine' --workers 6 --steps 20 --outages 3 --seed 7 --schedules 1"
    assert f"{hint} --plugin '{tmp_path / 'mine.py'}'" in bad.output and "deadlock at step 3" in bad.output
    nameless = (tmp_path / "mine.py").read_text().replace("    spec = 'mine'\n", "")  # it has the spec of its parent
    (tmp_path / "mine.py").write_text(nameless.replace("else ()", "else {}[event.time]"))
    bad = run("strategies", "check", "mine", "--plugin", str(tmp_path / "mine.py"), "--seed", "7")
    assert bad.exit_code == 1 and "it raised KeyError" in bad.output and "(mine.py, line 6, in on)" in bad.output
    assert f"{hint} --plugin '{tmp_path / 'mine.py'}'" in bad.output and "Traceback" not in bad.output


def test_traces_are_shown_recorded_and_planned_with(tmp_path):
    rng = np.random.default_rng(0)
    for load in (0.0, 0.5):
        seconds = 1.0 + 0.3 * load + rng.exponential(size=(20, 8)) * (rng.random((20, 8)) < 0.1) * 5
        np.savez(tmp_path / f"t{load}.npz", seconds=seconds, load=load)
    result = run(
        "trace",
        "show",
        str(tmp_path / "t0.0.npz"),
        "--picture",
        str(tmp_path / "t.png"),
        "--json",
        str(tmp_path / "t.json"),
    )
    assert result.exit_code == 0, result.output
    assert "20 rounds x 8 workers" in result.output and "law " in result.output
    assert (tmp_path / "t.png").read_bytes()[:4] == b"\x89PNG"
    assert json.loads((tmp_path / "t.json").read_text())["workers"] == 8
    files = ["--trace", str(tmp_path / "t0.0.npz"), "--trace", str(tmp_path / "t0.5.npz")]
    planned = run("plan", files[1], "--other", files[3], "--models", "4", "--json", str(tmp_path / "best.json"))
    assert planned.exit_code == 0, planned.output
    best = json.loads((tmp_path / "best.json").read_text())["candidates"]
    assert {"uncoded", "frc", "gc", "sr-sgc", "m-sgc"} <= {one["family"] for one in best}
    trained = run("train", "--models", "4", "--strategy", "m-sgc:B=1,W=2,lambda=2", *SMALL[:2], "--workers", "8",
                  "--cluster", "simulated", "--delays", f"trace:{tmp_path / 't0.0.npz'},by=round", "--steps", "3", "--quiet",
                  "--out", str(tmp_path / "run"))  # fmt: skip
    assert trained.exit_code == 0, trained.output
    recorded = run("trace", "record", str(tmp_path / "run"), "--out", str(tmp_path / "again.npz"))
    assert recorded.exit_code == 0, recorded.output
    with np.load(tmp_path / "again.npz") as arrays:
        times, censored = arrays["seconds"], arrays["censored"]
    with np.load(tmp_path / "t0.0.npz") as arrays:
        was = arrays["seconds"]
    assert times.shape[1] == 8 and not censored.all()
    assert times[~censored] == pytest.approx(was[: len(times)][~censored])
    broken = run("trace", "record", str(tmp_path / "run"), "--out", str(tmp_path / "again.csv"))
    assert broken.exit_code == 2 and "a trace is written as .npz" in broken.output


def test_a_graph_is_shown(tmp_path):
    result = run(
        "graphs",
        "show",
        "ring",
        "--workers",
        "6",
        "--picture",
        str(tmp_path / "g.png"),
        "--json",
        str(tmp_path / "g.json"),
    )
    assert result.exit_code == 0, result.output
    assert "zeta 0.666667" in result.output and "waits for its neighbours" in result.output
    assert json.loads((tmp_path / "g.json").read_text())["zeta"] == pytest.approx(2 / 3)
    assert (tmp_path / "g.png").read_bytes()[:4] == b"\x89PNG"
    for command, word in ((["list", "graphs"], "one-peer"), (["list", "compressors"], "top-k:share=0.01")):
        assert word in run(*command).output
    wrong = run("graphs", "show", "rign")
    assert wrong.exit_code == 2 and "did you mean 'ring'" in wrong.output


def test_a_run_of_trace_and_file_resumes_anywhere(tmp_path, monkeypatch):
    lines = "".join(f"{r},{w},{100 * (1 + w)}\n" for r in range(4) for w in range(6))
    (tmp_path / "t.csv").write_text("round,worker,ms\n" + lines)
    (tmp_path / "d.csv").write_text("a,b\n" + "".join(f"{i},{i % 7 + 0.5}\n" for i in range(40)))
    monkeypatch.chdir(tmp_path)
    done = run("train", "--data", "file", "--data-file", "d.csv", "--delays", "trace:t.csv", "--cluster", "simulated",
               "--workers", "4", "--steps", "3", "--out", "run", "--quiet")  # fmt: skip
    assert done.exit_code == 0, done.output
    assert (
        "t.csv: 4 rounds x 6 workers, from the columns 'round', 'worker', 'ms', read as milliseconds, median 0.35 s, "
        "longest 0.6 s; the fleet's 4 workers are the first of them\n"
    ) in done.stderr
    assert "d.csv: 40 rows, 1 column and an intercept, task regression, label 'b' (the last column" in done.stderr
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    resumed = run("resume", str(tmp_path / "run"), "--steps", "6", "--quiet")
    assert resumed.exit_code == 0, resumed.output
    result = run("trace", "show", "../t.csv", "--unit", "s")
    assert "4 rounds x 6 workers" in result.output and "median 350 s" in result.output


def test_ctrl_c_before_there_is_a_run_gets_one_line_and_130(tmp_path):
    problem = tmp_path / "mine.py"
    problem.write_text("def make():\n    raise KeyboardInterrupt\n")  # a signal may be ignored where these tests run
    result = run("train", "--problem", f"{problem}:make", "--workers", "2", "--out", str(tmp_path / "run"))
    assert result.exit_code == 130
    assert result.output == "anyk: interrupted; start it again\n"
    early = "import sys\nclass Finder:\n    def find_spec(self, name, *rest):\n        if name == 'click':\n"
    early += (
        "            raise KeyboardInterrupt\nsys.meta_path.insert(0, Finder())\nfrom anyk.__main__ import main\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", early], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "anyk: interrupted; start it again\n"


def test_a_config_file_is_read_strictly(tmp_path):
    config = tmp_path / "c.toml"
    base = 'data = "synthetic:rows=60,features=4"\ncluster = "simulated"\nworkers = 4\n'
    for line, sentence in (
        ("steps = true", "steps in the config file '{}' must be a whole number, got True"),
        ("steps = 2.5", "steps in the config file '{}' must be a whole number, got 2.5"),
        ("steps = '2'", "steps in the config file '{}' must be a whole number, got '2'"),
        ("quiet = 1", "quiet in the config file '{}' must be True or False, got 1"),
        ("seconds = nan", "seconds in the config file '{}' must be a number, got nan"),
        ("strategy = 3", "strategy in the config file '{}' must be a string, got 3"),
        ("begin = 'x'", "unknown key 'begin'; keys: callback, cluster, communication, data"),
        ("strateggy = 'x'", "unknown key 'strateggy'; did you mean 'strategy'?"),
    ):
        config.write_text(base + line)
        failed = run("train", "--config", str(config), "--steps", "2", "--out", str(tmp_path / "o"))
        assert failed.exit_code == 2 and sentence.format(config) in failed.output, failed.output
    config.write_text(base + "from = 'nowhere'\nlr = 0.5\nseconds = 3\n")
    assert "nowhere" in run("train", "--config", str(config)).output
    config.write_text(base + "strategy = ['uncoded', 'k-sync']\nlr = 0.5\n")
    output = run("race", "--config", str(config), "--settings").output
    assert "strategy       uncoded, k-sync:k=2 " in output and "lr             0.5 " in output
    assert "page           none " in output


def test_settings_are_what_will_be_used(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    output = run("train", "--strategy", "k-sync", "--settings").output
    assert "None" not in output and "()" not in output and "begin" not in output
    values = {line.split()[0]: line[15:59].strip() for line in output.splitlines()}
    assert values["from"] == values["target"] == "none" and values["strategy"] == "k-sync:k=15"
    assert (values["steps"], values["seconds"], values["out"]) == ("100", "no limit", "runs/train-1")
    assert values["optimizer"].startswith("nesterov") and float(values["l2"]) == pytest.approx(1 / 1437, rel=1e-5)
    smoothness = anyk.problems.from_data("digits").smoothness()
    assert float(values["lr"]) == pytest.approx(1 / smoothness, rel=5e-3)  # three digits are stored
    done = run("train", *SMALL, "--strategy", "k-sync", "--steps", "2")
    assert "k-sync:k=3" in done.output and anyk.Run.open("runs/train-1").config.strategy == "k-sync:k=3"


def settings(*words):
    result = run(*words, "--settings")
    assert result.exit_code == 0, result.output
    return {line.split()[0]: re.split(" +(default|command line)$", line[15:])[0] for line in result.stdout.splitlines()}


@pytest.mark.parametrize("words", [
    ("--strategy", "k-sync", "--delays", "exp:mean=1"),
    ("--delays", "constant:1", "--optimizer", "adam:lr=0.1", "--communication", "constant:0.5"),
    ("--delays", "constant:1", "--lr", "0.25", "--cluster", "simulated:partition=0.1"),
    ("--optimizer", "gd", "--lr", "exponential:start=1,decay=0.9", "--target", "0.5"),
])  # fmt: skip
def test_settings_are_what_a_run_stores(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    begun = ("train", *SMALL, *words)
    limit = () if "--target" in words else ("--steps", "2")
    values = settings(*begun, *limit)
    assert run(*begun, *limit).exit_code == 0
    with anyk.Run.open("runs/train-1") as done:
        stored = done.config.plain() | {"workers": done.config.workers}
    for key in ("strategy", "cluster", "delays", "communication", "optimizer", "lr", "workers", "steps"):
        assert values[key] == str(stored[key]), key
    further = settings(*begun, "--steps", "4", "--from", "runs/train-1")
    assert (further["optimizer"], further["lr"]) == (stored["optimizer"], stored["lr"])


def test_mpiexec_without_cluster_mpi_is_one_sentence(tmp_path):
    words = ["train", *SMALL, "--steps", "2", "--out", str(tmp_path / "run")]
    first, other = (CliRunner().invoke(main, words, env={"PMI_RANK": rank, "PMI_SIZE": "5"}) for rank in "01")
    assert first.exit_code == other.exit_code == 2 and not other.output
    assert "mpiexec started this command 5 times, and cluster 'simulated' would run it in each" in first.output
    assert not (tmp_path / "run").exists()


def test_a_name_too_long_and_tables_too_deep_are_one_sentence(tmp_path):
    for arguments in (
        ["--config", "x" * 3000],
        ["--plugin", "x" * 3000 + ".py"],
        ["--delays", f"trace:{'x' * 3000}.npz"],
    ):
        done = run("train", *arguments, "--steps", "1")
        assert done.exit_code == 2 and "File name too long" in done.output and len(done.output) < 1000
    (tmp_path / "c.toml").write_text("steps = " + "[" * 5000)
    done = run("train", "--config", str(tmp_path / "c.toml"))
    assert done.exit_code == 2 and "cannot be read as a config file: maximum recursion depth" in done.output


def test_a_target_of_an_undefined_metric_is_refused(tmp_path):
    (tmp_path / "d.csv").write_text("a,y\n" + "".join(f"{i},{'no' if i else 'yes'}\n" for i in range(8)))
    done = run("train", "--data", "file:seed=1", "--data-file", str(tmp_path / "d.csv"), "--workers", "2", "--cluster",
               "simulated", "--target", "0.9", "--out", str(tmp_path / "run"), "--quiet")  # fmt: skip
    assert (
        done.exit_code == 2 and "auc is not defined on the held-out rows (nan), as when they belong to" in done.output
    )
    assert "the 2 held-out rows are of one class ('no')" in done.output


def test_a_receipt_shows_the_values_of_its_step(tmp_path):
    (tmp_path / "annealed.py").write_text(
        "import torch, anyk\n"
        "def loss(outputs, targets, beta):\n"
        "    return torch.nn.functional.mse_loss(outputs, targets) + beta * outputs.pow(2).mean()\n"
        "def make():\n"
        "    X = torch.linspace(-1.0, 1.0, 60).reshape(20, 3)\n"
        "    values = {'beta': lambda step: 0.5 * step}\n"
        "    return anyk.problems.TorchProblem(torch.nn.Linear(3, 1), loss, (X, X[:, :1]), values=values)\n"
    )
    problem = ["--problem", f"{tmp_path / 'annealed.py'}:make", "--optimizer", "gd", "--lr", "0.05"]
    folder = str(tmp_path / "run")
    training = run("train", *problem, "--workers", "2", "--cluster", "simulated", "--steps", "3", "--out", folder)
    assert training.exit_code == 0, training.output
    assert "values: beta = 1.0\n" in run("show", folder, "--step", "3").output
