"""Workers on Ray that have been taken over answer what they like; a line of JSON an attack: what the driver made of it.

``python tests/clusters/ray_attacks.py``; remote/test_wire.py runs it.
"""

from __future__ import annotations

import gc
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import anyk
from anyk.clusters.ray import actor as actors
from anyk.testing import Squares

RAN = "ANYK_TEST_RAN"  # names the file that code of a worker writes in the driver


class Evil:
    """An object whose unpickling writes a file."""

    def __reduce__(self) -> Any:
        return (eval, (f"open({os.environ[RAN]!r}, 'a').write(str(__import__('os').getpid()) + '\\n') and None",))


class EvilError(Exception):
    """An error whose unpickling writes a file."""

    def __reduce__(self) -> Any:
        return Evil().__reduce__()


def an_object(self: Any, *packed: Any) -> Any:
    return Evil()


def a_list(self: Any, *packed: Any) -> Any:
    return [(Evil(), None)]


def an_error(self: Any, *packed: Any) -> Any:
    raise EvilError("taken over")


def noise(self: Any, *packed: Any) -> Any:
    return b"\x80\x05noise" * 9


def a_huge_head(self: Any, *packed: Any) -> Any:
    return b"\xff" * 64


def error_in_slices(self: Any, *packed: Any) -> Any:
    raise EvilError("taken over")


def objects_in_slices(self: Any) -> Any:
    """Objects of Python where slices of a message should be."""
    return Evil()


SLICES = (error_in_slices, objects_in_slices)


attacking: Any = None  # in the modules whose functions have been taken over


def answering(news: Any) -> Any:
    return attacking(None)


def take_over(function: Any, attack: Any) -> None:
    """Have a function do something else from now on, also where it has been looked up already, to be called later."""
    function.__globals__["attacking"] = attack
    function.__code__ = answering.__code__


class Attacked(Squares):
    """A problem whose workers are taken over when they load their partitions."""

    attack: Any = None

    def split(self, partitions: int, shares: Any = None) -> Any:
        return Attackers(super().split(partitions, shares), self.attack)


class Attackers:
    def __init__(self, of: Any, attack: Any) -> None:
        self.of, self.sizes, self.dimension, self.dtype, self.attack = of, of.sizes, of.dimension, of.dtype, attack

    def load(self, partitions: Any) -> None:
        if os.environ.get("ANYK_WORKER") == "0" and self.attack is not None:
            if self.attack is objects_in_slices:
                actors.bytes = self.attack  # type: ignore[attr-defined]
            else:
                take_over(actors.pack_reports, self.attack)
                take_over(actors.pack_announced, self.attack)
        self.of.load(partitions)

    def support(self, partition: int) -> Any:
        return self.of.support(partition)

    def partial_gradient(self, partition: int, w: Any, rows: Any = None, /) -> Any:
        return self.of.partial_gradient(partition, w, rows)


def main() -> None:
    ran = Path(tempfile.mkdtemp()) / "ran"
    os.environ[RAN] = str(ran)
    with anyk.clusters.Ray(2, cpus=1.0) as ours:
        ours.prepare()  # one Ray for all attacks
        for attack in (None, an_object, a_list, an_error, noise, a_huge_head, *SLICES):
            problem = Attacked(2)
            problem.attack = attack
            cluster = anyk.clusters.Ray(2, cpus=0.5, slices="nodes" if attack in SLICES else "")
            cluster.patience = 2  # deaths of a worker after which it is abandoned
            try:
                ended = f"{anyk.train(problem, 'uncoded', cluster, steps=3, evaluate=None).steps} steps"
            except Exception as error:
                ended = f"{type(error).__name__}: {error}"
            gc.collect()
            time.sleep(1.0)  # Ray tells errors that nobody has asked for after a while
            code = ran.read_text().split() if ran.exists() else []
            name = "none" if attack is None else attack.__name__
            print(json.dumps([name, ended, str(os.getpid()) in code]), flush=True)


if __name__ == "__main__":
    main()
