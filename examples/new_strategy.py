"""A strategy of one's own. Try: anyk train --plugin examples/new_strategy.py --strategy turns"""

from dataclasses import dataclass

import anyk
from anyk.protocol import Chunk, Combine, Dispatch, Failed, Joined, Layout, Lost, Reply, Stop, Strategy
from anyk.strategies import Crew


@dataclass(slots=True)
class Turn:
    """What changes in a run: who is there, and whose turn it is."""

    crew: Crew
    worker: int = -1
    task: int = -1
    busy: bool = False


@anyk.strategies.register("turns")
@dataclass(frozen=True, repr=False)
class Turns(Strategy):
    """One worker at a time computes on its partition, and the model steps with what it sends."""

    workers: int
    State, spec = Turn, "turns"

    @property
    def layout(self):
        return Layout(self.workers, partitions=self.workers, assignment=tuple((i,) for i in range(self.workers)))

    def start(self, fleet):
        return (state := Turn(Crew.of(fleet))), self.next_turn(state)

    def on(self, state, event):
        step = []
        if isinstance(event, (Reply, Failed)) and state.busy and event.task == state.task:  # others come late
            state.busy = False
            step = [Combine("model", [(event.task, 0)], [1.0], "counted")] if isinstance(event, Reply) else []
        elif isinstance(event, Joined):
            state.crew.join(event.worker)
        elif isinstance(event, Lost):
            state.crew.lose(event)
            state.busy = state.busy and event.worker != state.worker
            if state.crew.hopeless:
                return [Stop("every worker has been given up", failed=True)]
        return [*step, *self.next_turn(state)]

    def next_turn(self, state):
        if state.busy or not state.crew.present:
            return []
        state.worker = turn = min(state.crew.present, key=lambda i: (i <= state.worker, i))  # the next, or the first
        state.task, state.busy = state.crew.number(1), True
        return [Dispatch(state.task, (turn,), ((Chunk((turn,), (1.0,)),),))]
