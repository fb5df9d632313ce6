"""Runs write what they wrote before; see dumps.py."""

import pytest

import dumps


def check(names):
    problems, _ = dumps.compare(names)
    assert not problems, "\n".join(problems)


def test_four_runs_write_what_they_wrote():
    assert len(dumps.QUICK) == 4
    check(dumps.QUICK)


@pytest.mark.slow
def test_all_runs_write_what_they_wrote():
    check(dumps.possible())
    logs = {log for log in dumps.written() if not log.startswith(tuple(dumps.RUNS))}
    assert not logs, f"logs of runs that are no more: {sorted(logs)}"


def record(rows, **columns):
    return dumps.Record.of(dumps.Table(rows, columns))


def test_a_renamed_column_is_told_from_a_changed_one():
    was = {"chunks": record(2, task=[0, 1], weight=[0.5, 0.25])}
    renamed = {"chunks": record(2, number=[0, 1], weight=[0.5, 0.25 * (1 + 1e-14)])}
    changed = {"chunks": record(2, task=[0, 1], weight=[0.5, 0.26])}
    texts = [difference for _, difference in dumps.differences(was, renamed, 1e-9)]
    assert texts == ["chunks: the column task is now called number, with the same values"]
    assert [difference for _, difference in dumps.differences(was, changed, 1e-9)] == [
        "chunks: values of the column weight differ"
    ]
    moved = {"messages": was["chunks"]}
    assert [difference for _, difference in dumps.differences(was, moved, 1e-9)] == [
        "chunks: the table is now called messages"
    ]
