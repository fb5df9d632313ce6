"""Workers on several machines, on each of which torchrun, srun or ssh has started one process.

Started with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in the environment of each process: every rank runs the
program, and the cluster makes nodes of all ranks but the first, which leave the program there when the first has ended.
Control is encrypted and authenticated (CurveZMQ). Models, messages and data are read by whoever needs them, in pieces
that are checked against digests which came by the control connection, before anything is made of them.
"""

from anyk.clusters.nodes.hub import join_nodes, nodes_of_job
from anyk.clusters.nodes.nodes import Nodes
from anyk.clusters.nodes.slices import SliceCopies, no_slices
from anyk.clusters.nodes.survey import MachineSurvey, survey_nodes

__all__ = ["Nodes", "MachineSurvey", "SliceCopies", "join_nodes", "no_slices", "nodes_of_job", "survey_nodes"]
