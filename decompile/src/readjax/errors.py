"""The one kind of error: a function or a text that cannot be used."""

from __future__ import annotations


class ReadJaxError(ValueError):
    """A function that cannot be written, or a text that cannot be run; one sentence says why, and what works."""
