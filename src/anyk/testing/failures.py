"""Failures of a user's code within a suite."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from anyk.base import BadInput, describe_error


@contextmanager
def failing_as(sentence: str) -> Iterator[None]:
    """Turn any exception of a user's code into an AssertionError that begins with a sentence.

    An AssertionError, or a BadInput, whose sentence says more, stays as it is.
    """
    try:
        yield
    except (AssertionError, BadInput):
        raise
    except Exception as error:  # a user's code may raise anything
        raise AssertionError(f"{sentence}: {describe_error(error)}") from error
