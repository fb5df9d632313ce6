"""Explanations: what slow workers cost a fleet, and why."""
