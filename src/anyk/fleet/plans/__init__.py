"""Plans: which strategy to run on a measured fleet, what it gains, and whether a run kept the promise."""
