"""The public surface as sorted lines of text: commands with their options, specs with their keys, public members.

    python tests/surface.py                       print how the surface differs from tests/surface.txt
    python tests/surface.py --write               write tests/surface.txt, to be reviewed as a diff
    python tests/surface.py --moved a.b=a.c ...   compare as if package a.b were already called a.c

A member is called by its package and its name. One that several packages export is described at the first of them;
the others say where. Annotations are written without the names of modules. No package is named here.
"""

from __future__ import annotations

import argparse
import difflib
import functools
import importlib
import inspect
import pkgutil
import re
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import click

import anyk
import anyk_papers
import readjax
from anyk.base.registries import Registry

DISTRIBUTIONS = (anyk, anyk_papers, readjax)
SNAPSHOT = Path(__file__).with_name("surface.txt")
MODULE_PREFIX = re.compile(r"\b(?:[A-Za-z_]\w*\.)+(?=[A-Za-z_])")
ADDRESS = re.compile(r" at 0x[0-9a-f]+")
EMPTY = inspect.Parameter.empty


def modules() -> list[ModuleType]:
    """All modules of the three distributions."""
    found = []
    for package in DISTRIBUTIONS:
        names = [info.name for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
        found += [package, *(importlib.import_module(name) for name in sorted(names) if not name.endswith("__main__"))]
    return found


def ours(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).partition(".")[0] in {package.__name__ for package in DISTRIBUTIONS}


# ------------------------------------------------------------------------------------------- values and signatures


def shown(value: Any) -> str:
    """A default or a constant, the same on every version of Python."""
    if inspect.isclass(value) or inspect.isroutine(value):
        return str(value.__qualname__)
    if type(value) in (list, tuple) and value:
        return f"{type(value).__name__}({', '.join(map(shown, value))})"
    return ADDRESS.sub("", repr(value))


def annotation(value: Any) -> str:
    if value is None or value is type(None):
        return "None"
    if isinstance(value, type) and not hasattr(value, "__origin__") and not hasattr(value, "__args__"):
        return value.__qualname__
    text = getattr(value, "__forward_arg__", value if isinstance(value, str) else repr(value))
    text = re.sub(r"ForwardRef\('([^']*)'[^)]*\)", r"\1", ADDRESS.sub("", text))
    text = MODULE_PREFIX.sub("", text).replace("NoneType", "None").replace("~", "")
    return re.sub(r"ndarray\[.*dtype\[(\w+)\]\]", r"NDArray[\1]", text)  # as written by other versions of NumPy


def signature(function: Any, *, method: bool = False) -> str:
    """``(a: int, *, b: str = 'x') -> None``; ``method``: without its first parameter."""
    try:
        found = inspect.signature(function)
    except (TypeError, ValueError):
        return "(...)"
    parameters = list(found.parameters.values())[method:]
    plain = found.replace(
        parameters=[p.replace(annotation=EMPTY, default=EMPTY) for p in parameters], return_annotation=EMPTY
    )
    text = str(plain)
    for p in parameters:
        typed = "" if p.annotation is EMPTY else f": {annotation(p.annotation)}"
        default = "" if p.default is EMPTY else f" = {shown(p.default)}"
        text = re.sub(rf"(?<=[(* ]){p.name}(?=[,)])", lambda _, new=p.name + typed + default: new, text, count=1)
    return text + ("" if found.return_annotation is EMPTY else f" -> {annotation(found.return_annotation)}")


# ------------------------------------------------------------------------------------------- members


def class_line(cls: type, homes: dict[int, str]) -> str:
    """Its public bases, and how it is made."""
    bases = ", ".join(base.__name__ for base in cls.__mro__[1:] if id(base) in homes)
    head = f"class({bases})" if bases else "class"
    if getattr(cls, "_is_protocol", False):
        return head
    makers = [vars(base)[name] for base in cls.__mro__ for name in ("__init__", "__new__") if name in vars(base)]
    return f"{head} {signature(cls)}" if ours(makers[0]) or hasattr(cls, "_fields") else head


def attributes(cls: type) -> Iterator[str]:
    """Public attributes and methods that anyk itself defines, inherited ones included."""
    values: dict[str, Any] = {}
    for base in reversed([base for base in cls.__mro__ if ours(base)]):
        values |= dict.fromkeys(inspect.get_annotations(base)) | vars(base)
    for name, value in values.items():
        if name.startswith("_") and name != "__call__":
            continue
        if isinstance(value, (classmethod, staticmethod)):
            kind = type(value).__name__
            yield f"{name} {kind} {signature(value.__func__, method=kind == 'classmethod')}"
        elif isinstance(value, (property, functools.cached_property)):
            getter = value.fget if isinstance(value, property) else value.func
            yield f"{name} property{signature(getter, method=True)[2:]}"
        elif inspect.isfunction(value):
            yield name + signature(value, method=True)
        else:
            yield f"{name} attribute"


def class_lines(cls: type, path: str, homes: dict[int, str]) -> Iterator[str]:
    """A class and its attributes, without those that a public base has with the same signature."""
    inherited = {line for base in cls.__mro__[1:] if id(base) in homes for line in attributes(base)}
    yield f"{path} {class_line(cls, homes)}"
    yield from (f"{path}.{line}" for line in attributes(cls) if line not in inherited)


def constant(value: Any) -> str:
    """A number or text, an alias of types, or what kind of object it is."""
    if type(value) in (str, int, float, bool, tuple):
        return f"= {shown(value)}"
    if typing.get_origin(value) is not None:
        return f"alias {annotation(getattr(value, '__origin__', value) if hasattr(value, '__metadata__') else value)}"
    return type(value).__name__


def member_lines(found: list[ModuleType]) -> Iterator[str]:
    exported = [
        (f"{module.__name__}.{name}", getattr(module, name))
        for module in found
        for name in sorted(getattr(module, "__all__", ()))
    ]
    homes: dict[int, str] = {}
    for path, value in exported:
        if ours(value) and (inspect.isclass(value) or inspect.isroutine(value)):
            homes.setdefault(id(value), path)
    for path, value in exported:
        if homes.get(id(value), path) != path:
            yield f"{path} is {homes[id(value)]}"
        elif inspect.ismodule(value):
            yield f"{path} module"
        elif id(value) not in homes:
            yield f"{path} {constant(value)}"
        elif inspect.isclass(value):
            yield from class_lines(value, path, homes)
        else:
            yield path + signature(value)


# ------------------------------------------------------------------------------------------- specs and commands


def spec_lines(found: list[ModuleType]) -> Iterator[str]:
    """Every entry of every registry that some module has as a global variable."""
    values = (value for module in found for value in vars(module).values())
    for registry in {id(value): value for value in values if isinstance(value, Registry)}.values():
        given = f" given {', '.join(registry.supplied)}" if registry.supplied else ""
        yield f"spec {registry.kind}:{given}"
        for entry in registry:
            if not ours(entry.build):  # registered by a test
                continue
            keys = [
                f"{key}: {annotation(p.annotation)}" + ("" if p.default is EMPTY else f" = {shown(p.default)}")
                for key, p in entry.parameters().items()
            ]
            further = entry.further()
            keys += [f"**: {annotation(further)}"] if further is not None else []
            yield f"spec {registry.kind}: {entry.name}({', '.join(keys)})" + (" grid" if entry.grid else "")


def sentence(text: str | None) -> str:
    return " ".join(inspect.cleandoc(text or "").split())


def type_of(param: click.Parameter) -> str:
    kind = param.type
    if isinstance(kind, click.Choice):
        return "|".join(map(str, kind.choices))
    if isinstance(kind, (click.IntRange, click.FloatRange)):
        return f"{kind.name} {kind.min}..{kind.max}"
    if isinstance(kind, click.Path):
        flags = [name for name in ("exists", "file_okay", "dir_okay") if getattr(kind, name)]
        return " ".join([kind.name, *flags])
    return kind.name


def command_lines(command: click.Command, path: str) -> Iterator[str]:
    yield f"command {path}: {sentence(command.help)} {sentence(command.epilog)}".rstrip()
    for param in command.params:
        names = "/".join([*param.opts, *param.secondary_opts])
        default = param.default() if inspect.isfunction(param.default) else param.default
        parts = [names, param.human_readable_name if isinstance(param, click.Argument) else "", type_of(param)]
        parts += [f"metavar {param.metavar}"] if param.metavar else []
        parts += [f"default {shown(default)}"] if default is not None and "UNSET" not in repr(default).upper() else []
        parts += [f"nargs {param.nargs}"] if param.nargs != 1 else []
        parts += [
            word for word in ("required", "multiple", "is_flag", "hidden", "envvar") if getattr(param, word, False)
        ]
        kind = "argument" if isinstance(param, click.Argument) else "option"
        text = " ".join(filter(None, parts)) + f": {sentence(getattr(param, 'help', ''))}"
        yield f"{kind} {path} {text}".rstrip(": ")
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from command_lines(below, f"{path} {name}")


def surface() -> list[str]:
    from anyk.cli import main

    found = modules()
    return sorted({*command_lines(main, "anyk"), *spec_lines(found), *member_lines(found)})


def difference(moved: list[str] | None = None) -> list[str]:
    """Unified diff from the stored surface to the present; ``moved``: old=new names of packages."""
    text = SNAPSHOT.read_text(encoding="utf-8") if SNAPSHOT.exists() else ""
    for old, _, new in (pair.partition("=") for pair in moved or []):
        text = re.sub(rf"\b{re.escape(old)}\b", new, text)
    return list(difflib.unified_diff(sorted(text.splitlines()), surface(), "stored", "present", n=0, lineterm=""))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--moved", nargs="*", metavar="OLD=NEW")
    given = parser.parse_args()
    if given.write:
        SNAPSHOT.write_text("\n".join(surface()) + "\n", encoding="utf-8")
        return 0
    lines = difference(given.moved)
    print(*lines, sep="\n", end="\n" * bool(lines))
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
