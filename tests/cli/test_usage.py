"""Help and lists on a screen of 80 columns."""

import click
import pytest
from click.testing import CliRunner

from anyk.cli import main
from anyk.cli.output import wrapped

pytestmark = pytest.mark.slow


def printed(*arguments):
    result = CliRunner().invoke(main, list(arguments), env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    return result.output


def commands(group, path=()):
    for name, command in group.commands.items():
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


def test_help_lists_commands_once_and_fits_the_screen():
    assert sorted(name for names in main.sections.values() for name in names) == sorted(main.commands)
    for path, command in [((), main), *commands(main)]:
        lines = printed(*path, "--help").splitlines()
        assert max(map(len, lines)) <= 80 and not any(line.endswith("...") for line in lines[1:]), path
        first = [line.split()[0].rstrip(",") for line in lines if line.startswith("  ") and line[2:3].strip()]
        for name in getattr(command, "commands", {}):
            assert first.count(name) == 1, (path, name)
        for option in command.params:
            if isinstance(option, click.Option):
                assert first.count(option.opts[0]) == 1, (path, option.opts)


def test_the_options_of_train_are_in_sections():
    titles = [line for line in printed("train", "--help").splitlines() if line.endswith(":") and line[0] != " "]
    assert titles == ["Strategy:", "Problem:", "Workers:", "Optimisation:", "Evaluation and callbacks:", "Results:",
                      "Settings:"]  # fmt: skip


@pytest.mark.parametrize("command", [["list", "strategies"], ["list", "data"], ["list", "codes", "--workers", "4"]])
def test_lists_break_lines_between_words_only(command):
    wide = CliRunner().invoke(main, command).stdout
    narrow = CliRunner().invoke(main, command, env={"COLUMNS": "80"}).stdout
    assert max(map(len, narrow.splitlines())) <= 80 < max(map(len, wide.splitlines()))
    words = {word for line in wide.splitlines() for word in line.split() if word.isalpha()}
    assert words <= set(narrow.split())


def test_wrapped_text_keeps_indentation_and_long_words():
    assert wrapped("    ab cd ef\nghi", 9) == "    ab cd\n    ef\nghi"
    assert wrapped("a " + "b" * 12, 9) == "a\n" + "b" * 12
    assert wrapped("m:a=1,b=2,c=3", 9) == "m:a=1,\nb=2,c=3"
