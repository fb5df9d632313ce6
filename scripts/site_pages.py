"""What the documentation site has beyond docs/: pages made when it is built, and docstrings as Markdown."""

from __future__ import annotations

import inspect
import logging
import re
import sys
from importlib import import_module
from pathlib import Path

import click
import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import anyk
from anyk.cli import main

sys.path.insert(0, str(Path(__file__).parent))
import site_pictures

ROOT = Path(__file__).parents[1]
ANNEXES = {"readjax": "decompile/src", "anyk_papers": "papers/src"}  # distributions beside anyk, read where they are
ROOMS = [*(name for name in anyk.__all__ if hasattr(getattr(anyk, name), "__path__")), "protocol", "sklearn"]
PICTURE = re.compile(r"<!-- picture: (?P<kind>code|strategy) (?P<spec>\S+)(?: workers=(?P<workers>\d+))? -->")
DRAWN: set[str] = set()
PLAIN = {"matrix"}  # a matrix of the user's own
log = logging.getLogger("mkdocs.plugins.anyk")
EXAMPLES = sorted(ROOT.glob("examples/*.py"))
# links out of docs/ lead to pages made here
PLACES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"} | {
    f"examples/{path.name}": f"examples/{path.stem}.md" for path in EXAMPLES
}


# ------------------------------------------------------------------------------------------- hooks of MkDocs


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Enter the pages of the API and of the examples into the navigation."""
    for section in config.nav or []:
        for entry in section.get("Reference", []):
            if "Python" in entry:
                entry["Python"] = [
                    "reference/anyk.md",
                    *(f"reference/{room}.md" for room in [*sorted(ROOMS), *ANNEXES]),
                ]
            if "Examples" in entry:
                entry["Examples"] = [f"examples/{path.stem}.md" for path in EXAMPLES]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made here."""
    for place, text in pages().items():
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Draw the pictures that a page asks for, and lead links out of docs/ to the pages made here."""
    markdown = PICTURE.sub(_drawn, markdown)
    up = "../" * page.file.src_uri.count("/")
    return re.sub(r"(\]\()(?:\.\./)+([\w./-]+)(?=[)#])", lambda link: _inside(link, up), markdown)


def on_post_build(**_: object) -> None:
    """Every code and strategy has its picture on some page."""
    for registry in (anyk.codes.registry, anyk.strategies.registry):
        for missing in sorted({entry.name for entry in registry} - DRAWN - PLAIN):
            log.warning(f"no page has a picture of '{missing}': <!-- picture: {registry.kind} SPEC workers=N -->")


def _drawn(asked: re.Match[str]) -> str:
    spec = asked["spec"]
    DRAWN.add(spec.partition(":")[0])
    if asked["kind"] == "code":
        return site_pictures.code(spec, int(asked["workers"] or 6))
    return site_pictures.timeline(spec, int(asked["workers"] or 5))


def _inside(link: re.Match[str], up: str) -> str:
    return f"{link[1]}{up}{PLACES[link[2]]}" if link[2] in PLACES else link[0]


# ------------------------------------------------------------------------------------------- pages


def pages() -> dict[str, str]:
    """The pages made here, by place."""
    made = {"reference/command-line.md": command_line(), "reference/anyk.md": api("anyk")}
    made |= {f"reference/{room}.md": api(f"anyk.{room}") for room in ROOMS}
    sys.path += [str(ROOT / folder) for folder in ANNEXES.values()]  # here, as MkDocs resets it after its hooks loaded
    made |= {f"reference/{annex}.md": api(annex) for annex in ANNEXES}
    made |= {f"examples/{path.stem}.md": example(path) for path in EXAMPLES}
    made["contributing.md"] = moved("CONTRIBUTING.md")
    made["changelog.md"] = moved("CHANGELOG.md")
    return made


def command_line() -> str:
    """The page of the command line: each command's help and options, as --help prints them."""
    parts = ["# Command line", "The shell can [complete](../guide.md#shell-completion) commands and options."]

    def add(command: click.Command, ctx: click.Context, level: int) -> None:
        parts.append(f"{'#' * level} {ctx.command_path}\n\n{help_of(command)}")
        usage = " ".join([ctx.command_path, *command.collect_usage_pieces(ctx)])
        parts.append(f"```text\n{usage}\n```")
        records = [param.get_help_record(ctx) for param in command.get_params(ctx)]
        rows = [f"| `{name}` | {escape(said)} |" for name, said in filter(None, records) if "--help" not in name]
        if rows:
            parts.append("| option | what it does |\n| --- | --- |\n" + "\n".join(rows))
        if isinstance(command, click.Group):
            for name in command.list_commands(ctx):
                inner = command.get_command(ctx, name)
                add(inner, click.Context(inner, info_name=name, parent=ctx), level + 1)

    add(main, click.Context(main, info_name="anyk"), 2)
    return "\n\n".join(parts) + "\n"


def help_of(command: click.Command) -> str:
    """A command's help as Markdown; paragraphs that Click leaves as they are become code."""
    blocks = inspect.cleandoc(command.help or "").split("\f")[0].split("\n\n")
    return "\n\n".join(
        f"```text\n{block.removeprefix(chr(8)).strip(chr(10))}\n```" if block.startswith("\b") else escape(block)
        for block in blocks
    )


def escape(text: str) -> str:
    """Text of help as Markdown text, in a table or not."""
    return re.sub(r"([<>|*_`\\\[\]])", r"\\\1", text)


def api(module: str) -> str:
    """The page of a module: what it exports, but not the modules among it."""
    if module == "anyk.sklearn":  # importing it takes a second
        return "# anyk.sklearn\n\n::: anyk.sklearn.AnykClassifier\n\n::: anyk.sklearn.AnykRegressor\n"
    found = import_module(module)
    names = found.__all__
    # only what has a docstring of anyk's: classes and functions, not registries and types
    own = [name for name in names if getattr(getattr(found, name), "__module__", "").startswith(("anyk", "readjax"))]
    said = (found.__doc__ or "").strip()
    return f"# {module}\n\n{markdown_of(said)}\n\n" + "\n\n".join(f"::: {module}.{name}" for name in own) + "\n"


def example(path: Path) -> str:
    """A script, as it stands."""
    return f"# {path.name}\n\n```python\n{path.read_text(encoding='utf-8')}```\n"


def moved(name: str) -> str:
    """A page from above docs/, its links as from within."""
    text = (ROOT / name).read_text(encoding="utf-8")
    text = re.sub(r"\]\((?:docs/)([^)]*)\)", r"](\1)", text)
    return re.sub(r"(\]\()([\w./-]+)(?=[)#])", lambda link: _inside(link, ""), text)


# ------------------------------------------------------------------------------------------- docstrings


class Markdown(griffe.Extension):
    """Docstrings as Markdown."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        if obj.docstring is not None and obj.docstring.value.startswith("See :"):
            obj.docstring = None  # what a base class says already
        if obj.docstring is not None:
            obj.docstring.value = markdown_of(obj.docstring.value)


def markdown_of(text: str) -> str:
    """A docstring as Markdown: names as links where they have a page, tables, examples as code."""
    text = re.sub(r":\w+:`(~?)([\w.]+)`", _link, text)
    text = re.sub(r"``([^`]+)``", r"`\1`", text)
    blocks = re.split(r"\n[ \t]*\n", text)
    return "\n\n".join(_block(block) for block in blocks)


def _link(role: re.Match[str]) -> str:
    name = role[2].rpartition(".")[2]
    return f'<autoref optional identifier="{role[2]}"><code>{name}</code></autoref>'


def _block(block: str) -> str:
    lines = block.splitlines()
    if lines and re.fullmatch(r" *=+(?: +=+)+", lines[0]):
        return _table(lines)
    if lines and lines[0].lstrip().startswith(">>>"):
        return "```pycon\n" + "\n".join(lines) + "\n```"
    # a list needs an empty line before it
    return re.sub(r"(?<!\n)\n(\s*)- ", r"\n\n\1- ", block, count=1) if not block.lstrip().startswith("- ") else block


def _table(lines: list[str]) -> str:
    """A simple table of reStructuredText as one of Markdown."""
    edges = [(match.start(), match.end()) for match in re.finditer("=+", lines[0])]
    last = edges[-1][0]
    rows = [
        [line[begin : None if begin == last else end].strip() for begin, end in edges]
        for line in lines
        if not line.lstrip().startswith("==")
    ]
    head, *body = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([head, "|" + " --- |" * len(edges), *body])
