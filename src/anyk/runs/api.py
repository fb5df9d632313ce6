"""The door to the rooms of runs: names of their settings, logs, folders and checkpoints that annexes use.

Fleets, views, callbacks, the command line and the suites import from here, or from :mod:`anyk.runs`, never from the
rooms ``engine``, ``evaluation``, ``folder``, ``log`` and ``races``; the import contract keeps it so.
"""

from anyk.runs.callbacks import (
    Callback,
    Callbacks,
    EvaluationInfo,
    LostInfo,
    RunInfo,
    StepInfo,
    StopRun,
    check_callbacks,
)
from anyk.runs.cluster_speed import ClusterSpeed, cluster_speed
from anyk.runs.defaults import check_has_default
from anyk.runs.evaluation.evaluate import USUAL, check_evaluation, read_evaluate
from anyk.runs.floor import SHOWN_FROM
from anyk.runs.folder.checkpoints import NAME as CHECKPOINT_FILE
from anyk.runs.folder.checkpoints import load as load_checkpoint
from anyk.runs.folder.config import NAME as RUN_FILE
from anyk.runs.folder.config import Count, Recipe, RunConfig, SharedConfig, read_config, read_sealed, write_sealed
from anyk.runs.folder.digests import digests_of, with_callbacks, with_plugins
from anyk.runs.folder.drains import describe_shortage
from anyk.runs.folder.folders import check_plain, empty, is_locked, locked, new_folder
from anyk.runs.folder.promise import Estimate, RecordOrigin, Today
from anyk.runs.folder.rebuilding import Rebuilt, cluster_like, describe, rebuild
from anyk.runs.limits import LIMIT, STEPS, Limits, check_limits
from anyk.runs.live_progress import LiveProgress
from anyk.runs.log.copies import COPIES, log_state
from anyk.runs.log.delay_trace import computing_seconds, crowding, driver_seconds, task_seconds
from anyk.runs.log.fates import CUT, FATES, LATE, LOST, OPEN, PHASES, SPARE
from anyk.runs.log.following import LOG as LOG_FILE
from anyk.runs.log.glances import count_updates, faults_after
from anyk.runs.log.queries import TABLES as LOG_TABLES
from anyk.runs.log.queries import (
    decisions,
    finished_works,
    log_columns,
    mean_update,
    newest_seal,
    newest_versions,
    transfers,
    used_works,
    waits_of_steps,
    works,
)
from anyk.runs.log.schema import ASSUMED, DIFFERENT
from anyk.runs.races.race import charged, racers
from anyk.runs.races.race_folder import NAME as RACE_FILE
from anyk.runs.races.race_folder import read_race, run_folders
from anyk.runs.races.speedups import finite_values
from anyk.runs.run import setup
from anyk.runs.spec import fitted
from anyk.runs.training import combine

__all__ = [
    "ASSUMED",
    "CHECKPOINT_FILE",
    "COPIES",
    "CUT",
    "DIFFERENT",
    "FATES",
    "LATE",
    "LIMIT",
    "LOG_FILE",
    "LOG_TABLES",
    "LOST",
    "OPEN",
    "PHASES",
    "RACE_FILE",
    "RUN_FILE",
    "SHOWN_FROM",
    "SPARE",
    "STEPS",
    "USUAL",
    "Callback",
    "Callbacks",
    "ClusterSpeed",
    "Count",
    "Estimate",
    "EvaluationInfo",
    "Limits",
    "LiveProgress",
    "LostInfo",
    "Rebuilt",
    "Recipe",
    "RunConfig",
    "RunInfo",
    "SharedConfig",
    "RecordOrigin",
    "StepInfo",
    "StopRun",
    "Today",
    "charged",
    "check_callbacks",
    "check_evaluation",
    "check_has_default",
    "check_limits",
    "check_plain",
    "cluster_like",
    "cluster_speed",
    "combine",
    "computing_seconds",
    "count_updates",
    "crowding",
    "decisions",
    "describe",
    "describe_shortage",
    "digests_of",
    "driver_seconds",
    "empty",
    "faults_after",
    "finished_works",
    "finite_values",
    "fitted",
    "is_locked",
    "load_checkpoint",
    "locked",
    "log_columns",
    "log_state",
    "mean_update",
    "new_folder",
    "newest_seal",
    "newest_versions",
    "racers",
    "read_config",
    "read_evaluate",
    "read_race",
    "read_sealed",
    "rebuild",
    "run_folders",
    "setup",
    "task_seconds",
    "transfers",
    "used_works",
    "waits_of_steps",
    "with_callbacks",
    "with_plugins",
    "works",
    "write_sealed",
]
