"""Strategies: when to wait, when to step."""

from anyk.strategies.averaging.adapting import AdaptingSteps, adapted_tau
from anyk.strategies.averaging.cooperative import CooperativeSGD
from anyk.strategies.averaging.gossip import DecentralisedSGD, ElasticSGD, Gossip, MatchaSGD
from anyk.strategies.averaging.local_steps import LocalSteps
from anyk.strategies.averaging.pairwise import PairwiseGossip
from anyk.strategies.catalogue import adacomm, adasync, fedbuff, gradual, hierarchical, pasgd
from anyk.strategies.closed_forms import discard_seconds
from anyk.strategies.compressed import Compressed
from anyk.strategies.construction import (
    check_recorded,
    complete_spec,
    from_spec,
    register,
    registry,
    resolve_paths,
    rounds,
    strategy,
)
from anyk.strategies.crew import Crew, CrewStrategy
from anyk.strategies.kfamily.growth import AdaSync, Gradual, Growth, adapted_k, k_for_delays, k_for_noise
from anyk.strategies.kfamily.kfamily import KFamily
from anyk.strategies.kfamily.observed import Durations, order_means
from anyk.strategies.rounds.anytime import Anytime
from anyk.strategies.rounds.balance import Balance
from anyk.strategies.rounds.checked_rounds import CheckedRounds
from anyk.strategies.rounds.coded_rounds import Rounds
from anyk.strategies.rounds.elastic import Elastic
from anyk.strategies.rounds.gradients import Gradients
from anyk.strategies.rounds.on_demand import ProgressRounds
from anyk.strategies.rounds.snapshot import Snapshot
from anyk.strategies.rounds.tree_rounds import TreeRounds
from anyk.strategies.sequential import End, GradientCodingRounds, Multiplexed, SelectiveRepetition, SequentialRounds
from anyk.strategies.sequential.patterns import (
    Arbitrary,
    Bursty,
    GilbertElliott,
    PerRound,
    StragglerModel,
    smallest_arbitrary,
    smallest_bursty,
    stragglers,
)
from anyk.strategies.sequential.replay import LEAST as LEAST_SECONDS
from anyk.strategies.sequential.replay import Decided, KnownRounds, Tolerance, as_bits
from anyk.strategies.sequential.replay import replay as replay_rounds
from anyk.strategies.sequential.replay import selective as replay_selective
from anyk.strategies.wait import (
    Adaptive,
    AllOf,
    AnyOf,
    Count,
    Deadline,
    Decodable,
    Fraction,
    Predicate,
    ResidualBelow,
    Wait,
    Waiting,
    WaitLike,
    register_wait,
    wait_rule,
)
from anyk.strategies.wait import registry as wait_rules

__all__ = [
    "LEAST_SECONDS",
    "AdaSync",
    "AdaptingSteps",
    "Adaptive",
    "AllOf",
    "AnyOf",
    "Anytime",
    "Arbitrary",
    "Balance",
    "Bursty",
    "CheckedRounds",
    "Compressed",
    "CooperativeSGD",
    "Count",
    "Crew",
    "CrewStrategy",
    "Deadline",
    "DecentralisedSGD",
    "Decided",
    "Decodable",
    "Durations",
    "Elastic",
    "ElasticSGD",
    "End",
    "Fraction",
    "GilbertElliott",
    "Gossip",
    "GradientCodingRounds",
    "Gradients",
    "Gradual",
    "Growth",
    "KFamily",
    "KnownRounds",
    "LocalSteps",
    "MatchaSGD",
    "Multiplexed",
    "PairwiseGossip",
    "PerRound",
    "Predicate",
    "ProgressRounds",
    "ResidualBelow",
    "Rounds",
    "SelectiveRepetition",
    "SequentialRounds",
    "Snapshot",
    "StragglerModel",
    "Tolerance",
    "TreeRounds",
    "Wait",
    "WaitLike",
    "Waiting",
    "adacomm",
    "adapted_k",
    "adapted_tau",
    "adasync",
    "as_bits",
    "check_recorded",
    "complete_spec",
    "discard_seconds",
    "fedbuff",
    "from_spec",
    "gradual",
    "hierarchical",
    "k_for_delays",
    "k_for_noise",
    "order_means",
    "pasgd",
    "register",
    "register_wait",
    "registry",
    "replay_rounds",
    "replay_selective",
    "resolve_paths",
    "rounds",
    "smallest_arbitrary",
    "smallest_bursty",
    "stragglers",
    "strategy",
    "wait_rule",
    "wait_rules",
]
