"""Count what makes a package large or hard to read: ``count_figures(package)`` returns each figure by place.

A figure is a number that may only fall (scripts/size.py compares it with scripts/sizes.toml). Many of them count words
that are a hint where to read, not a verdict.
"""

import ast
import collections
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

CODE = {tokenize.OP, tokenize.NAME, tokenize.NUMBER, tokenize.STRING}
VAGUE_NAMES = re.compile(
    "_*(found|made|told|known|held|rest|settled|kept|needed|drawn|taken|given|heard|said|left|asked|begun|standing"
    "|chosen|meant|seen)_*"
)
VAGUE_PHRASES = re.compile(
    r"\b(so many|as many as|that of|those of|of which|of them|left out|nobody|somebody|goes? on with|is said|is told"
    r"|are told|hears? of|what (?:is|comes|a user))\b",
    re.IGNORECASE,
)
NO_SUBJECT = re.compile(r"(Of|What|How|That|Where|Who|Whose|Until|As|One|Those|It)\b")
NAMES_OF_SETTINGS = {"config", "given", "settings", "stored"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
NAMES = [
    "Any",
    "class names used twice",
    "classes with more than 20 methods",
    "dialect: function names",
    "dialect: phrases in docstrings",
    "dialect: variables",
    "dict[str, Any]",
    "docstrings 'See ...'",
    "docstrings without a subject",
    "files over 500 lines",
    "fmt: skip",
    "functions over 70 lines",
    "functions with more than 8 parameters",
    "getattr, hasattr",
    "isinstance",
    "module names used twice",
    "private functions with more than 8 parameters",
    "raise BadInput",
    "settings read by key",
    "type: ignore, noqa",
]


def count_tokens(text: str, tree: ast.Module) -> int:
    """Return the number of tokens of code, without docstrings; an f-string is one token on every Python."""
    lines: set[int] = set()
    starts, depth = [], 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        kind = tokenize.tok_name[token.type]
        depth += kind == "FSTRING_START"
        if kind.startswith("FSTRING") or token.type in CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
            if not depth or (depth == 1 and kind == "FSTRING_START"):
                starts.append(token.start[0])
        depth -= kind == "FSTRING_END"
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, *FUNCTIONS)) and ast.get_docstring(node):
            lines.difference_update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return sum(line in lines for line in starts)


def read_function(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """Yield the figures to which a function counts."""
    parameters = [x.arg for x in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    if len(parameters) - (parameters[:1] in (["self"], ["cls"])) > 8:
        yield "functions with more than 8 parameters"
        if node.name.startswith("_") and node.name != "__init__":
            yield "private functions with more than 8 parameters"
    if (node.end_lineno or 0) - node.lineno > 70:
        yield "functions over 70 lines"
    if VAGUE_NAMES.fullmatch(node.name):
        yield "dialect: function names"


def read_docstring(text: str) -> Iterator[str]:
    """Yield the figures to which a docstring counts."""
    yield from ["dialect: phrases in docstrings"] * len(VAGUE_PHRASES.findall(text))
    if NO_SUBJECT.match(text):
        yield "docstrings without a subject"
    if text.startswith("See "):
        yield "docstrings 'See ...'"


def read_node(node: ast.AST) -> Iterator[str]:
    """Yield the figures to which a node of the syntax tree counts."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            yield from read_function(node)
        case ast.ClassDef(body=body) if sum(isinstance(x, FUNCTIONS) for x in body) > 20:
            yield "classes with more than 20 methods"
        case ast.Name(id="Any"):
            yield "Any"
        case ast.Name(id=name, ctx=ast.Store()) if VAGUE_NAMES.fullmatch(name):
            yield "dialect: variables"
        case ast.Call(func=ast.Name(id="getattr" | "hasattr")):
            yield "getattr, hasattr"
        case ast.Call(func=ast.Name(id="isinstance")):
            yield "isinstance"
        case ast.Subscript(value=ast.Name(id="dict" | "Mapping")) if ast.unparse(node.slice) == "(str, Any)":
            yield "dict[str, Any]"
        case ast.Subscript(value=ast.Name(id=name) | ast.Attribute(attr=name), slice=ast.Constant()):
            if name in NAMES_OF_SETTINGS:
                yield "settings read by key"
        case ast.Raise(exc=ast.expr() as raised) if "BadInput" in ast.dump(raised)[:190]:
            yield "raise BadInput"


def count_figures(package: Path) -> tuple[dict[str, collections.Counter[str]], collections.Counter[str]]:
    """Return the places that count to each figure, and the number of tokens of each part of the package."""
    figures = {name: collections.Counter[str]() for name in NAMES}
    tokens = collections.Counter[str]()
    classes: dict[str, list[str]] = collections.defaultdict(list)
    modules: dict[str, list[str]] = collections.defaultdict(list)
    for file in sorted(package.rglob("*.py")):
        text, place = file.read_text(encoding="utf-8"), file.relative_to(package)
        tree = ast.parse(text)
        size = count_tokens(text, tree)
        tokens[place.parts[0] if len(place.parts) > 1 else "modules"] += size
        figures["files over 500 lines"][f"{place}"] = int(text.count("\n") > 500)
        figures["fmt: skip"][f"{place}"] = text.count("# fmt: skip")
        figures["type: ignore, noqa"][f"{place}"] = len(re.findall("type: ignore|noqa", text))
        if file.name != "__init__.py":
            modules[file.stem].append(f"{place}")
        for node in ast.walk(tree):
            where = f"{place}:{getattr(node, 'lineno', 1)} {getattr(node, 'name', '')}".rstrip()
            for figure in read_node(node):
                figures[figure][where] += 1
            if isinstance(node, (ast.Module, ast.ClassDef, *FUNCTIONS)):
                for figure in read_docstring(ast.get_docstring(node) or ""):
                    figures[figure][where] += 1
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(where.partition(" ")[0])
    for figure, names in (("class names used twice", classes), ("module names used twice", modules)):
        figures[figure].update(f"{name}: {', '.join(places)}" for name, places in names.items() if len(places) > 1)
    return figures, tokens
