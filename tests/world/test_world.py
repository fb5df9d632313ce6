"""The real driver, cluster and workers on seeded schedules with faults; what must hold, and that its absence is noticed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from world.folder import FolderWorld
from world.safeguards import IN_FOLDERS, ON_NODES, SAFEGUARDS, Safeguard
from world.search import ENDED, STATES, Failure, attempt, search, shrink
from world.world import ENDINGS, FAMILIES, LONGEST, OF_NODES, SYSTEM, Options, World, in_folder, on_mpi, on_nodes

pytestmark = pytest.mark.in_process


@pytest.mark.slow
def test_nothing_breaks_under_faults() -> None:
    """A sample of the seeds that ``scripts/soak world`` runs; every family of faults and every state occurs in it."""
    failure, happened = search(range(200))
    assert failure is None, str(shrink(failure))
    assert {name for name in (*FAMILIES, *STATES) if not happened[name]} <= {"wrong numbers"}


@pytest.mark.slow
def test_nothing_breaks_on_mpi() -> None:
    """Also when a rank dies, under libraries that end the program then, and under those that go on."""
    failure, happened = search(range(60), on_mpi)
    assert failure is None, str(shrink(failure))
    expected = {"resumed", "lost", "abandoned", "retried", "kill worker", "kill driver", "interrupt", "reversed"}
    assert {name for name in expected if not happened[name]} == set()


@pytest.mark.slow
def test_nothing_breaks_on_nodes() -> None:
    """Also when agents are killed or stopped, links are down or slow, or bytes are changed on their way."""
    failure, happened = search(range(25), on_nodes)
    assert failure is None, str(shrink(failure))
    assert {name for name in OF_NODES if not happened[name]} == set()


@pytest.mark.slow
def test_nothing_breaks_in_folders() -> None:
    """Also when drivers die, again and again, or power is lost: the folder is whole, and its replay has the same bits."""
    failure, happened = search(range(50), in_folder)
    assert failure is None, str(failure)
    assert {name for name in (*ENDINGS, *ENDED, "damage") if not happened[name]} == set()


@pytest.mark.slow
def test_a_seed_determines_every_call() -> None:
    """Also the seed's deviations alone do, without any random number."""
    for seed in (4, 5, 6):
        first, second = World(seed), World(seed)
        assert first.run().trace == second.run().trace
        only = World(seed, only=first.choices.deviations)
        assert only.run().trace == first.kernel.trace
    for seed in (1, 2, 3):
        options = on_nodes(seed)
        runs = [World(seed, options=options) for _ in range(2)]
        assert runs[0].run().trace == runs[1].run().trace
        assert World(seed, options=options, only=runs[0].choices.deviations).run().trace == runs[0].kernel.trace
    for seed in (3, 4, 12):
        options = in_folder(seed)
        one, second = (FolderWorld(seed, options=options).run() for _ in range(2))
        only_in_folder = FolderWorld(seed, options=options, only=one.deviations).run()
        assert only_in_folder.trace == one.trace == second.trace


def focused(safeguard: Safeguard, seed: int) -> Options:
    """The circumstances of a seed, with a strategy and faults for which the safeguard matters."""
    options = Options.draw(seed)
    strategy = safeguard.strategies[seed % len(safeguard.strategies)]
    families = {*options.families, *safeguard.families} - set(SYSTEM if safeguard.cluster == "ray" else ())
    rate = max(options.rate, 0.01) if safeguard.families else options.rate
    settings = {"cluster": safeguard.cluster, "strategy": strategy, "families": tuple(sorted(families))}
    settings["copies"] = safeguard.copies
    return replace(options, rate=rate, most=min(options.most, safeguard.most), **settings)


def in_a_folder(safeguard: Safeguard, seed: int) -> Options:
    """The circumstances of a seed in a folder, with a strategy and faults for which the safeguard matters."""
    options = in_folder(seed)
    assert options.folder is not None
    strategy = safeguard.strategies[seed % len(safeguard.strategies)]
    folder = replace(options.folder, rate=0.02)
    settings = {"cluster": safeguard.cluster, "strategy": strategy, "families": safeguard.families, "folder": folder}
    return replace(options, most=min(options.most, 20), **settings)


def noticed(safeguard: Safeguard, seeds: int, options: Callable[[Safeguard, int], Options]) -> Failure:
    """The first failure without a safeguard, which an auditor must notice that is meant to."""
    first = safeguard.first
    failure, _ = search(range(first, first + seeds), lambda seed: options(safeguard, seed))
    assert failure is not None
    assert failure.auditor in safeguard.auditors, str(failure)
    return failure


def test_every_safeguard_is_in_the_code() -> None:
    for safeguard in (*SAFEGUARDS, *ON_NODES, *IN_FOLDERS):
        for edit in safeguard.edits:
            edit.changed()  # fails where the code has changed


@pytest.mark.slow
@pytest.mark.parametrize("safeguard", IN_FOLDERS, ids=lambda safeguard: safeguard.name)
def test_the_removal_of_a_safeguard_of_folders_is_noticed(safeguard: Safeguard) -> None:
    with safeguard.removed():
        failure = noticed(safeguard, 300, in_a_folder)
    assert not isinstance(attempt(failure.seed, failure.options), Failure)


@pytest.mark.slow
@pytest.mark.parametrize("safeguard", ON_NODES, ids=lambda safeguard: safeguard.name)
def test_the_removal_of_a_safeguard_of_nodes_is_noticed(safeguard: Safeguard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LONGEST, "nodes", 60_000)  # so that a run that never ends is found soon
    with safeguard.removed():
        failure = noticed(safeguard, 1000, focused)
    assert not isinstance(attempt(failure.seed, failure.options), Failure)


@pytest.mark.slow
@pytest.mark.parametrize("safeguard", SAFEGUARDS, ids=lambda safeguard: safeguard.name)
def test_the_removal_of_a_safeguard_is_noticed(safeguard: Safeguard) -> None:
    with safeguard.removed():
        failure = noticed(safeguard, 1000, focused)
        least = shrink(failure, runs=150, enough=10)
    assert len(least.deviations) <= 10, str(least)
    assert not isinstance(attempt(failure.seed, failure.options), Failure)
