"""A strategy of one's own. Try: anyk train --plugin examples/new_strategy.py --strategy turns"""

import anyk
from anyk.protocol import Chunk, Combine, Dispatch, Joined, Lost, Reply


class Turns:
    """One worker at a time computes on its partition, and the model steps with what it sends."""

    slots = ("model",)
    spec = "turns"

    def __init__(self, workers):
        self.workers = self.partitions = workers
        self.holdings = tuple((i,) for i in range(workers))
        self.now = {"task": -1, "turn": -1, "absent": []}

    def start(self, fleet):
        return self.next_turn()

    def on(self, event):
        if isinstance(event, Reply):
            return [Combine("model", [(event.task, 0)], [1.0], divisor="counted"), *self.next_turn()]
        if isinstance(event, Joined):
            self.now["absent"].remove(event.worker)
        elif isinstance(event, Lost):
            self.now["absent"].append(event.worker)
            return self.next_turn() if event.worker == self.now["turn"] else []
        return []

    def next_turn(self):
        here = [i for i in range(self.workers) if i not in self.now["absent"]]
        turn = next((i for i in here if i > self.now["turn"]), here[0])
        self.now |= {"turn": turn, "task": self.now["task"] + 1}
        return [Dispatch(self.now["task"], (turn,), ((Chunk((turn,), (1.0,)),),))]

    def state(self):
        return dict(self.now)

    def restore(self, state):
        self.now = dict(state)


@anyk.strategies.register("turns")
def turns(workers: int):
    """One worker after another steps the model with its own partition."""
    return Turns(workers)
