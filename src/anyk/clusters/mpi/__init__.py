"""Workers as MPI ranks: rank 0 drives, the others work. Point-to-point messages only, without blocking.

Started as ``mpiexec -n 31 anyk train … --cluster mpi``, or with a custom script: every rank runs the program, and
the cluster makes workers of all ranks but the first, which leave the program there when the first has ended.
"""

from anyk.clusters.mpi.mpi import Mpi, join

__all__ = ["Mpi", "join"]
