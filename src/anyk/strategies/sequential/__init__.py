"""Coding over time: gradient codes across workers and rounds, for stragglers that come in bursts.

Job t, a step of model t mod M, begins in round t and is done by the end of round t + T. In a round every worker gets
one task; whoever is not done when it ends, by ``1 + mu`` times the fastest or as soon as there is enough, is a
straggler, if the code can do with that.
(Krishnan, Ebrahimi and Khisti, *Sequential gradient coding for straggler mitigation*, ICLR 2023.)
"""

from anyk.strategies.sequential.gc import GradientCodingRounds
from anyk.strategies.sequential.m_sgc import Multiplexed
from anyk.strategies.sequential.replay import End
from anyk.strategies.sequential.rounds import SequentialRounds
from anyk.strategies.sequential.sr_sgc import SelectiveRepetition

__all__ = ["End", "GradientCodingRounds", "Multiplexed", "SelectiveRepetition", "SequentialRounds"]
