"""The package as a whole: what importing costs, what README and docs say, and that examples run."""

import ast
import importlib.util
import inspect
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

import anyk
from anyk.base.registries import Registry
from anyk.cli import main
from doclines import FILES, lines_of, pages
from programs import Programs
from surface import DISTRIBUTIONS, modules

ROOT = Path(__file__).parents[1]
EXTRA = {"click", "rich", "matplotlib", "sklearn", "scipy", "pandas", "pyarrow", "cloudpickle", "safetensors", "torch",
         "jax", "optax"}  # fmt: skip


@pytest.fixture(scope="module")
def programs():
    started = Programs()
    yield started
    started.close()


def modules_after(code):
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"], capture_output=True, text=True, check=True
    )
    return {name.partition(".")[0] for name in done.stdout.split()}


def test_import_anyk_imports_nothing_heavy():
    assert not modules_after("import anyk") & EXTRA
    assert not modules_after("import anyk; anyk.strategy('frc:load=3,wait=11', workers=30)") & EXTRA


def test_help_needs_only_click():
    assert modules_after("from anyk.cli import main") & EXTRA == {"click"}


def cycles(**options):
    """The modules that import themselves by way of others."""
    import grimp

    graph = grimp.build_graph(*(package.__name__ for package in DISTRIBUTIONS), **options)
    for importer in graph.find_modules_that_directly_import("anyk"):  # it names all packages, and states the version
        graph.remove_import(importer=importer, imported="anyk")
    return {
        module
        for module in graph.modules
        for imported in graph.find_modules_directly_imported_by(module)
        if graph.find_shortest_chain(importer=imported, imported=module) is not None
    }


def test_no_module_imports_itself_by_way_of_others():
    assert not cycles(exclude_type_checking_imports=True)


def test_types_alone_tie_a_code_and_its_decoder():
    """A code makes its decoder, which reads the code: each names the other's type, and nothing else does so."""
    assert cycles() == {"anyk.codes.base", "anyk.codes.decoders", "anyk.codes.made"}


def test_every_public_name_is_there():
    for name in anyk.__all__:
        assert getattr(anyk, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = anyk.trian
    assert [name for name in dir(anyk) if not name.startswith("__")] == sorted(anyk.__all__)


def need_modules(code):
    """Skip where libraries of models are not installed that only tests use."""
    for name in ("equinox", "flax", "transformers"):
        if re.search(rf"^(import|from) {name}\b", code, flags=re.M) and importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed; pip install 'anyk[test]' brings it")


def code_blocks():
    for path in pages():
        content = path.read_text(encoding="utf-8")
        blocks = re.findall(r"^```python\n(.*?)^```", content, flags=re.M | re.S)
        if blocks:
            yield pytest.param("\n".join(blocks), id=path.name)


@pytest.mark.slow(always=True)
@pytest.mark.parametrize("code", list(code_blocks()))
def test_the_docs_code_runs(code, tmp_path, programs):
    """The Python blocks of a page, in order, as one script."""
    need_modules(code)
    script = tmp_path / "page.py"
    script.write_text(code, encoding="utf-8")
    done = programs.script(script, folder=tmp_path)
    assert done.returncode == 0, done.stderr


def command_lines():
    for path in pages():
        for line in lines_of(path):
            yield pytest.param(line, id=f"{path.name}: {line[:40]}")


@pytest.mark.parametrize("line", list(command_lines()))
def test_the_docs_commands_are_understood(line, tmp_path):
    """Every command shown exists with the options shown; those marked fast are run by the page's own tests."""
    words = line.partition("#")[0].split()
    groups = {"codes", "strategies", "graphs", "cluster", "trace"}
    command = (
        words[1:3]
        if words[1] in groups and words[2:3] and words[2] in ("show", "compare", "threshold", "check", "record")
        else words[1:2]
    )
    result = CliRunner().invoke(main, [*command, "--help"])
    assert result.exit_code == 0, result.output
    help_text = result.output
    for word in words[2:]:
        if word.startswith("--"):
            assert word.partition("=")[0] in help_text, f"{word} is no option of {words[1]}"


def pages_with_commands():
    pages = sorted((ROOT / "docs" / "writing").glob("*.md"))
    assert len(pages) == 12  # one for each thing that can be registered: none is left out
    return [pytest.param(page, id=page.name) for page in pages]


@pytest.mark.slow
@pytest.mark.parametrize("page", pages_with_commands())
def test_the_commands_of_what_one_writes_run(page, tmp_path, programs):
    """A page on writing something begins with a file to save, which its commands name."""
    page_text = page.read_text(encoding="utf-8")
    file = re.search(r"`(\w+\.py)`:\n\n```python\n(.*?)^```", page_text, flags=re.M | re.S)
    (tmp_path / file[1]).write_text(file[2], encoding="utf-8")
    for name in ("houses.jsonl", "jobs.log"):  # which the pages on formats and on records read
        (tmp_path / name).write_text(FILES[name], encoding="utf-8")
    lines = re.findall(r"^\$ anyk (.*)$", page_text, flags=re.M)
    assert lines and all(file[1] in line for line in lines)
    for line in lines:
        done = programs.module("anyk", *line.split(), folder=tmp_path)
        assert done.returncode == 0, f"anyk {line}: {done.stderr}"


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(p.name for p in (ROOT / "examples").glob("*.py")))
def test_examples_run_as_they_stand(name, programs):
    need_modules((ROOT / "examples" / name).read_text(encoding="utf-8"))
    done = programs.script(ROOT / "examples" / name, folder=ROOT)
    assert done.returncode == 0, done.stderr


def test_examples_are_short():
    for name in ("new_code.py", "new_strategy.py"):
        lines = (ROOT / "examples" / name).read_text().splitlines()
        body = [line for line in lines[lines.index(next(x for x in lines if x.endswith('"""'))) + 1 :] if line.strip()]
        assert len(body) < 40, name


@pytest.mark.slow
def test_plug_ins_work_without_touching_the_package(tmp_path, programs):
    for file, spec in (("new_code.py", "ring"), ("new_code.py", "ring:wait=5"), ("new_strategy.py", "turns")):
        words = [
            "train",
            "--plugin",
            str(ROOT / "examples" / file),
            "--strategy",
            spec,
            "--out",
            spec.replace(":", "-"),
        ]
        words += ["--data", "synthetic", "--workers", "7", "--cluster", "simulated", "--delays", "exp:mean=1"]
        done = programs.module("anyk", *words, "--steps", "5", folder=tmp_path)
        assert done.returncode == 0, done.stderr
        assert spec in done.stdout


@pytest.mark.slow
def test_programs_end_as_they_do_by_themselves(tmp_path, programs):
    """What these tests run forked is what a user starts: arguments, folder, warnings as errors, and every way to end."""
    script = tmp_path / "beside" / "program.py"
    script.parent.mkdir()
    for text, status, said in (
        ("import atexit; atexit.register(print, 'the end')", 0, "the end"),
        ("import os, sys; print(*sys.argv, sys.path[0], os.getcwd(), __name__)", 0, "__main__"),
        ("print(sorted({'anyk', 'torch', 'jax'} & {*__import__('sys').modules}))", 0, "[]"),
        ("raise SystemExit('too late')", 1, "too late"),
        ("raise SystemExit(7)", 7, ""),
        ("import warnings; warnings.warn('old')", 1, "UserWarning: old"),
        ("print(input())", 1, "EOFError"),
        ("def f(): pass\nimport pickle; print(pickle.loads(pickle.dumps(f)) is f)", 0, "True"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -9, ""),
    ):
        script.write_text(text, encoding="utf-8")
        forked = programs.script(script, folder=tmp_path)
        alone = subprocess.run(
            [sys.executable, "-W", "error", script],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        assert forked.stdout == alone.stdout and said in forked.stdout + forked.stderr
        assert forked.returncode == alone.returncode == status
        assert forked.stderr.splitlines()[-1:] == alone.stderr.splitlines()[-1:]


def test_the_readme_is_short_and_counts_right():
    from anyk_papers import items

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.splitlines()) <= 130
    codes = len({entry.name for entry in anyk.codes.registry})
    assert f"{codes} exact and approximate codes" in readme and f"{len(items())} figures and tables" in readme


@pytest.mark.slow
def test_docstring_examples_run(monkeypatch):
    """Every example in a docstring, collected over all modules."""
    import doctest

    failures = []
    count = 0
    for registry in [value for module in modules() for value in vars(module).values() if isinstance(value, Registry)]:
        monkeypatch.setattr(registry, "entries", dict(registry.entries))  # some examples register a thing of their own
    for module in modules():
        if ">>>" not in Path(module.__file__).read_text(encoding="utf-8"):  # a second, for all that have no example
            continue
        result = doctest.testmod(module, optionflags=doctest.ELLIPSIS, extraglobs={"anyk": anyk, "np": np})
        failures += [module.__name__] * bool(result.failed)
        count += result.attempted
    assert not failures
    assert count > 40


def test_every_public_method_has_a_docstring():
    """Ruff's D102 would demand that overrides repeat the docstrings that they inherit.

    What implements a protocol without inheriting from it has the protocol's docstring; how a strategy handles an event,
    by ``on_reply`` and the like, is described where it decides.
    """
    missing, checked, protocols = [], 0, set()
    for module in modules():
        if module.__name__.startswith("anyk_papers.gallery."):
            continue
        for owner in vars(module).values():
            if not inspect.isclass(owner) or owner.__module__ != module.__name__ or owner.__name__.startswith("_"):
                continue
            methods = [name for name in vars(owner) if not name.startswith("_") and is_method(owner, name)]
            checked += len(methods)
            if getattr(owner, "_is_protocol", False):
                protocols |= {name for name in methods if vars(owner)[name].__doc__}
            for name in methods:
                if not any(vars(base)[name].__doc__ for base in owner.__mro__ if name in vars(base)):
                    missing.append(f"{module.__name__}.{owner.__name__}.{name}")
    events = [name for name in missing if name.startswith("anyk.strategies.") and ".on_" in name]
    assert not [name for name in missing if name not in events and name.rpartition(".")[2] not in protocols]
    assert checked > 1000


def is_method(owner, name):
    """Return whether the class's own source defines a method or computed property of this name."""
    value = vars(owner)[name]
    function = getattr(value, "__func__", None) or getattr(value, "fget", None) or getattr(value, "func", None) or value
    return inspect.isfunction(function) and function.__qualname__ == f"{owner.__qualname__}.{name}"


def test_nothing_in_the_project_names_where_it_was_made():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if tracked.returncode:
        pytest.skip("not a git checkout")
    for name in tracked.stdout.split():
        content = (ROOT / name).read_bytes().decode(errors="ignore")
        assert not re.search(r"/(?:work|root|home)/[a-z]", content), name


def test_the_script_is_installed():
    assert shutil.which("anyk", path=os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"])


@pytest.mark.slow(always=True)
def test_only_the_log_speaks_sql():
    statement = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|CREATE) ")
    statements = []
    for module in modules():
        if module.__name__.startswith("anyk.runs.log"):
            continue
        tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
        texts = (
            node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
        )
        statements += [f"{module.__name__}: {constant}" for constant in texts if statement.match(constant)]
    assert not statements


@pytest.fixture
def run_tests():
    """The program behind scripts/test."""
    spec = importlib.util.spec_from_file_location("run_tests", ROOT / "scripts" / "run_tests.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_scripts_find_the_tests_of_a_module_or_file(run_tests):
    designs = ["tests/codes/test_designs.py"]
    for name in ("src/anyk/codes/designs.py", "codes/designs", "anyk.codes.designs", "tests/codes/test_designs.py"):
        assert run_tests.tests_of_name(name) == designs
    assert run_tests.tests_of_name("codes") == run_tests.tests_of_name("src/anyk/codes/__init__.py") == ["tests/codes"]
    assert designs[0] in run_tests.tests_of_name("tests/code_oracles.py")  # which they import
    oracle, kernel = "decompile/tests/oracle", "tests/world/kernel"  # not by their full names: this file uses neither
    assert "decompile/tests/test_texts.py" in run_tests.tests_of_name(f"{oracle}.py")
    assert run_tests.tests_of_name(f"{kernel}.py") == ["tests/world"]  # other helpers import it
    for name in (".", "conftest.py", "pyproject.toml", "constraints.txt"):
        assert run_tests.tests_of_name(name) == ["tests", "decompile/tests", "papers/tests"]
    assert run_tests.tests_of_name("papers/src/anyk_papers/lab.py") == [
        "papers/tests/test_broken.py",
        "papers/tests/test_gallery.py",
    ]
    with pytest.raises(SystemExit, match="no package, module, file or test 'desings'"):
        run_tests.tests_of_name("desings")


def test_a_commit_draws_its_share_of_slow_tests(run_tests, request, monkeypatch):
    conftest = request.config.pluginmanager.get_plugin(str(ROOT / "conftest.py"))
    tests = [SimpleNamespace(nodeid=f"tests/test_it.py::test_it[{case}]") for case in range(12_000)]
    of_one, of_other = (
        {test.nodeid for test in tests if conftest._is_drawn(test, draw)} for draw in ("one", "another")
    )
    share = 1 / conftest.ONE_IN
    for drawn, chance in ((of_one, share), (of_other, share), (of_one & of_other, share**2)):
        assert abs(len(drawn) - 12_000 * chance) <= 4 * math.sqrt(12_000 * chance)  # standard deviations
    commands: list[list[str]] = []
    monkeypatch.setattr(run_tests.os, "execv", lambda program, command: commands.append(command))
    for arguments in ([], ["--all"], ["codes"], ["--draw", "one"]):
        monkeypatch.setattr(sys, "argv", ["run_tests.py", *arguments])
        run_tests.main()
    plain, every, named, drawn_by_one = commands
    assert plain[-2:] == ["--draw", run_tests.draw()]
    assert "--draw" not in every + named
    assert drawn_by_one[-2:] == ["--draw", "one"]
    monkeypatch.setenv("PATH", "")
    assert run_tests.draw() == "sources"  # where there is no git


@pytest.mark.slow
def test_slow_tests_that_are_not_drawn_are_deselected(tmp_path):
    (tmp_path / "conftest.py").write_text((ROOT / "conftest.py").read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "test_both.py").write_text(
        "import pytest\n\n\n@pytest.mark.slow\n@pytest.mark.parametrize('case', range(100))\ndef test_slow(case): ...\n"
        "\n\n@pytest.mark.slow(always=True)\n@pytest.mark.parametrize('case', range(100))\ndef test_always(case): ...\n"
        "\n\n@pytest.mark.slow(always=True)\n@pytest.mark.parametrize('case', [pytest.param(n, marks=pytest.mark.slow) for"
        " n in range(100)])\ndef test_cases_of_it(case): ...\n"
        "\n\n@pytest.mark.parametrize('case', range(100))\ndef test_quick(case): ...\n"
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--collect-only",
        "--rootdir",
        str(tmp_path),
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "tests")}
    shown = {
        draw: subprocess.run(
            [*command, *draw, str(tmp_path)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=250
        ).stdout.splitlines()
        for draw in ((), ("--draw", "one"), ("--draw", "two"))
    }
    every, one, two = ({line for line in lines if "::" in line} for lines in shown.values())
    assert len(every) == 400
    for drawn in (one, two):
        assert sum("test_quick" in name for name in drawn) == sum("test_always" in name for name in drawn) == 100
        assert 1 <= sum("test_slow" in name for name in drawn) <= 25
        assert 1 <= sum("test_cases_of_it" in name for name in drawn) <= 25
    assert one != two


def test_scripts_run_no_test_of_a_folder_twice(run_tests):
    names = ["tests/codes/test_mds.py::test_a", "tests/codes", "tests/graphs/test_mixing.py", "tests/codes"]
    assert run_tests.without_repeats(names) == ["tests/codes", "tests/graphs/test_mixing.py"]
