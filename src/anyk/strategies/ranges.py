"""Ranges of settings of several strategies, in addition to :mod:`anyk.checks`."""

from __future__ import annotations

from typing import Annotated

import msgspec

_MOST = 1e308  # excludes infinity

Finite = Annotated[float, msgspec.Meta(gt=0, le=_MOST)]
FiniteOrZero = Annotated[float, msgspec.Meta(ge=0, le=_MOST)]
