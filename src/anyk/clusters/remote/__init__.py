"""Workers that run by themselves, on the wall clock: what is the same wherever they run."""
