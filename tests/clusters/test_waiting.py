"""Waiting for descriptors of any number."""

from __future__ import annotations

import os

from anyk.clusters.waiting import readable


def test_waiting_ends_at_its_time_and_at_an_end() -> None:
    reader, writer = os.pipe()
    assert readable([reader], 0.0) == readable([reader], 0.0015) == set()
    os.close(writer)
    assert readable([reader]) == {reader}  # the end of a pipe can be read
    os.close(reader)
