"""Change one place of the package at a time, in a copy, and see whether a test fails.

    python scripts/mutants.py map tests/codes -m "not slow"      which tests execute which lines, and for how long
    python scripts/mutants.py try codes strategies --count 100   change 100 places; list what no test noticed

``map`` passes its arguments to pytest and adds to the map. ``try`` picks places at random, and for each runs the tests
that execute its line, cheap ones first, until one fails. A change that survives shows a fact that no test asserts, or
code that does nothing; or it changes only speed. In the end each test has the number of changes that it was the first
to notice: an expensive test without any may be redundant. Needs ``pip install coverage``, and a system with fork.
"""

from __future__ import annotations

import argparse
import ast
import collections
import compileall
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import coverage
import hypothesis
import pytest
import scipy.optimize
import scipy.sparse.linalg
import scipy.stats  # noqa: F401  loaded once, before forks

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "anyk"
PYTEST = ["-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
KEPT = (ast.Raise, ast.JoinedStr, ast.Import, ast.ImportFrom, ast.Assert)  # texts and imports
REMOVABLE = (ast.AugAssign, ast.Delete, ast.Return, ast.Continue, ast.Break, ast.Raise)
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
SWAPS: dict[type[ast.AST], list[type[ast.AST]]] = {
    ast.Lt: [ast.LtE, ast.GtE], ast.LtE: [ast.Lt, ast.Gt], ast.Gt: [ast.GtE, ast.LtE], ast.GtE: [ast.Gt, ast.Lt],
    ast.Eq: [ast.NotEq], ast.NotEq: [ast.Eq], ast.In: [ast.NotIn], ast.NotIn: [ast.In], ast.Is: [ast.IsNot],
    ast.IsNot: [ast.Is], ast.Add: [ast.Sub], ast.Sub: [ast.Add], ast.Mult: [ast.Div], ast.Div: [ast.Mult],
    ast.And: [ast.Or], ast.Or: [ast.And], ast.BitOr: [ast.BitAnd], ast.BitAnd: [ast.BitOr],
}  # fmt: skip
Change = tuple[Path, ast.Module, ast.AST, str, int | None, ast.AST, ast.AST, int]


def without_one(items: list[ast.AST]) -> list[list[ast.AST]]:
    return [[*items[:index], *items[index + 1 :]] for index in range(len(items))]


def variants(node: ast.AST) -> list[ast.AST]:
    """Return what a node may be replaced by."""
    match node:
        case ast.Constant(value=bool() as value):
            return [ast.Constant(not value)]
        case ast.Constant(value=int() | float() as value):
            return [ast.Constant(value + 1), ast.Constant(value - 1)]
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            return [node.operand]
        case ast.BoolOp(op=op, values=values):
            return [rest[0] if len(rest) == 1 else ast.BoolOp(op, rest) for rest in without_one(values)]
        case ast.IfExp():
            return [node.body, node.orelse]
        case ast.If():
            return [ast.If(ast.Constant(value), node.body, node.orelse) for value in (False, True)]
        case ast.comprehension(ifs=[_, *_]):
            return [ast.comprehension(node.target, node.iter, [], node.is_async)]
        case ast.Name(id="min" | "max" | "any" | "all" as name):
            return [ast.Name(NAMES[name])]
        case ast.Call(keywords=[_, *_]):
            return [ast.Call(node.func, node.args, rest) for rest in without_one(node.keywords)]
        case ast.Expr(value=ast.Constant()):
            return []
        case ast.Expr() | ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            return [ast.Pass()]
    return [ast.Pass()] if isinstance(node, REMOVABLE) else [new() for new in SWAPS.get(type(node), ())]


def places(node: ast.AST, line: int = 0) -> Iterator[tuple[ast.AST, str, int | None, ast.AST, int]]:
    """Yield each node below one: its parent, field and index, itself, and the line of its statement."""
    for field, value in ast.iter_fields(node):
        if field not in ("annotation", "returns", "decorator_list"):
            for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
                if isinstance(child, ast.AST):
                    at = child.lineno if isinstance(child, ast.stmt) else line
                    yield node, field, index, child, at
                    if not isinstance(child, KEPT):
                        yield from places(child, at)


def changes(file: Path) -> list[Change]:
    """Return all changes of a file."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return [(file, tree, *place[:4], new, place[4]) for place in places(tree) for new in variants(place[3])]


def changed(change: Change) -> tuple[str, str]:
    """Return a change in one line, and the text of the changed file."""
    file, tree, parent, field, index, old, new, line = change
    around = isinstance(old, (ast.operator, ast.cmpop, ast.boolop))
    before = ast.unparse(parent if around else old).partition("\n")[0]
    items = parent.__dict__ if index is None else getattr(parent, field)
    items[field if index is None else index] = new
    after = ast.unparse(parent if around else new).partition("\n")[0]
    text = ast.unparse(ast.fix_missing_locations(tree))
    items[field if index is None else index] = old
    return f"{file.relative_to(PACKAGE)}:{getattr(old, 'lineno', line)}: {before}  ->  {after}", text


class Mapping:
    """A plugin of pytest that notes which lines each test executes, and its duration."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / "seconds.json"
        self.seconds: dict[str, float] = json.loads(self.file.read_text()) if self.file.exists() else {}
        self.coverage = coverage.Coverage(data_file=str(folder / "lines"), source=[str(PACKAGE)], config_file=False)
        if self.seconds:
            self.coverage.load()
        self.coverage.start()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.coverage.switch_context(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self.seconds[report.nodeid] = report.duration

    def pytest_sessionfinish(self) -> None:
        self.coverage.stop()
        self.coverage.save()
        self.file.write_text(json.dumps(self.seconds))


class Choice:
    """A plugin of pytest that runs tests in a given order, and notes the first that fails."""

    def __init__(self, tests: list[str]) -> None:
        self.tests, self.failed = tests, ""

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)  # a failure needs no smallest example
        hypothesis.settings.register_profile("mutants", hypothesis.settings(), phases=phases)
        hypothesis.settings.load_profile("mutants")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        order = {test: place for place, test in enumerate(self.tests)}
        items[:] = sorted((item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed = self.failed or report.nodeid


def first_failure(tests: list[str], source: Path, limit: float) -> str:
    """Run tests in a forked process; return the first that fails, or why they could not run; empty if all pass."""
    reading, writing = os.pipe()
    process = os.fork()
    if not process:
        os.setsid()
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        sys.path[:0] = [str(source), str(ROOT / "tests")]
        os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:2])
        choice, files = Choice(tests), dict.fromkeys(test.partition("::")[0] for test in tests)
        status = pytest.main(["-x", *PYTEST, *files], plugins=[choice])
        os.write(writing, (choice.failed or (f"pytest: {status!r}" if status else "")).encode())
        os._exit(0)
    os.close(writing)
    end = time.monotonic() + limit
    with os.fdopen(reading, "rb") as pipe:
        while os.waitpid(process, os.WNOHANG) == (0, 0):
            if time.monotonic() > end:
                os.killpg(process, signal.SIGKILL)
                os.waitpid(process, 0)
                return "time limit"
            time.sleep(0.02)
        os.set_blocking(reading, False)
        return (pipe.read() or b"").decode()


def try_changes(options: argparse.Namespace, folder: Path) -> None:
    """Try changes at random, and print those that survive."""
    seconds: dict[str, float] = json.loads((options.map / "seconds.json").read_text())
    data = coverage.CoverageData(str(options.map / "lines"))
    data.read()
    files = [
        file
        for name in options.arguments
        for file in sorted([*PACKAGE.glob(f"{name}.py"), *(PACKAGE / name).rglob("*.py")])
    ]
    sample = [change for file in files for change in changes(file)]
    print(f"{len(sample)} changes in {len(files)} files")
    random.Random(options.seed).shuffle(sample)
    shutil.copytree(PACKAGE, folder / "anyk", ignore=shutil.ignore_patterns("__pycache__"))
    compileall.compile_dir(folder / "anyk", quiet=1)
    sys.dont_write_bytecode = True
    outcomes, noticed, first = collections.Counter[str](), collections.Counter[str](), tuple(options.first)
    for change in sample[: options.count]:
        contexts = data.contexts_by_lineno(str(change[0]))
        names = {name for line in (change[7], getattr(change[5], "lineno", 0)) for name in contexts.get(line, [])}
        if "" in names:  # executed when the file is imported
            names = {name for of in contexts.values() for name in of}
        tests, left = [], options.seconds
        for name in sorted(names & seconds.keys(), key=lambda name: (not name.startswith(first), seconds[name])):
            left -= seconds[name] + 0.005
            if left > 0:
                tests.append(name)
        shown, text = changed(change)
        copy = folder / "anyk" / change[0].relative_to(PACKAGE)
        copy.write_text(text, encoding="utf-8")
        failure = first_failure(tests, folder, 30 + 3 * options.seconds) if tests else ""
        shutil.copy2(change[0], copy)  # with its time, so that the compiled file is used again
        outcome = "killed" if failure else "survived" if tests else "not executed"
        outcomes[outcome] += 1
        noticed[failure] += bool(failure)
        if not failure or options.verbose:
            more = "" if left > 0 else " and more"
            print(f"{outcome} ({len(tests)}{more} tests): {shown}  {failure}", flush=True)
    print(*(f"{count} {outcome}" for outcome, count in outcomes.items()), sep=", ")
    print(*(f"{count} first noticed by {name}" for name, count in noticed.most_common() if count), sep="\n")


def main() -> int:
    """Map tests, or try changes; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["map", "try"])
    parser.add_argument("arguments", nargs="+", help="tests, or packages and modules of anyk such as codes/mds")
    parser.add_argument("--map", type=Path, default=Path(tempfile.gettempdir()) / "anyk-mutants", help="its folder")
    parser.add_argument("--count", type=int, default=50, help="changes to try (50)")
    parser.add_argument("--seed", type=int, default=0, help="which changes (0)")
    parser.add_argument("--first", nargs="*", default=[], metavar="TEST", help="tests to run before cheaper ones")
    parser.add_argument("--seconds", type=float, default=60, help="of tests for each change (60)")
    parser.add_argument("--verbose", action="store_true", help="print changes that a test notices, too")
    options, others = parser.parse_known_args()
    os.chdir(ROOT)
    if options.action == "map":
        sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
        return int(pytest.main([*PYTEST, *options.arguments, *others], plugins=[Mapping(options.map)]))
    with tempfile.TemporaryDirectory() as folder:
        try_changes(options, Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
