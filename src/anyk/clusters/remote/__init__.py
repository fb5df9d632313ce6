"""Workers that run by themselves, on the wall clock: the parts that are the same wherever they run."""
