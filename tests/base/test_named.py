"""A run folder may be a stranger's: no command that reads one runs what it names, unless it is trusted."""

import json
import shutil
import sys
import tomllib
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

import anyk
from anyk.cli import main
from anyk.runs.folder.config import NAME, read_config, write_plain
from anyk.runs.folder.promise import Estimate, torch_named

EVIL = """
from pathlib import Path
Path({sentinel!r}).touch()
import anyk, torch
class X(torch.optim.SGD):
    pass
def make():
    return anyk.problems.from_data("synthetic:rows=60,features=4")
"""


def run(*arguments):
    return CliRunner().invoke(main, list(map(str, arguments)))


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A finished run in a folder, and evil.py in it, beside it and in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])  # as in a notebook, or with python -m
    problem = anyk.problems.from_data("synthetic:rows=60,features=4")
    fleet = anyk.cluster("simulated", workers=4, delays="exp:mean=1", seed=1)
    optimizer = anyk.optimizers.GD(lr=0.1)
    anyk.train(problem, "uncoded", fleet, steps=4, optimizer=optimizer, out=tmp_path / "run").close()
    for folder in (tmp_path / "run", tmp_path):
        (folder / "evil.py").write_text(EVIL.format(sentinel=str(tmp_path / "sentinel")))
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith(("evil", "anyk_file_evil"))]:
        del sys.modules[name]


def edit(folder, **changes):
    """As a stranger would who knows how the file is made."""
    config = read_config(folder).plain()
    sha256 = {name: anyk.base.named.sha256_of(str(name)) for name in changes.pop("recorded", ())}
    write_plain(folder / NAME, config | changes | {"digests": {"code": {k: v for k, v in sha256.items() if v}}})


NAMED = {
    "a file in the folder": lambda at: {"problem": {"problem": f"{at}/run/evil.py:make"}},
    "a file beside us": lambda at: {"problem": {"problem": "evil.py:make"}},
    "a module beside us": lambda at: {"problem": {"problem": "evil:make"}},
    "a function of the library": lambda at: {"problem": {"problem": "os:abort"}},
    "one of many": lambda at: {"problem": {"many": [{"problem": f"{at}/evil.py:make"}]}},
    "an optimiser": lambda at: {"optimizer": "torch:method=evil.X"},
    "a clipped optimiser": lambda at: {"optimizer": "clip:of=(torch:method=evil.X),norm=1"},
    "a schedule": lambda at: {"optimizer": "torch:method=SGD,schedule=evil.X", "lr": "0.1"},
    "an inner optimiser": lambda at: {"strategy": "pasgd:tau=2,inner=(torch:method=evil.X)"},
    "an outer optimiser": lambda at: {"strategy": "pasgd:tau=2,outer=(torch:method=evil.X)"},
    "a cluster": lambda at: {"cluster": "ray:address=203.0.113.9"},
}
COMMANDS = {
    "resume": ("resume", "run", "--steps", "6"),
    "replay": ("replay", "run"),
    "show": ("show", "run"),
    "receipt": ("show", "run", "--step", "2"),
    "trace": ("trace", "record", "run", "--out", "x.npz"),
    "check": ("check", "run"),
    "export": ("export", "run", "--to", "perfetto", "-o", "x.json"),
    "predict": ("predict", "run", "none.csv"),
    "from": ("train", "--from", "run", "--workers", "4", "--cluster", "simulated", "--delays", "exp:mean=1", "--data",
             "synthetic:rows=60,features=4", "--optimizer", "gd", "--lr", "0.1", "--steps", "6", "--out", "next"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_runs_what_a_folder_names(command, place):
    shutil.copytree("run", "untouched")
    for named, changes in NAMED.items():
        shutil.rmtree("run")
        shutil.copytree("untouched", "run")
        shutil.rmtree("next", ignore_errors=True)
        edit(place / "run", **changes(place))
        result = run(*COMMANDS[command])
        assert not (place / "sentinel").exists(), named
        assert "evil" not in sys.modules, named
        assert result.exit_code in (0, 2), (named, result.output)
        if result.exit_code:
            assert len(result.output.strip().splitlines()) == 1, (named, result.output)
        if command == "resume":
            assert result.exit_code == 2, named
            assert "may belong to somebody else; if it is yours," in result.output and "--trust" in result.output, named


def test_a_plan_of_a_stranger_runs_nothing(place):
    """Neither one in a file nor the one that a run folder keeps."""
    promise = anyk.plan(anyk.fleet.Record([[4, 1, 1, 1], [1, 4, 1, 1]] * 4), slope=0.0, resamples=20).promise
    with_optimizer = msgspec.structs.replace(promise, strategy="uncoded", optimizer="torch:method=evil.X")
    with_strategy = msgspec.structs.replace(promise, strategy="pasgd:tau=2,inner=(torch:method=evil.X)")
    data = ("--data", "synthetic:rows=60,features=4", "--cluster", "simulated", "--steps", "2", "--quiet")
    for number, (plan, way) in enumerate(((with_optimizer, "--optimizer"), (with_strategy, "--strategy in place"))):
        plan.save("plan.toml")
        refused = run("train", "--plan", "plan.toml", *data)
        assert refused.exit_code == 2, refused.output
        assert "names code to run, the optimizer 'evil.X', which may belong to somebody else; if it is yours, name" in (
            refused.output
        )
        assert way in refused.output
        with pytest.raises(anyk.BadInput, match="names code to run"):
            anyk.runs.Promise.load("plan.toml")
        assert anyk.runs.Promise.load("plan.toml", trust=True) == plan
        edit(place / "run", plan=plan.plain())
        run("check", "run")
        assert not (place / "sentinel").exists()
        named = run("train", "--plan", "plan.toml", *data, "--optimizer", "gd", "--lr", "0.1", "--out", f"out-{number}")
        assert named.exit_code == (0 if plan is with_optimizer else 2), named.output
    assert not (place / "sentinel").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec",
    [
        *("torch:evil.X", "torch:(evil.X)", "torch: evil.X", "torch:method = evil.X", "torch:method=(evil.X)"),
        *("torch:SGD,schedule=(evil.X:a=1)", "slowmo:of=(torch:(evil.X))", "pasgd:tau=2,inner=(clip:of=torch:evil.X)"),
    ],
)
def test_a_plan_names_code_however_its_spec_is_written(spec):
    promise = anyk.plan(anyk.fleet.Record([[4, 1, 1, 1], [1, 4, 1, 1]] * 4), slope=0.0, resamples=20).promise
    assert torch_named(spec) == [("evil", "evil.X")]
    with pytest.raises(anyk.BadInput, match="names code to run, the optimizer 'evil.X'"):
        msgspec.structs.replace(promise, strategy="uncoded", optimizer=spec).check_code("it")


def test_an_interval_below_zero_has_its_ends():
    for low, high in ((-0.5, 0.1), (-3.0, -1.0), (1.0, 2.0)):
        estimate = Estimate((low + high) / 2, low, high)
        assert estimate.holds(low) and estimate.holds(high) and not estimate.holds(low - 0.01)


def test_trust_has_its_bounds(place):
    shutil.copytree("run", "untouched")
    for named, recorded, sentence in (
        ("a file in the folder", [f"{place}/run/evil.py"], "lies in the run folder itself"),
        ("a file beside us", ["evil.py"], "'evil.py' is not an absolute path"),
        ("a module beside us", ["evil"], "no file of the module 'evil' is found outside of the current folder"),
        ("one of many", [], "its SHA-256 was not recorded"),
        ("an optimiser", ["evil"], "no file of the module 'evil' is found outside of the current folder"),
    ):
        shutil.rmtree("run")
        shutil.copytree("untouched", "run")
        edit(place / "run", **NAMED[named](place), recorded=recorded)
        for command in ("resume", "replay"):
            result = run(*COMMANDS[command], "--trust")
            assert result.exit_code == 2 and sentence in result.output, (named, result.output)
            assert not (place / "sentinel").exists()


@pytest.mark.slow
def test_a_trusted_function_is_run_if_it_is_unchanged(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "mine.py"
    file.write_text(EVIL.format(sentinel=str(tmp_path / "sentinel")).replace("torch.optim.SGD", "object"))
    base = ("--workers", "4", "--cluster", "simulated", "--delays", "exp:mean=1", "--optimizer", "gd", "--lr", "0.1")
    assert run("train", "--problem", "mine.py:make", *base, "--steps", "3", "--out", "run").exit_code == 0
    config = tomllib.loads(Path("run/run.toml").read_text())
    assert config["problem"] == {"problem": f"{file}:make"}
    assert list(config["digests"]["code"]) == [str(file)]
    shutil.copytree("run", "again")

    def fresh():
        sys.modules.pop("anyk_file_mine", None)
        anyk.base.named._LOADED.clear()
        (tmp_path / "sentinel").unlink(missing_ok=True)

    for more in (["--trust"], ["--problem", "mine.py:make"]):
        fresh()
        for command in (("resume", "run", "--steps", "6"), ("replay", "run")):
            result = run(*command, *more)
            assert result.exit_code == 0, result.output
        assert (tmp_path / "sentinel").exists()
    fresh()
    with pytest.raises(anyk.BadInput, match="names code to run, the problem"):
        anyk.resume("run")
    with pytest.raises(anyk.BadInput, match="names code to run, the problem"):
        anyk.replay("run")
    assert anyk.replay("run", trust=True).model
    anyk.resume("again", trust=True, steps=5).close()
    fresh()
    file.write_text(file.read_text() + "\n# changed\n")
    for command in (("resume", "run", "--steps", "8"), ("replay", "run")):
        refused = run(*command, "--trust")
        assert refused.exit_code == 2 and "has changed since the run began (SHA-256 " in refused.output
        assert not (tmp_path / "sentinel").exists()
        refused = run(*command, "--problem", "mine.py:make")
        assert refused.exit_code == 2 and "is not the code of the run" in refused.output, refused.output
        fresh()


def test_a_compiled_file_beside_the_source_is_not_what_runs(tmp_path):
    """Its source has the SHA-256 that is checked; another program may lie in the cache."""
    import py_compile

    file = tmp_path / "cached.py"
    file.write_text("print('bad')\ndef make():\n    raise RuntimeError('compiled')\n")
    py_compile.compile(str(file), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    file.write_text("def make():\n    raise ValueError('source')\n")
    with pytest.raises(anyk.BadInput, match="failed: ValueError: source"):
        anyk.problems.from_function(f"{file}:make")


def test_a_torch_class_of_ones_own_is_recorded_and_needs_trust(tmp_path, monkeypatch):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "mysteps.py").write_text("import torch\nclass Mine(torch.optim.SGD):\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    problem = anyk.problems.from_data("synthetic:rows=60,features=4")
    fleet = anyk.cluster("simulated", workers=4, delays="exp:mean=1", seed=1)
    optimizer = anyk.optimizers.optimizer("torch:method=mysteps.Mine", lr=0.1)
    anyk.train(problem, "uncoded", fleet, steps=3, optimizer=optimizer, out=tmp_path / "run").close()
    assert list(read_config(tmp_path / "run").digests.code) == ["mysteps"]
    with pytest.raises(anyk.BadInput, match="names code to run, the optimizer 'mysteps.Mine'"):
        anyk.resume(tmp_path / "run", steps=5)
    anyk.resume(tmp_path / "run", steps=5, trust=True).close()
    anyk.resume(tmp_path / "run", steps=6, optimizer=optimizer).close()
    (tmp_path / "lib" / "mysteps.py").write_text("import torch\nclass Mine(torch.optim.Adam):\n    pass\n")
    with pytest.raises(anyk.BadInput, match="mysteps.py' has changed since the run began"):
        anyk.replay(tmp_path / "run", trust=True)
    del sys.modules["mysteps"]


def test_reports_of_a_folder_are_plain_data(place):
    """Whatever a folder says, what comes of it is text."""
    assert json.loads(run("show", "run", "--json", "-").stdout)["runs"][0]["steps"] == 4


HELPED = """
import anyk
from helpers import rows
def make():
    import late.inner
    return anyk.problems.from_data(f"synthetic:rows={rows()},features=4")
"""
PLUGIN = """
from anyk.strategies import register
from anyk.strategies.kfamily.kfamily import KFamily
from numbers_of_mine import K
@register('mine')
class Mine(KFamily):
    spec = 'mine'
    def __init__(self, workers: int) -> None:
        super().__init__(workers, k=K)
"""
BASE = (
    "--workers",
    "4",
    "--cluster",
    "simulated",
    "--delays",
    "exp:mean=1",
    "--optimizer",
    "gd",
    "--lr",
    "0.1",
    "--quiet",
)


@pytest.fixture
def forgetful(monkeypatch):
    """Nothing of what a test imports or registers stays."""
    before, path = set(sys.modules), sys.path[:]
    entries = dict(anyk.strategies.registry.entries)

    def forget():
        for name in set(sys.modules) - before:
            if name.startswith("anyk_") or name.partition(".")[0] in ("helpers", "late", "numbers_of_mine"):
                del sys.modules[name]
        anyk.base.named._LOADED.clear()
        anyk.strategies.registry.entries = dict(entries)

    yield forget
    forget()
    sys.path[:] = path


@pytest.mark.slow
def test_a_files_own_imports_are_recorded_and_must_not_change(tmp_path, monkeypatch, forgetful):
    monkeypatch.chdir(tmp_path)
    for name, content in {
        "mine.py": HELPED,
        "helpers.py": "import math, late\nrows = lambda: 60\n",
        "late/__init__.py": "",
        "late/inner.py": "from . import more\n",
        "late/more.py": "",
        "unused.py": "",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    assert run("train", "--problem", "mine.py:make", *BASE, "--steps", "3", "--out", "run").exit_code == 0
    code = read_config(tmp_path / "run").digests.code
    assert sorted(str(Path(path).relative_to(tmp_path)) for path in code) == [
        "helpers.py", "late/__init__.py", "late/inner.py", "late/more.py", "mine.py"
    ]  # fmt: skip
    steps = 4
    for more in (["--trust"], ["--problem", "mine.py:make"]):
        forgetful()
        assert run("replay", "run", *more).exit_code == 0
        done = run("resume", "run", "--steps", str(steps := steps + 1), *more)
        assert done.exit_code == 0, done.output
    for changed in ("helpers.py", "late/more.py"):
        was = (tmp_path / changed).read_text()
        (tmp_path / changed).write_text(was + "# changed\n")
        for command in (("resume", "run", "--steps", "9"), ("replay", "run")):
            for more, words in (
                (["--trust"], "has changed since the run began"),
                (["--problem", "mine.py:make"], "is not the"),
            ):
                forgetful()
                refused = run(*command, *more)
                assert refused.exit_code == 2 and f"{changed}' {words}" in refused.output, refused.output
        (tmp_path / changed).write_text(was)
    shutil.copytree(tmp_path, tmp_path / "moved", ignore=shutil.ignore_patterns("run", "moved"))
    forgetful()
    assert run("replay", "run", "--problem", "moved/mine.py:make").exit_code == 0
    (tmp_path / "moved" / "helpers.py").write_text("rows = lambda: 60\n")
    forgetful()
    assert "moved/helpers.py' is not the code" in run("replay", "run", "--problem", "moved/mine.py:make").output


@pytest.mark.slow
def test_a_plug_in_is_recorded_and_must_be_what_it_was(tmp_path, monkeypatch, forgetful):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plug.py").write_text(PLUGIN)
    (tmp_path / "numbers_of_mine.py").write_text("K = 2\n")
    data = ("--data", "synthetic:rows=60,features=4")
    result = run("train", "--plugin", "plug.py", "--strategy", "mine", *data, *BASE, "--steps", "3", "--out", "run")
    assert result.exit_code == 0, result.output
    result = run("race", "--plugin", "plug.py", "--strategy", "mine", *data, *BASE, "--steps", "3", "--out", "race")
    assert result.exit_code == 0, result.output
    assert not anyk.base.named.plugins()
    for folder in ("run/run.toml", "race/race.toml"):
        code = tomllib.loads((tmp_path / folder).read_text())["digests"]["code"]
        assert set(code) == {str(tmp_path / "plug.py"), str(tmp_path / "numbers_of_mine.py")}
    commands = (("replay", "run"), ("resume", "run", "--steps", "6"), ("resume", "race", "--add", "uncoded", "--quiet"))
    for command in commands:
        forgetful()
        done = run(*command, "--plugin", "plug.py")
        assert done.exit_code == 0, done.output
    assert "plug.py' is as it was" in run("verify", "run").output
    for changed in ("plug.py", "numbers_of_mine.py"):
        was = (tmp_path / changed).read_text()
        (tmp_path / changed).write_text(was + "# changed\n")
        for command in commands:
            forgetful()
            refused = run(*command, "--plugin", "plug.py")
            assert refused.exit_code == 2 and f"{changed}' is not the code of the r" in refused.output, refused.output
        assert f"{changed}' is another now" in run("verify", "run").output
        (tmp_path / changed).write_text(was)


@pytest.mark.slow
def test_a_plug_in_that_is_not_given_again_is_named(tmp_path, monkeypatch, forgetful):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plug.py").write_text(PLUGIN)
    (tmp_path / "numbers_of_mine.py").write_text("K = 2\n")
    asked = ("--plugin", "plug.py", "--strategy", "mine", "--data", "synthetic:rows=60,features=4", *BASE)
    for command in ("train", "race"):
        assert run(command, *asked, "--steps", "3", "--out", command).exit_code == 0
    forgetful()
    file = tmp_path / "plug.py"
    sentence = f"was made with plug-ins that are not given now; if they are yours, add --plugin {file} (in Python,"
    for command in (("replay", "train"), ("resume", "train", "--steps", "6"), ("resume", "race", "--add", "uncoded"),
                    ("trace", "record", "train", "--out", "t.npz")):  # fmt: skip
        refused = run(*command)
        of = "the race 'race'" if "race" in command else "the run 'train'"
        assert refused.exit_code == 2 and refused.output.startswith(f"anyk: no strategy 'mine': {of} {sentence}"), (
            command
        )
        assert refused.output.count("\n") == 1
    assert run("trace", "record", "train", "--out", "t.npz", "--plugin", "plug.py").exit_code == 0
    assert "no strategy 'mien'; did you mean 'mine'?" in run("resume", "race", "--add", "mien", *asked[:2]).output
