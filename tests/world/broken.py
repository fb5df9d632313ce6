"""The failure of an auditor."""

from __future__ import annotations


class Broken(AssertionError):
    """Something does not hold; ``auditor``: which of the auditors noticed."""

    def __init__(self, auditor: str, what: str) -> None:
        super().__init__(f"{auditor}: {what}")
        self.auditor = auditor
