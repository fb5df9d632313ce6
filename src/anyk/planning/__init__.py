"""Planning: what codes and fleets are worth before anything is trained."""

from anyk.planning.codes import Curve, Facts, compare_codes, facts, survey

__all__ = ["Curve", "Facts", "compare_codes", "facts", "survey"]
