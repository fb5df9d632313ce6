"""Specs of every strategy and code, and a long search for schedules that break them: ``scripts/soak strategies``."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from multiprocessing import get_context

from anyk.base.specs import parse_spec, show_spec
from anyk.protocol import Strategy
from anyk.strategies import strategy
from anyk.testing.strategies import check_strategy

STRATEGIES: tuple[tuple[str, int], ...] = (
    ("uncoded", 6),
    ("sync", 4),
    ("k-sync:k=3", 6),
    ("k-sync:k=2,cancel=discard", 4),
    ("uncoded:wait=0.3s", 5),
    ("uncoded:wait=4|0.2s", 6),
    ("uncoded:wait=2&0.2s", 6),
    ("uncoded:wait=50%", 6),
    ("uncoded:wait=3mad", 5),
    ("uncoded:wait=2&1mad", 4),
    ("uncoded:batch=4", 4),
    ("uncoded:models=2", 4),
    ("frc:load=2", 6),
    ("frc:load=3,wait=2", 6),
    ("frc:load=2,wait=4,scaling=marginal", 6),
    ("frc:load=2,wait=3,scaling=none", 6),
    ("agc:load=2", 6),
    ("agc:load=2,wait=4,snapshot=3", 6),
    ("cyclic:stragglers=2", 6),
    ("cyclic:stragglers=1,decoder=least-squares,wait=3", 5),
    ("cyclic:stragglers=1,decoder=one-step,wait=3", 5),
    ("cyclic:stragglers=1,decoder=algorithmic,wait=3", 5),
    ("cyclic:stragglers=1,decoder=exact", 5),
    ("mds:stragglers=2", 5),
    ("binary:stragglers=2", 7),
    ("nested:stragglers=3", 8),
    ("nested:stragglers=1,kind=cyclic", 5),
    ("nested:stragglers=1,wait=50%", 6),
    ("nested:stragglers=1,wait=0.3s", 6),
    ("progress:load=2", 5),
    ("progress:load=3,placement=random", 6),
    ("progress:load=2,wait=40%|0.5s", 6),
    ("partial", 6),
    ("partial:stragglers=1,wait=8", 6),
    ("bcc:batches=3", 9),
    ("comm-efficient:stragglers=1", 5),
    ("draco", 6),
    ("draco:byzantine=1,stragglers=1", 8),
    ("draco:byzantine=1,kind=cyclic", 6),
    ("draco:byzantine=1,stragglers=1,kind=cyclic", 6),
    ("tree:children=2,stragglers=1", 6),
    ("tree:children=2,stragglers=0", 6),
    ("tree:children=3", 12),
    ("bgc:load=2", 6),
    ("rbgc:load=2", 6),
    ("sbc", 8),
    ("expander:load=3", 8),
    ("biregular:load=3", 6),
    ("graph:load=3", 6),
    ("bibd", 7),
    ("kronecker:left=(frc:load=2),right=(cyclic:stragglers=1),split=2", 6),
    ("hetero:probability=0.2,relearn=3", 6),
    ("hetero:relearn=2,wait=4", 5),
    ("anytime:deadline=0.3,parts=3", 5),
    ("anytime:parts=2,batch=2", 6),
    ("async", 4),
    ("async:stale=distance,bound=0.5,cutoff=4", 4),
    ("async:cutoff=3,compensate=0.1", 4),
    ("k-async:k=3", 5),
    ("k-async:k=2,stale=sqrt,batch=4", 5),
    ("k-batch-async:k=3", 4),
    ("k-batch-async:k=7,stale=inverse", 4),
    ("k-batch-sync:k=3", 5),
    ("k-batch-sync:k=6,batch=2,cancel=discard", 4),
    ("adasync:base=k-async,k=2,interval=0.5", 5),
    ("adasync:base=k-sync,k=2,interval=0.5,rule=delays", 5),
    ("adasync:base=k-batch-sync,k=2,interval=0.5,rule=noise", 5),
    ("adasync:base=k-batch-async,k=2,interval=0.5,rule=noise", 5),
    ("gradual:base=k-sync,k=1,every=3", 4),
    ("gradual:base=k-batch-async,k=1,every=3,by=2", 5),
    ("pasgd:tau=3", 5),
    ("pasgd:tau=3,wait=3,cancel=discard,keep=true,inner=adamw", 5),
    ("pasgd:tau=4,speeds=true", 4),
    ("pasgd:tau=4,speeds=true,wait=0.3s", 4),
    ("pasgd:tau=2,clients=3,outer=slowmo", 6),
    ("pasgd:tau=2,clients=3,wait=2,keep=true", 6),
    ("fedavg:tau=2,clients=3", 6),
    ("slowmo:tau=2", 4),
    ("diloco:tau=3", 4),
    ("adacomm:tau=5,interval=0.5", 4),
    ("adacomm:tau=5,interval=0.5,probe=1/2/5", 4),
    ("fedbuff:tau=2,k=3", 5),
    ("fedbuff:tau=2,k=2,cutoff=3,outer=(nesterov:momentum=0.5),rate=0.5", 4),
    ("dpsgd:graph=ring", 5),
    ("dpsgd:graph=exp,barrier=global", 6),
    ("dpsgd:graph=one-peer,tau=2", 8),
    ("matcha:graph=ring,budget=0.5", 5),
    ("easgd", 4),
    ("easgd:alpha=0.1,tau=2", 6),
    ("hierarchical:groups=2,tau=2,every=3", 5),
    ("coop:matrix=exp,barrier=global", 5),
    ("coop:matrix=complete,auxiliary=1,tau=2", 4),
    ("coop:matrix=ring,auxiliary=2", 5),
    ("coop:matrix=complete,auxiliary=3", 4),
    ("ad-psgd", 4),
    ("gc:stragglers=1", 4),
    ("gc:stragglers=2,end=cutoff,wait=feasible,strict=true", 6),
    ("gc:stragglers=1,wait=minimal,jobs=6", 4),
    ("sr-sgc:B=1,W=2,lambda=2", 4),
    ("sr-sgc:B=2,W=3,lambda=3,wait=feasible", 6),
    ("sr-sgc:B=1,W=2,lambda=2,late=keep,wait=minimal", 5),
    ("sr-sgc:B=1,W=3,lambda=2,jobs=7", 4),
    ("m-sgc:B=1,W=2,lambda=1", 4),
    ("m-sgc:B=1,W=2,lambda=1,end=decodable,inner=frc", 4),
    ("sr-sgc:B=1,W=2,lambda=2,end=decodable,inner=frc", 4),
    ("m-sgc:B=1,W=2,lambda=2,wait=feasible,late=keep", 5),
    ("m-sgc:B=2,W=3,lambda=2,wait=minimal", 5),
    ("m-sgc:B=1,W=2,lambda=4,jobs=6", 4),
    ("compressed", 4),
    ("compressed:of=(k-sync:k=3),by=(top-k:share=0.1)", 5),
    ("compressed:of=(frc:load=2),by=(random-k:share=0.2)", 6),
    ("compressed:of=(k-async:k=2),by=sign", 4),
    ("compressed:of=(pasgd:tau=2),by=(top-k:share=0.1)", 4),
    ("compressed:of=(k-batch-sync:k=3),by=(top-k:share=0.1)", 4),
    ("compressed:of=(fedbuff:tau=2),by=sign", 4),
)
"""Every built-in strategy and code, with options that change decisions, and a number of workers for each."""


def built(case: str, workers: int) -> Strategy:
    """The strategy of a case; in the name of a case, a range of workers and its partitions are keys of the spec."""
    name, keys = parse_spec(case)
    if "fewest" not in keys:
        return strategy(case, workers=workers)
    fewest, partitions = int(keys.pop("fewest")), keys.pop("partitions", None)
    return strategy(
        show_spec(name, keys), workers=(fewest, workers), partitions=None if partitions is None else int(partitions)
    )


def _hunt(job: tuple[str, int, range]) -> tuple[str, str]:
    """Return a strategy's spec and its first failure; empty if all of its schedules passed."""
    spec, workers, seeds = job
    candidate = strategy(spec, workers=workers)
    try:
        for seed in seeds:
            check_strategy(candidate, seed=seed)
    except AssertionError as error:
        return spec, str(error)
    return spec, ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Check every strategy on so many schedules; returns the number of those that fail."""
    parser = argparse.ArgumentParser(prog="scripts/soak strategies", description=main.__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="schedules for each strategy (default 1000)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--jobs", type=int, default=1, help="strategies checked at once (default 1)")
    parser.add_argument("--only", default="", metavar="TEXT", help="only strategies whose spec has TEXT in it")
    given = parser.parse_args(arguments)
    seeds = range(given.first, given.first + given.seeds)
    jobs = [(spec, workers, seeds) for spec, workers in STRATEGIES if given.only in spec]
    failed, began = 0, time.monotonic()
    with get_context("spawn").Pool(given.jobs) as pool:
        for number, (spec, failure) in enumerate(pool.imap_unordered(_hunt, jobs), 1):
            failed += bool(failure)
            print(f"{number}/{len(jobs)} {spec}: {'FAILED' if failure else 'passed'}", file=sys.stderr, flush=True)
            if failure:
                print(f"{failure}\n", flush=True)
    seconds = time.monotonic() - began
    print(f"{len(jobs)} strategies, {given.seeds} schedules each, {seconds:.0f} s: {failed} failed")
    return failed


if __name__ == "__main__":
    sys.exit(min(main(), 1))
