"""A strategy of one's own. Try: anyk train --plugin examples/new_strategy.py --strategy turns"""

import anyk
from anyk.protocol import Chunk, Combine, Dispatch, Failed, Joined, Layout, Lost, Reply, Stop


@anyk.strategies.register("turns")
class Turns:
    """One worker at a time computes on its partition, and the model steps with what it sends."""

    spec = "turns"

    def __init__(self, workers: int):
        self.workers = workers
        self.layout = Layout(workers, partitions=workers, assignment=tuple((i,) for i in range(workers)))

    def start(self, fleet):
        self.now = {"task": -1, "turn": -1, "busy": False, "here": list(fleet.present), "gone": 0}
        return self.next_turn()

    def on(self, event):
        now, commands = self.now, []
        if isinstance(event, (Reply, Failed)) and now["busy"] and event.task == now["task"]:  # others come late
            now["busy"] = False
            if isinstance(event, Reply):
                commands = [Combine("model", [(event.task, 0)], [1.0], divisor="counted")]
        elif isinstance(event, Joined):
            now["here"] = sorted({*now["here"], event.worker})
        elif isinstance(event, Lost):
            now["here"] = [i for i in now["here"] if i != event.worker]
            now["busy"] = now["busy"] and event.worker != now["turn"]
            now["gone"] += event.gone
            if now["gone"] == self.workers:
                return [Stop("every worker has been given up", failed=True)]
        return [*commands, *self.next_turn()]

    def next_turn(self):
        if self.now["busy"] or not self.now["here"]:
            return []
        turn = min(self.now["here"], key=lambda i: (i <= self.now["turn"], i))  # the next, or the first again
        self.now |= {"turn": turn, "task": self.now["task"] + 1, "busy": True}
        return [Dispatch(self.now["task"], (turn,), ((Chunk((turn,), (1.0,)),),))]

    def state(self):
        return dict(self.now)

    def restore(self, state):
        self.now = dict(state)
