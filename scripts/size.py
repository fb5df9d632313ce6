"""Count the tokens of each package, and fail where there are more than scripts/sizes.toml allows.

Lines can be packed, tokens cannot; comments and docstrings do not count. ``--lower`` writes the present numbers where
they are smaller, so that a package that has become smaller stays so. Raising a number by hand needs a reason that a
user of anyk would accept, in the body of the commit.
"""

import ast
import collections
import sys
import tokenize
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIMITS = Path(__file__).with_name("sizes.toml")
COUNTED = {tokenize.OP, tokenize.NAME, tokenize.NUMBER, tokenize.STRING}


def docstring_lines(tree: ast.Module) -> set[int]:
    """Return the numbers of the lines that docstrings take."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and ast.get_docstring(
            node
        ):
            lines.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return lines


def tokens(file: Path) -> int:
    """Return the number of tokens of a file; an f-string is one, on every version of Python."""
    left_out, count, depth = docstring_lines(ast.parse(file.read_text(encoding="utf-8"))), 0, 0
    with tokenize.open(file) as text:
        for token in tokenize.generate_tokens(text.readline):
            kind = tokenize.tok_name[token.type]
            depth += kind == "FSTRING_START"
            outermost = kind == "FSTRING_START" and depth == 1
            if token.start[0] not in left_out and (outermost or (not depth and token.type in COUNTED)):
                count += 1
            depth -= kind == "FSTRING_END"
    return count


def main() -> int:
    package, sizes = ROOT / "src" / "anyk", collections.Counter[str]()
    for file in sorted(package.rglob("*.py")):
        inside = file.relative_to(package).parts
        sizes[inside[0] if len(inside) > 1 else "modules"] += tokens(file)
    limits = tomllib.loads(LIMITS.read_text(encoding="utf-8")) if LIMITS.exists() else {}
    if "--lower" in sys.argv:
        lowered = {name: min(size, limits.get(name, size)) for name, size in sorted(sizes.items())}
        LIMITS.write_text("".join(f"{name} = {size}\n" for name, size in lowered.items()), encoding="utf-8")
        return 0
    grown = {name: size for name, size in sizes.items() if size > limits.get(name, 0)}
    for name, size in grown.items():
        print(f"anyk.{name} has {size:,} tokens, {limits.get(name, 0):,} are allowed: remove some before adding more")
    return bool(grown)


if __name__ == "__main__":
    sys.exit(main())
