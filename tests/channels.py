"""What comes through the channels between processes is limited where it arrives; the channels are listed here.

| channel | limited in |
| --- | --- |
| run.toml, race.toml, auto.toml, plan.toml | their msgspec types; at most 64 MiB; tests/end_to_end/test_sentinels.py |
| rows of the log | anyk.runs.log.schema.wrong_rows; tests/runs/log/test_schema.py |
| checkpoints, predictors, tables, traces, matrices, specs | anyk.tables, safetensors; tests/test_readers.py |
| reports of workers of ``processes``: records in a pipe | Reports.read; tests/clusters/processes/test_reports.py |
| texts of workers: their error boxes | Reports.read: ERROR_BOX; tests/clusters/processes/test_reports.py |
| news of the helper program: lines of JSON | Helper.news; tests/clusters/processes/test_helper_program.py |
| messages of workers: reply buffers | SharedStore.contents, Remote._on_reply: length, task and chunk; tests/world |
| orders to workers: mail boxes | MailBox.take: checksum; tests/clusters/processes/test_memory.py |
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

from anyk.base.errors import BadInput, RunFailed

MOST = 64 << 20  # bytes


def limited(read: Callable[[], Any]) -> bool:
    """Call; return whether it was refused, in one sentence, and check what memory it took."""
    tracemalloc.start()
    try:
        read()
    except (RunFailed, BadInput) as error:
        assert "\n" not in str(error)
        return True
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < MOST
    return False
