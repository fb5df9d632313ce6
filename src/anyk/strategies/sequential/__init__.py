"""Coding over time: gradient codes across workers and rounds, for stragglers that come in bursts.

Job t, a step of model t mod M, starts in round t and is done by the end of round t + T. In a round every worker gets
one task. A round ends at ``1 + mu`` times its first completion, or as soon as the code can do without the other
workers, which are then stragglers.
(Krishnan, Ebrahimi and Khisti, *Sequential gradient coding for straggler mitigation*, ICLR 2023.)
"""

from anyk.strategies.sequential.gc import GradientCodingRounds
from anyk.strategies.sequential.m_sgc import Multiplexed
from anyk.strategies.sequential.replay import End
from anyk.strategies.sequential.sequential_rounds import SequentialRounds
from anyk.strategies.sequential.sr_sgc import SelectiveRepetition

__all__ = ["End", "GradientCodingRounds", "Multiplexed", "SelectiveRepetition", "SequentialRounds"]
