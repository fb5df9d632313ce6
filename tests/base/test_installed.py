"""Plug-ins of installed distributions: when they are imported, what they may not do, and what runs record of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

import anyk
from anyk.base import installed
from anyk.base.errors import BadInput, UnknownName
from anyk.cli import main
from anyk.runs.folder.config import read_config

RULE = """
import anyk
from dataclasses import dataclass

@anyk.strategies.register_wait("quorum")
@dataclass(frozen=True)
class Quorum(anyk.strategies.Wait):
    \"\"\"Wait for at least a number of replies.\"\"\"

    least: int = 2

    def enough(self, waiting):
        return waiting.replies >= self.least
"""
SIMULATED = [
    "--cluster",
    "simulated",
    "--workers",
    "4",
    "--data",
    "synthetic:rows=60,features=3",
    "--delays",
    "exp:mean=1",
]
Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Return a function that installs a distribution with modules and entry points into a folder on the path."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.chdir(tmp_path)
    modules = set(sys.modules)
    forget()

    def add(
        name: str, modules: dict[str, str], *, version: str = "1.0", group: str = "anyk.plugins", **points: str
    ) -> Path:
        for old in site.glob(f"{name.replace('-', '_')}-*.dist-info"):
            shutil.rmtree(old)
        for module, source in modules.items():
            file = site / module
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(source)
        info = site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(
            f"[{group}]\n" + "\n".join(f"{key} = {value}" for key, value in points.items()) + "\n"
        )
        return site

    yield add
    forget()
    for module in set(sys.modules) - modules:
        if getattr(sys.modules[module], "__file__", None) and str(site) in str(sys.modules[module].__file__):
            del sys.modules[module]


def forget() -> None:
    """Forget what is loaded, as another process would not know it."""
    for plugin in (installed._loaded or {}).values():
        for entries, name in plugin.names:
            entries.pop(name, None)
    installed._loaded = None
    installed._failures.clear()
    installed._told.clear()


def again(site: Path) -> None:
    """Forget what is loaded and imported, as in a new process."""
    forget()
    for module in [name for name, of in sys.modules.items() if str(site) in str(getattr(of, "__file__", None))]:
        del sys.modules[module]


def command(*words: str) -> Result:
    return CliRunner().invoke(main, list(words))


# ------------------------------------------------------------------------------------------- looking up


def test_a_plug_in_is_imported_when_its_name_is_looked_up(install: Install) -> None:
    install("anyk-quorum", {"quorum_rules.py": RULE}, quorum="quorum_rules")
    anyk.strategy("frc:load=2,wait=3|0.5s", workers=4)
    anyk.delays.parse("exp:mean=1")
    anyk.optimizers.optimizer("clip:of=adam", lr=0.1)
    assert "quorum_rules" not in sys.modules and installed._loaded is None
    built = anyk.strategy("uncoded:wait=(quorum:least=3)|1s", workers=4)
    assert built.spec == "uncoded:wait=quorum:least=3|1s" and "quorum_rules" in sys.modules
    entry = anyk.strategies.wait_rules.entry("quorum")
    assert entry.origin == "anyk-quorum 1.0" and anyk.strategies.wait_rules.entry("count").origin == ""


def test_a_key_of_a_spec_is_no_name_of_a_plug_in(install: Install) -> None:
    install("anyk-load", {"load_rules.py": RULE.replace('"quorum"', '"load"')}, load="load_rules")
    assert "load" in anyk.strategies.wait_rules
    for spec in ("frc:load=2", "uncoded:wait=(3|0.5s)", "compressed:of=(frc:load=2),by=(top-k:share=0.1)"):
        assert installed.used_by([spec]) == {}
    for spec in ("uncoded:wait=load:least=3", "uncoded:wait=(load:least=2)|1s", "uncoded:wait=load", "load:least=3"):
        assert list(installed.used_by([spec])) == ["anyk-load 1.0"]


@pytest.mark.parametrize(
    ("register", "look"),
    [
        ("anyk.strategies.register", lambda: anyk.strategy("thing", workers=2)),
        ("anyk.codes.register", lambda: anyk.codes.code("thing", workers=2)),
        ("anyk.delays.register", lambda: anyk.delays.parse("thing")),
        ("anyk.optimizers.register", lambda: anyk.optimizers.optimizer("thing", lr=0.1)),
        ("anyk.compression.register", lambda: anyk.compression.compressor("thing")),
        ("anyk.clusters.register", lambda: anyk.cluster("thing", workers=2)),
        ("anyk.problems.sources.register", lambda: anyk.problems.data.load("thing")),
        ("anyk.graphs.register", lambda: anyk.graphs.graph("thing", workers=2)),
        ("anyk.callbacks.registry.register", lambda: anyk.callbacks.callback("thing")),
    ],
)  # fmt: skip
def test_names_of_every_kind_are_found(register: str, look: Callable[[], Any], install: Install) -> None:
    source = f"import anyk, anyk.callbacks\n\n@{register}('thing')\ndef thing(**settings):\n    raise anyk.BadInput('found')\n"
    install("anyk-thing", {"thing_of_test.py": source}, thing="thing_of_test")
    with pytest.raises(BadInput, match="found"):
        look()


def test_planners_and_lists_know_the_names(install: Install) -> None:
    install("anyk-quorum", {"quorum_rules.py": RULE}, quorum="quorum_rules")
    assert "quorum" in [entry.name for entry in anyk.strategies.wait_rules]
    result = command("list", "wait-rules").output
    assert "quorum:least=2\n    Wait for at least a number of replies. (from anyk-quorum 1.0)" in result


def test_names_of_plug_ins_are_suggested(install: Install) -> None:
    install("anyk-quorum", {"quorum_rules.py": RULE}, quorum="quorum_rules")
    with pytest.raises(UnknownName, match="no wait rule 'quorom'; did you mean 'quorum'"):
        anyk.strategy("uncoded:wait=quorom:least=3", workers=4)


@pytest.mark.slow
def test_import_and_help_do_not_import_a_plug_in(install: Install) -> None:
    site = install("anyk-quorum", {"quorum_rules.py": RULE}, quorum="quorum_rules")
    install("anyk-hello", {"hello_command.py": "raise RuntimeError('imported')"}, group="anyk.commands",
            hello="hello_command:hello")  # fmt: skip
    code = "import sys, anyk; from anyk.cli import main; main(['--help'], standalone_mode=False)"
    code += "; assert not {'quorum_rules', 'hello_command'} & set(sys.modules), sys.modules"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(site)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "hello" in done.stdout and "A command of 'anyk-hello 1.0'." in done.stdout


# ------------------------------------------------------------------------------------------- what is broken


BROKEN = {
    "a missing import": (
        "import no_such_module_at_all",
        "ModuleNotFoundError: No module named 'no_such_module_at_all'",
    ),
    "an error": ("1 / 0", r"ZeroDivisionError: division by zero"),
    "a typing error": ("def", "SyntaxError"),
    "an exit": ("raise SystemExit(3)", "SystemExit: 3"),
    "a name that exists": (
        RULE.replace('"quorum"', '"count"'),
        "it registers the wait rule 'count', but there is another",
    ),
}


@pytest.mark.parametrize("name", list(BROKEN))
def test_a_broken_plug_in_is_named_with_its_distribution(name: str, install: Install) -> None:
    source, reason = BROKEN[name]
    install("anyk-broken", {"broken_rules.py": source}, rules="broken_rules")
    assert str(anyk.strategy("uncoded:wait=count:number=2", workers=4).spec) == "uncoded:wait=2"  # it is anyk's own
    with pytest.raises(UnknownName) as caught:
        anyk.strategy("uncoded:wait=quorum:least=3", workers=4)
    sentence = "the plug-in 'rules' of the distribution 'anyk-broken 1.0' cannot be loaded: "
    result = command("train", "--strategy", "quorum", *SIMULATED)
    assert result.exit_code == 2 and sentence in " ".join(result.output.split()), result.output
    if name != "a name that exists":
        assert sentence in str(caught.value)
        with pytest.raises(UnknownName, match=f"'anyk-broken 1.0' cannot be loaded: {reason}"):
            anyk.delays.parse("no-such-delays")


def test_a_broken_plug_in_keeps_no_others_from_working(install: Install) -> None:
    install("anyk-broken", {"broken_rules.py": "1 / 0"}, rules="broken_rules")
    install("anyk-quorum", {"quorum_rules.py": RULE}, quorum="quorum_rules")
    assert anyk.strategy("uncoded:wait=quorum:least=3", workers=4)
    result = command("list", "wait-rules")
    assert result.exit_code == 0 and "quorum:least=2" in result.stdout
    assert result.stderr.count("the distribution 'anyk-broken 1.0' cannot be loaded: ZeroDivisionError") == 1


def test_listing_in_python_warns_of_a_broken_plug_in_once(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "_tell", installed._warn)
    install("anyk-broken", {"broken_rules.py": "1 / 0"}, rules="broken_rules")
    with pytest.warns(RuntimeWarning, match="'anyk-broken 1.0' cannot be loaded: ZeroDivisionError"):
        list(anyk.codes.registry)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(anyk.codes.registry)


def test_a_plug_in_that_fails_half_way_registers_nothing(install: Install) -> None:
    install("anyk-half", {"half_rules.py": RULE + "\n1 / 0\n"}, rules="half_rules")
    with pytest.raises(UnknownName):
        anyk.strategy("uncoded:wait=quorum:least=3", workers=4)
    assert "quorum" not in anyk.strategies.wait_rules.entries


def test_a_plug_in_may_not_replace_what_anyk_has(install: Install) -> None:
    install("anyk-evil", {"evil_rules.py": RULE.replace('"quorum"', '"decodable"')}, rules="evil_rules")
    built_in = anyk.strategies.wait_rules.entries["decodable"]
    with pytest.raises(UnknownName, match="it registers the wait rule 'decodable', but there is another of this name"):
        anyk.strategy("uncoded:wait=quorum", workers=4)
    assert anyk.strategies.wait_rules.entries["decodable"] is built_in


@pytest.mark.parametrize(("kind", "name", "other"), [("strategies", "frc", "code"), ("codes", "pasgd", "strategy")])
def test_no_strategy_may_have_the_name_of_a_code(install: Install, kind: str, name: str, other: str) -> None:
    """Whether the plug-in was loaded before, by chance, does not decide what a spec means."""
    text = f"import anyk\n\n@anyk.{kind}.register({name!r})\ndef build(workers):\n    raise SystemError\n"
    install("anyk-same", {"same_names.py": text}, same="same_names")
    before = anyk.strategy(name, workers=4)
    with pytest.raises(UnknownName, match=f"'{name}' cannot be registered: there is a {other} of this name"):
        anyk.strategy("no-such-strategy", workers=4)
    assert anyk.strategy(name, workers=4) == before
    with pytest.raises(anyk.BadInput, match=f"there is a {other} of this name"):
        getattr(anyk, kind).register(name)(lambda workers: before)


def test_two_distributions_with_one_name_are_told(install: Install) -> None:
    install("anyk-a", {"rules_a.py": RULE}, rules="rules_a")
    install("anyk-b", {"rules_b.py": RULE}, rules="rules_b")
    with pytest.raises(
        UnknownName, match="the distribution 'anyk-b 1.0' .*'quorum', but there is that of 'anyk-a 1.0'"
    ):
        anyk.strategy("uncoded:wait=no-such-rule", workers=4)
    assert anyk.strategies.wait_rules.entry("quorum").origin == "anyk-a 1.0"


def test_an_entry_point_must_name_a_module(install: Install) -> None:
    install("anyk-quorum", {"quorum_rules.py": RULE}, quorum="quorum_rules:Quorum")
    with pytest.raises(UnknownName, match="its entry point must name a module, got 'quorum_rules:Quorum'"):
        anyk.strategy("uncoded:wait=quorum", workers=4)


def test_a_folder_in_which_anyk_is_started_brings_no_plug_ins(
    install: Install, tmp_path: Path, monkeypatch: Any
) -> None:
    """As with python -m anyk in a folder of somebody else's."""
    site = install("anyk-quorum", {"quorum_rules.py": RULE}, quorum="quorum_rules")
    monkeypatch.chdir(site)
    for first in ("", str(site)):
        monkeypatch.setattr(sys, "path", [first, *[entry for entry in sys.path if entry not in ("", str(site))]])
        again(site)
        with pytest.raises(UnknownName):
            anyk.strategy("uncoded:wait=quorum:least=3", workers=4)
        assert "quorum_rules" not in sys.modules


def test_a_file_in_the_current_folder_is_no_plug_in(install: Install, monkeypatch: Any) -> None:
    site = install("anyk-quorum", {"quorum_rules.py": RULE}, quorum="quorum_rules")
    install("anyk-hello", {"hello_command.py": HELLO}, group="anyk.commands", hello="hello_command:hello")
    for name in ("quorum_rules.py", "hello_command.py"):
        Path(name).write_text("raise RuntimeError('of the current folder')")
    monkeypatch.setattr(sys, "path", [str(Path.cwd()), *sys.path])
    assert anyk.strategy("uncoded:wait=quorum:least=3", workers=4)
    assert command("hello", "world").output == "hello world\n"
    assert str(site) in str(sys.modules["quorum_rules"].__file__) and sys.path[0] == str(Path.cwd())


def test_help_works_in_a_folder_that_has_been_deleted(install: Install, tmp_path: Path, monkeypatch: Any) -> None:
    install("anyk-hello", {"hello_command.py": HELLO}, group="anyk.commands", hello="hello_command:hello")
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    for first in (["", *sys.path], list(sys.path)):
        monkeypatch.setattr(sys, "path", first)
        result = command("--help")
        assert result.exit_code == 0 and "A command of 'anyk-hello 1.0'." in result.output


@pytest.mark.parametrize("text", ["[anyk.plugins]\nquorum\n", "[anyk.plugins]\nquorum = = =\n", "[anyk.plugins\nx = y"])
def test_metadata_that_cannot_be_read_break_nothing(text: str, install: Install) -> None:
    install("anyk-quorum", {"quorum_rules.py": RULE}, quorum="quorum_rules")
    site = install("anyk-odd", {}, quorum="odd")
    next(site.glob("anyk_odd*.dist-info/entry_points.txt")).write_text(text)
    (site / "nameless-1.0.dist-info").mkdir()
    assert anyk.strategy("uncoded:wait=quorum:least=3", workers=4)
    assert command("--help").exit_code == 0 and command("list").exit_code == 0


# ------------------------------------------------------------------------------------------- what runs record


def trained(out: str) -> Result:
    return command("train", "--strategy", "uncoded:wait=quorum:least=3", *SIMULATED, "--steps", "3", "--out", out)


@pytest.mark.slow
def test_a_run_records_the_distributions_that_it_uses(install: Install, tmp_path: Path) -> None:
    install("anyk-quorum", {"quorum_rules.py": RULE}, quorum="quorum_rules")
    install("anyk-other", {"other_rules.py": RULE.replace('"quorum"', '"other"')}, rules="other_rules")
    assert trained("run").exit_code == 0
    recorded = read_config(tmp_path / "run").digests.installed
    assert list(recorded) == ["anyk-quorum 1.0"] and len(recorded["anyk-quorum 1.0"]) == 64
    again(tmp_path / "site")
    assert command("resume", "run", "--steps", "5").exit_code == 0
    assert "the same decisions and the same bits" in command("replay", "run").output
    assert "code           ?: 'anyk-quorum 1.0' is not looked at" in command("verify", "run").output
    assert "quorum_rules" in sys.modules and "other_rules" not in sys.modules  # which the run does not need


def test_a_run_of_anyks_own_names_records_none(install: Install, tmp_path: Path) -> None:
    install("anyk-quorum", {"quorum_rules.py": RULE}, quorum="quorum_rules")
    list(anyk.strategies.wait_rules)
    assert command("train", "--strategy", "frc:load=2", *SIMULATED, "--steps", "3", "--out", "run").exit_code == 0
    assert read_config(tmp_path / "run").digests.installed == {}


CHANGES: dict[str, tuple[Callable[[Install, Path], Any], str]] = {
    "removed": (
        lambda install, site: shutil.rmtree(next(site.glob("anyk_quorum*.dist-info"))),
        "was made with the plug-in distribution 'anyk-quorum 1.0', which is not installed here; if you know it",
    ),
    "another version": (
        lambda install, site: install("anyk-quorum", {}, version="1.1", quorum="quorum_rules"),
        "was made with version 1.0 of the plug-in distribution 'anyk-quorum', and 1.1 is installed",
    ),
    "edited": (
        lambda install, site: (site / "quorum_rules.py").write_text(RULE + "\n# edited\n"),
        "the code of the plug-in distribution 'anyk-quorum 1.0' has changed since the run",
    ),
    "broken": (
        lambda install, site: (site / "quorum_rules.py").write_text("1 / 0"),
        "was made with the distribution 'anyk-quorum 1.0', but the plug-in 'quorum' of the distribution",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("change", list(CHANGES))
def test_a_run_is_not_continued_with_another_plug_in(change: str, install: Install) -> None:
    site = install("anyk-quorum", {"quorum_rules.py": RULE}, quorum="quorum_rules")
    assert trained("run").exit_code == 0
    alter, sentence = CHANGES[change]
    alter(install, site)
    again(site)
    for words in (("resume", "run", "--steps", "5"), ("replay", "run")):
        result = command(*words)
        assert result.exit_code == 2 and sentence in " ".join(result.output.split()), result.output
    assert command("show", "run").exit_code == 0  # the record can be read


def test_a_changed_file_in_a_package_is_noticed(install: Install) -> None:
    files = {
        "quorum_package/__init__.py": "",
        "quorum_package/deep/__init__.py": "",
        "quorum_package/deep/rules.py": RULE,
    }
    site = install(
        "anyk-quorum", {**files, "quorum_package/helper.py": "LEAST = 2\n"}, quorum="quorum_package.deep.rules"
    )
    assert trained("run").exit_code == 0
    again(site)
    assert command("resume", "run", "--steps", "4").exit_code == 0
    (site / "quorum_package/helper.py").write_text("LEAST = 3\n")
    again(site)
    result = command("resume", "run", "--steps", "5")
    assert result.exit_code == 2 and "has changed since the run 'run' began" in " ".join(result.output.split())


@pytest.mark.slow
def test_a_plug_in_file_is_not_replaced_by_a_distribution(install: Install, tmp_path: Path) -> None:
    """The same name, but other code, which was not there when the run began."""
    (tmp_path / "rules.py").write_text(RULE)
    words = ["train", "--plugin", "rules.py", "--strategy", "uncoded:wait=quorum:least=3", *SIMULATED]
    assert command(*words, "--steps", "3", "--out", "run").exit_code == 0
    anyk.strategies.wait_rules.entries.pop("quorum")
    site = install("anyk-quorum", {"quorum_rules.py": RULE}, quorum="quorum_rules")
    again(site)
    result = command("resume", "run", "--steps", "5")
    said = " ".join(result.output.split())
    assert (
        result.exit_code == 2
        and "'quorum' is now a name of the plug-in distribution 'anyk-quorum 1.0', with which" in said
    )
    again(site)
    assert command("resume", "run", "--steps", "5", "--plugin", "rules.py").exit_code == 0
    anyk.strategies.wait_rules.entries.pop("quorum")


@pytest.mark.slow
def test_a_race_records_the_distributions_of_its_strategies(install: Install, tmp_path: Path) -> None:
    from anyk.runs.races.race_folder import read_race

    install("anyk-quorum", {"quorum_rules.py": RULE}, quorum="quorum_rules")
    words = ["race", "--strategy", "uncoded", *SIMULATED, "--steps", "3", "--out", "race"]
    assert command(*words).exit_code == 0
    assert read_race(tmp_path / "race").digests.installed == {}
    result = command("resume", "race", "--add", "uncoded:wait=quorum:least=3")
    assert result.exit_code == 0, result.output
    assert list(read_race(tmp_path / "race").digests.installed) == ["anyk-quorum 1.0"]


# ------------------------------------------------------------------------------------------- commands


HELLO = """
import click

@click.command()
@click.argument("name")
def hello(name):
    \"\"\"Greet.\"\"\"
    if name == "bad":
        from anyk.base.errors import BadInput
        raise BadInput("that is no name")
    click.echo(f"hello {name}")

text = "hello"
"""


@pytest.mark.slow
def test_a_command_of_a_distribution_runs(install: Install) -> None:
    install("anyk-hello", {"hello_command.py": HELLO}, group="anyk.commands", hello="hello_command:hello")
    assert command("hello", "world").output == "hello world\n"
    assert "Greet." in command("hello", "--help").output
    wrong = command("hello", "bad")
    assert wrong.exit_code == 2 and wrong.output == "anyk: that is no name\n"
    assert "did you mean 'hello'?" in command("helo").output
    assert "Installed distributions:" in command("--help").output


@pytest.mark.parametrize(
    ("modules", "points", "sentence"),
    [
        ({"hello_command.py": "1 / 0"}, {"hello": "hello_command:hello"}, "'anyk-hello 1.0' cannot be loaded: ZeroDivision"),
        ({}, {"hello": "hello_missing:hello"}, "'anyk-hello 1.0' cannot be loaded: ModuleNotFoundError"),
        ({"hello_command.py": HELLO}, {"hello": "hello_command:bye"}, "'anyk-hello 1.0' cannot be loaded: AttributeError"),
        ({"hello_command.py": HELLO}, {"hello": "hello_command:text"}, "'anyk-hello 1.0' is str, not a click command"),
    ],
)  # fmt: skip
def test_a_broken_command_gives_a_sentence(modules: Any, points: Any, sentence: str, install: Install) -> None:
    install("anyk-hello", modules, group="anyk.commands", **points)
    result = command("hello", "world")
    assert result.exit_code == 2 and sentence in " ".join(result.output.split()), result.output
    assert command("list").exit_code == 0
    completed = ShellComplete(main, {}, "anyk", "_ANYK_COMPLETE").get_completions([], "tr")
    assert {item.value for item in completed} == {"trace", "train"}


def test_a_command_cannot_replace_anyks_own_nor_anothers(install: Install) -> None:
    install("anyk-hello", {"hello_command.py": HELLO}, group="anyk.commands", list="hello_command:hello")
    assert "strategies" in command("list").output
    said = " ".join(command("--help").output.split())
    assert "A command of 'anyk-hello 1.0', which cannot be reached: anyk has a command of this name." in said
    for name in ("anyk-a", "anyk-b"):
        install(name, {"hello_command.py": HELLO}, group="anyk.commands", hello="hello_command:hello")
    result = command("hello", "world")
    said = " ".join(result.output.split())
    assert result.exit_code == 2 and "in the distributions 'anyk-a 1.0' and 'anyk-b 1.0'; uninstall all but one" in said
