"""Weights for one new straggler set and for one seen before; and what is left of exactness at scale.

One core, sets drawn at random; a set is decoded once, through Code.decode, with nothing remembered. The peer is one
dense least-squares solve (NumPy) of a set of bgc's, which is what a code without structure or sparsity would cost.
"""

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import time  # noqa: E402

import numpy as np  # noqa: E402
from common import show  # noqa: E402

import anyk  # noqa: E402

GOALS = (
    ("frc:load=10", 1000, 9, 0.2), ("binary:stragglers=30", 1000, 30, 0.2), ("bibd", 993, 50, 0.2),
    ("cyclic:stragglers=10", 1000, 10, 5), ("cyclic:stragglers=50", 1000, 50, 5), ("mds:stragglers=10", 1000, 10, 5),
    ("bgc:load=10", 1000, 300, 15), ("sbc:load=10", 1000, 300, 15), ("biregular:load=8", 1000, 200, 15),
    ("expander:load=6", 1000, 200, 15), ("graph:load=4", 20_000, 4_000, 20), ("tree:children=31", 992, 1, None),
    ("frc:load=10", 10_000, 9, None), ("binary:stragglers=30", 10_000, 30, None), ("bgc:load=10", 10_000, 3000, None),
    ("cyclic:stragglers=10", 10_000, 10, None), ("biregular:load=8", 10_000, 2000, None),
)  # fmt: skip


def timed(call):
    began = time.perf_counter()
    result = call()
    return (time.perf_counter() - began) * 1e3, result


print("milliseconds for the weights of one set")
for spec, n, stragglers, goal in GOALS:
    code = anyk.code(spec, workers=n)
    random = np.random.default_rng(0)
    code.decode(np.arange(n))  # what is built once
    new, seen = [], []
    for _ in range(9):
        replies = np.sort(random.choice(n, n - stragglers, replace=False))
        new.append(timed(lambda replies=replies, code=code: code.decode(replies))[0])
        seen.append(timed(lambda replies=replies, code=code: code.decode(replies))[0])
    show(f"{spec}, n = {n:,}, {stragglers} stragglers", new, "ms", f"under {goal}" if goal else "")
    show("    the same set again", seen, "ms", "under 0.05" if n <= 1000 else "")

code = anyk.code("bgc:load=10", workers=1000)
dense = code.encoding.toarray()[np.random.default_rng(0).choice(1000, 700, replace=False)].T
peer = [timed(lambda: np.linalg.lstsq(dense, np.ones(1000), rcond=None))[0] for _ in range(3)]
show("peer: dense least squares, bgc, n = 1,000", peer, "ms")

print("\nlargest error max|a B - 1|, random and neighbouring stragglers")
for spec, n, goal in (
    ("frc:stragglers=15", 1000, 0.0), ("binary:stragglers=15", 1000, 0.0), ("binary:stragglers=7", 10_000, 0.0),
    ("cyclic:stragglers=3", 30, 1e-9), ("cyclic:stragglers=9", 100, 1e-9), ("cyclic:stragglers=15", 256, 1e-9),
    ("cyclic:stragglers=63", 256, 1e-9), ("cyclic:stragglers=9", 1000, 1e-7), ("cyclic:stragglers=19", 1000, 1e-7),
    ("mds:stragglers=9", 100, None), ("mds:stragglers=15", 256, None),
):  # fmt: skip
    code = anyk.code(spec, workers=n)
    s, random = code.tolerates, np.random.default_rng(1)
    sets = [random.choice(n, s, replace=False) for _ in range(20)]
    neighbours = [(np.arange(s) + first) % n for first in range(0, n, max(1, n // 20))]
    for name, chosen in (("random", sets), ("neighbouring", neighbours)):
        worst = [code.decode(np.setdiff1d(np.arange(n), lost)).worst for lost in chosen]
        show(f"{spec}, n = {n:,}, {name}", [max(worst)], "", "" if goal is None else f"at most {goal:g}")
