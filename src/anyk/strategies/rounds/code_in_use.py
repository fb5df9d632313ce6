"""The code in use: the code, the tasks and the decoder of the present round."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from anyk.codes import Code
from anyk.codes.decoders import METHODS, Decoder, LeastSquaresDecoder, SetDecoder
from anyk.protocol import Command, Task
from anyk.strategies.rounds.elastic import Elastic, fleet_note
from anyk.strategies.rounds.round_settings import RoundSettings
from anyk.strategies.rounds.state import RoundState


@dataclass(frozen=True, repr=False)
class CodeInUse(RoundSettings):
    """The code, the tasks and the decoder of the present round, and what its replies give."""

    @cached_property
    def _elastic(self) -> Elastic | None:
        return self.changes if isinstance(self.changes, Elastic) else None

    def _note_time(self, s: RoundState, worker: int) -> None:
        """Note the time of a reply, as shares or numbers of local steps follow the speed of workers."""
        self.code_rule.note_reply(s, worker)
        self.work.note_reply(s, worker)

    def _use_code(self, s: RoundState, code: Code) -> None:
        s.code = code
        s.tasks = self._tasks if code is self.first_code else self.work.tasks(code, self._samples)
        s.row_sums = np.asarray(code.encoding.sum(axis=1), dtype=np.float64).ravel()
        s.expected = code.expected
        s.count = self._count_of(s.expected)

    @cached_property
    def _tasks(self) -> tuple[tuple[Task, ...], ...]:
        return self.work.tasks(self.first_code, self._samples)

    def _fresh(self, code: Code) -> Decoder:
        if self.own_decoder:
            return code.decoder()
        if self.work.method == METHODS["least-squares"]:
            return LeastSquaresDecoder(code, self.work.method)
        return SetDecoder(code, self.work.method)

    def _restart_decoder(self, s: RoundState) -> None:
        """Give a fresh decoder the replies that this round has."""
        s.decoder = self._fresh(s.code)
        for worker, value in s.values.items():
            s.decoder.measure(worker, value)
        for reply in s.values or s.task_of:  # replies that are projected count with their projections
            s.decoder.add(reply)

    def _follow(self, s: RoundState) -> list[Command]:
        """Adapt the code to the workers that are present; return a note about it."""
        code = None if self._elastic is None else self._elastic.followed(self, s)
        if code is None:
            return []
        before = s.code
        self._use_code(s, code)
        return [fleet_note(self, s, before)]

    def _lacks_messages(self, s: RoundState) -> bool:
        """Return whether this round lacks messages of workers that have left, whoever else replies."""
        if self._elastic is None:
            return False
        replies = self.work.fewest_replies
        if replies is None and self.enough.approximate:
            replies = s.count or 1
        return self._elastic.lacks_messages(s, replies)

    def _has_replied(self, s: RoundState, worker: int) -> bool:
        messages = self.code.messages
        return all(worker * messages + c in s.task_of for c in range(messages))
