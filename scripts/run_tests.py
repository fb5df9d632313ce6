"""Run all quick tests and some slow ones, all, or those of packages, modules and files; ``scripts/test`` calls this.

``tests/`` mirrors ``src/anyk``: the tests of ``codes/designs.py`` are in ``codes/test_designs.py``. A module
that has no test file is tested by the files in the folder where that would be.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = {"src/anyk": "tests", "decompile/src/readjax": "decompile/tests", "papers/src/anyk_papers": "papers/tests"}
EVERYWHERE = (".", "conftest.py", "pyproject.toml", "constraints.txt")  # what all tests depend on
PAGES = ["tests/test_package.py", "tests/test_doclines.py"]  # they run what pages and examples show


def tests_of_module(module: str, tests: str = "tests") -> list[str]:
    """Return the tests of a module or package, such as ``codes/designs`` or ``codes``, in a folder of tests."""
    path = Path(tests, module)
    if (ROOT / path).is_dir():
        return [str(path)]
    file = path.with_name(f"test_{path.name}.py")
    if (ROOT / file).is_file():
        return [str(file)]
    folder = path.parent
    while not (ROOT / folder).is_dir():
        folder = folder.parent
    beside = sorted(str(test.relative_to(ROOT)) for test in (ROOT / folder).glob("test_*.py"))
    return beside or [str(folder)]


def tests_that_use(helper: str) -> list[str]:
    """Return the tests that import a helper, or run it as a script; those beside it if only helpers use it."""
    stem = re.escape(Path(helper).stem)
    name = re.compile(rf"^\s*(?:from|import) [^#\n]*\b{stem}\b|\b{stem}\.py\b", flags=re.MULTILINE)
    files = [file for tests in SOURCES.values() for file in sorted((ROOT / tests).rglob("test_*.py"))]
    found = [str(file.relative_to(ROOT)) for file in files if name.search(file.read_text(encoding="utf-8"))]
    return found or [str(Path(helper).parent)]  # those beside a helper of helpers


def tests_of_file(file: str) -> list[str]:
    """Return the tests of a file or folder of the repository; none if no test is about it."""
    path = Path(file)
    if file in EVERYWHERE:
        return list(SOURCES.values())
    for source, tests in SOURCES.items():
        if file == source:
            return [tests]
        if file.startswith(f"{source}/"):
            return tests_of_module(file.removeprefix(f"{source}/").removesuffix(".py").removesuffix("/__init__"), tests)
    if "tests" in path.parts:
        if path.suffix in ("", ".py") and (path.name.startswith("test_") or (ROOT / path).is_dir()):
            return [file]
        return [str(path.parent)] if path.stem == "conftest" else tests_that_use(file)
    if path.parts[0] in ("decompile", "papers"):
        return [f"{path.parts[0]}/tests"]
    return PAGES if path.parts[0] in ("docs", "examples") or file == "README.md" else []


def tests_of_name(name: str) -> list[str]:
    """Return the tests of a package, module, file or test; end the program if nothing has that name."""
    file = name.partition("::")[0].rstrip("/")
    if (ROOT / file).exists():
        return [name] if "::" in name else tests_of_file(file)
    module = file.removesuffix(".py").replace(".", "/").removeprefix("anyk/")
    source = ROOT / "src" / "anyk" / module
    if source.is_dir() or source.with_suffix(".py").is_file() or (ROOT / "tests" / module).is_dir():
        return tests_of_module(module)
    raise SystemExit(
        f"scripts/test: no package, module, file or test '{name}'; give packages and modules of src/anyk such as codes "
        "or codes/designs, or paths; arguments of pytest follow all names and start with '-'"
    )


def git(*arguments: str) -> list[str]:
    """Return the lines that git prints; end the program if it fails."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"scripts/test --changed: git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.splitlines()


def changed_files() -> list[str]:
    """Return the files that differ from main, or that git does not know yet."""
    (base,) = git("merge-base", "HEAD", "main")
    files = [*git("diff", "--name-only", base), *git("ls-files", "--others", "--exclude-standard")]
    return [file for file in files if (ROOT / file).exists()]


def draw() -> str:
    """Return what draws the slow tests: the commit, so that each draws others; outside of a repository a word."""
    if shutil.which("git") is None:
        return "sources"
    shown = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return shown.stdout.strip() or "sources"


def without_repeats(tests: list[str]) -> list[str]:
    """Leave out tests that are given twice, or in a folder that is given as well."""
    parents = {test: {str(folder) for folder in Path(test.partition("::")[0]).parents} for test in tests}
    return [test for test in dict.fromkeys(tests) if not parents[test] & set(tests)]


def main() -> None:
    """Run pytest on the tests of the names in the arguments."""
    arguments, options, tests = sys.argv[1:], [], None
    every = False
    while arguments and (arguments[0] in ("--all", "--quick", "--changed") or not arguments[0].startswith("-")):
        name = arguments.pop(0)
        if name == "--all":
            every = True
        elif name == "--quick":
            options += ["-m", "not slow"]
        elif name == "--changed":
            tests = [*(tests or []), *(test for file in changed_files() for test in tests_of_file(file))]
        else:
            tests = [*(tests or []), *tests_of_name(name)]
    if tests == []:
        print("no test belongs to these")
        return
    if tests:
        tests = without_repeats(tests)
        print("tests:", *tests)
    elif not every:
        options += ["--draw", draw()]
    # One more at once than there are cores: tests wait for processes, delays and sockets for a sixth of their time,
    # which would leave cores idle. A process without tests left takes
    # some from another, because the last ones are long.
    workers = str((os.cpu_count() or 2) + 1)
    sys.stdout.flush()
    pytest = [sys.executable, "-m", "pytest", "-n", workers, "--dist", "worksteal"]
    pytest += ["-p", "no:anyio", "-p", "no:jaxtyping"]  # which other packages bring, and no test needs
    os.execv(sys.executable, [*pytest, *options, *(tests or []), *arguments])


if __name__ == "__main__":
    main()
