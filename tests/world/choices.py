"""Random choices that can be repeated, left out one by one, and counted."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

Deviations = Mapping[tuple[str, int], int]  # by place and number of the choice: the option taken instead of the first


class Choices:
    """Chooses among options by three independent random streams: ``schedule``, ``faults`` and ``load``.

    Every choice has a first option, which is what happens undisturbed. A run is determined by its seed, and just as
    well by its ``deviations``, the choices of another option: given these, no random numbers are drawn, so that some
    can be left out to find out which of them matter. There are at most ``most`` deviations of each stream: a few rare
    choices find what many do, and can be understood.
    """

    def __init__(self, seed: int, most: int, only: Deviations | None = None) -> None:
        self._streams = {name: random.Random(f"{seed} {name}") for name in ("schedule", "faults", "load")}
        self._counts = Counter[str]()
        self._left = dict.fromkeys(self._streams, most)
        self._only = only
        self.deviations: dict[tuple[str, int], int] = {}

    def choose(self, stream: str, where: str, options: int, probability: float) -> int:
        """Return 0, or with a probability one of the numbers up to ``options`` - 1.

        ``where``: who chooses. Choices are counted for each of them, so that one more or less elsewhere moves none.
        """
        place = f"{stream} {where}"
        number = self._counts[place]
        self._counts[place] = number + 1
        if self._only is not None:
            option = self._only.get((place, number), 0)
            option = min(option, options - 1)
        else:
            random_ = self._streams[stream]
            option = 0
            if probability and options > 1 and self._left[stream] and random_.random() < probability:
                option = random_.randrange(1, options)
                self._left[stream] -= 1
        if option:
            self.deviations[place, number] = option
        return option
