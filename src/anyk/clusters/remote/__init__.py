"""Clusters on the wall clock: the parts common to processes, MPI ranks and Ray actors."""
