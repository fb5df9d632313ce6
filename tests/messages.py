"""The sentences of bad input, to see which ones a change takes away or adds.

As raised by tests; every test process appends to a file of its own in the folder:

    ANYK_MESSAGES=FOLDER scripts/test             collect them
    python tests/messages.py FOLDER               compare with tests/messages.txt
    python tests/messages.py FOLDER --write       write tests/messages.txt: a full run only

As written in the source, without running anything:

    python tests/messages.py --static                     list them
    python tests/messages.py --static --against COMMIT    list those that have gone (-) or are new (+) since the commit

Of a sentence that was raised, whatever stands for a value is masked: quoted text, numbers, paths, specs and lists. Of a
sentence in the source the fields of an f-string are masked, and all that a variable stands for.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import io
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SNAPSHOT = Path(__file__).with_name("messages.txt")
ERRORS = ("BadInput", "UnknownName", "NotDecodable", "MissingPackage")
MASKS = (
    (r"\s+", " "),
    (r"(?<!\w)'(?:[^']|(?<=\w)'(?=\w))*'|\"[^\"]*\"|`[^`]*`", "…"),
    (r"\b(known|did you mean|its keys|nearest|one of)\b:?[^;)]*", r"\1 …"),
    (r"\bgot (?:\([^()]*\)|[^;)])*", "got …"),
    (r"<[^<>]*>|\[[^\[\]]*\]|\{[^{}]*\}", "…"),
    (r"\S*[/\\]\S+", "…"),
    (r"[\w-]+(?::\w+)?=\S+|\b[\w-]+:(?=\S)\S+", "…"),
    (r"[-+−]?\b\d(?:[\w.,%]*[\w%])?", "…"),
    (r"…(?:(?:, | and | or | to |-|x| x |\.)…)+", "…"),
)  # fmt: skip


# ------------------------------------------------------------------------------------------- as raised


def masked(message: str) -> str:
    for pattern, mask in MASKS:
        message = re.sub(pattern, mask, message)
    return message.strip()


def record(folder: str) -> None:
    """From now on, append each sentence of bad input to a file of this process (``conftest.py`` calls this)."""
    from anyk.base.errors import BadInput

    Path(folder).mkdir(parents=True, exist_ok=True)
    seen: set[str] = set()

    def __init__(self: BaseException, *args: Any) -> None:
        ValueError.__init__(self, *args)
        message = masked(str(self))
        if message not in seen:
            seen.add(message)
            with open(Path(folder, f"{os.getpid()}.txt"), "a", encoding="utf-8") as file:
                file.write(message + "\n")

    BadInput.__init__ = __init__  # type: ignore[assignment]


def collected(folder: Path) -> set[str]:
    return {line for file in folder.glob("*.txt") for line in file.read_text(encoding="utf-8").splitlines()}


# ------------------------------------------------------------------------------------------- as written


def template(node: ast.expr) -> str:
    """The text of an expression, with … for what is not known before it runs."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(map(template, node.values))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return template(node.left) + template(node.right)
    if isinstance(node, ast.IfExp):
        return f"({template(node.body)}|{template(node.orelse)})"
    return "…"


def templates(sources: Mapping[str, str]) -> list[str]:
    """One line for each place that makes an error of bad input; ``sources``: the text of each file."""

    def of_file(text: str) -> Iterator[str]:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute)):
                name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
                if name in ERRORS:
                    yield f"{name}: {'; '.join(map(template, node.args))}"

    return sorted(line for text in sources.values() for line in of_file(text))


def sources(commit: str | None) -> dict[str, str]:
    """The text of each file of the package, now or at a commit."""
    if commit is None:
        return {str(file): file.read_text(encoding="utf-8") for file in (ROOT / "src").rglob("*.py")}
    packed = subprocess.run(["git", "archive", commit, "src"], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        found = [member for member in archive if member.name.endswith(".py")]
        return {member.name: archive.extractfile(member).read().decode() for member in found}


def difference(was: list[str], now: list[str]) -> list[str]:
    lines = difflib.unified_diff(was, now, "before", "now", n=0, lineterm="")
    return [line for line in lines if not line.startswith("@@")]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--static", action="store_true")
    parser.add_argument("--against", metavar="COMMIT")
    given = parser.parse_args()
    if given.static and not given.against:
        print(*templates(sources(None)), sep="\n")
        return 0
    if given.static:
        lines = difference(templates(sources(given.against)), templates(sources(None)))
    elif given.folder is None:
        parser.error("give the FOLDER that the tests wrote to, or --static")
    elif given.write:
        SNAPSHOT.write_text("".join(f"{line}\n" for line in sorted(collected(given.folder))), encoding="utf-8")
        return 0
    else:
        was = SNAPSHOT.read_text(encoding="utf-8").splitlines() if SNAPSHOT.exists() else []
        lines = difference(was, sorted(collected(given.folder)))
    print(*lines, sep="\n", end="\n" * bool(lines))
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
