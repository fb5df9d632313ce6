"""A strategy of one's own. Try: anyk train --plugin examples/new_strategy.py --strategy turns"""

from dataclasses import dataclass

from anyk.protocol import Chunk, Combine, Dispatch, Failed, Joined, Layout, Lost, Reply, Stop, Strategy
from anyk.strategies import Crew, register


@dataclass(slots=True)
class Turn:  # the state: what changes in a run
    crew: Crew  # who is present, and the number of the next task
    worker: int = -1  # whose turn it is
    busy: bool = False


@register("turns")
@dataclass(frozen=True, repr=False)
class Turns(Strategy):
    """One worker at a time computes on its partition, and the model steps with what it sends."""

    State = Turn
    spec = "turns"
    workers: int

    @property
    def layout(self):
        return Layout(self.workers, partitions=self.workers, assignment=tuple((i,) for i in range(self.workers)))

    def start(self, fleet):
        state = Turn(Crew.of(fleet))
        return state, self.next_turn(state)

    def on(self, state, event):
        mine = isinstance(event, (Reply, Failed)) and state.busy and event.task == state.crew.next - 1  # else: late
        state.busy = state.busy and not mine
        step = [Combine("model", [(event.task, 0)], [1.0], "counted")] if mine and isinstance(event, Reply) else []
        if isinstance(event, Joined):
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
        turn = min(state.crew.present, key=lambda i: (i <= state.worker, i))  # the next, or the first again
        state.worker, state.busy = turn, True
        return [Dispatch(state.crew.number(1), (turn,), ((Chunk((turn,), (1.0,)),),))]
