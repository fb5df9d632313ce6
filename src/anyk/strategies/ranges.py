"""Ranges of settings that several strategies share, besides those of :mod:`anyk.checks`."""

from __future__ import annotations

from typing import Annotated

import msgspec

_MOST = 1e308  # keeps out infinity

Finite = Annotated[float, msgspec.Meta(gt=0, le=_MOST)]
FiniteOrZero = Annotated[float, msgspec.Meta(ge=0, le=_MOST)]
