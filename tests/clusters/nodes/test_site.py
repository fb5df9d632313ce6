"""The place of a process in a job, and the entries of the store at which the nodes meet."""

from __future__ import annotations

import pytest

from anyk.base.errors import BadInput
from anyk.clusters.nodes.site import JobPlace, difference, signed, unsigned

pytestmark = pytest.mark.in_process
HERE = {"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def test_a_place_is_read_from_the_launchers_variables():
    place = JobPlace.from_environment(environment=HERE)
    assert (place.rank, place.size, place.host) == (1, 3, "127.0.0.1")
    slurm = {"SLURM_PROCID": "2", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "50001", "MASTER_ADDR": "127.0.0.1"}
    place = JobPlace.from_environment(environment=slurm)
    assert (place.rank, place.size, place.store_port) == (2, 4, 30001)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"RANK": None}, "RANK not set"),
        (dict.fromkeys(HERE), "started as in 'RANK=0 WORLD_SIZE=4 MASTER_ADDR=FIRST MASTER_PORT=29500 python"),
        ({"RANK": "3"}, "from 0 to WORLD_SIZE - 1 = 2, got 3"),
        ({"RANK": "x"}, "must be whole numbers"),
        ({"LOCAL_WORLD_SIZE": "2"}, "one process there, not 2; start it with --nproc-per-node 1"),
        ({"MASTER_ADDR": "no.such.host.invalid"}, "MASTER_ADDR=no.such.host.invalid cannot be reached"),
        ({"RANK": None, "SLURM_PROCID": "1", "MASTER_ADDR": None}, "scontrol show hostnames"),
        ({"RANK": None, "SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "1"}, "--ntasks-per-node 1"),
    ],
)
def test_what_cannot_be_a_place_is_refused(changed: dict[str, str | None], sentence: str):
    environment = {name: value for name, value in (HERE | changed).items() if value is not None}
    with pytest.raises(BadInput) as error:
        JobPlace.from_environment(environment=environment)
    assert sentence in str(error.value)


def test_between_machines_a_secret_is_required():
    with pytest.raises(BadInput, match="set ANYK_SECRET to the same text on all nodes"):
        JobPlace.from_environment("10.0.0.1", environment=HERE)
    assert JobPlace.from_environment("10.0.0.1", environment=HERE | {"ANYK_SECRET": "s"}).secret == b"s"


def test_an_entry_holds_for_its_name_and_secret_only():
    data = signed(b"secret", "node/1", b"value")
    assert unsigned(b"secret", "node/1", data) == b"value"
    for secret, name, changed in (
        (b"other", "node/1", data),
        (b"", "node/1", data),
        (b"secret", "node/2", data),  # replayed under another name
        (b"secret", "node/1", data + b"!"),
        (b"secret", "node/1", b"value"),
        (b"secret", "node/1", b""),
    ):
        with pytest.raises(BadInput, match="was not signed with this node's ANYK_SECRET"):
            unsigned(secret, name, changed)


def test_versions_that_differ_are_named_on_both_sides():
    ours = {"anyk": "1", "NumPy": "2.1", "Python": "3.11"}
    assert difference("node 2", ours, ours) == ""
    sentence = difference("node 2", ours | {"NumPy": "1.26"}, ours)
    assert sentence == "node 2 has NumPy 1.26, and the driver NumPy 2.1; install the same versions on all nodes"
    assert "torch unknown" in difference("node 2", ours, ours | {"torch": "2"})
