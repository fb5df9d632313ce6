"""Races: several strategies on the same problem and the same stragglers, over one or more seeds."""
