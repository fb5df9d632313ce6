"""Rounds: every worker works on the same version, and a wait rule ends the round."""
