"""Values of a parameter that are worth planning with."""

from __future__ import annotations

from collections.abc import Callable, Iterator


def rising(least: int, most: int) -> Iterator[int]:
    """Every whole number up to 4, then about 1.4 times the one before.

    >>> list(rising(2, 20))
    [2, 3, 4, 6, 8, 11, 15]
    """
    value = least
    while value <= most:
        yield value
        value = max(value + 1, round(1.4 * value)) if value >= 4 else value + 1


def spread(name: str, key: str, least: int = 1, most: int = 32) -> Callable[[int], Iterator[str]]:
    """A grid of specs over one key, with :func:`rising` values up to half of the workers."""
    return lambda workers: (f"{name}:{key}={value}" for value in rising(least, min(most, workers // 2)))
