import pytest

import anyk
from anyk.testing.clusters import CHECKS

MAKERS = {
    "simulated": lambda workers, delays: anyk.clusters.Simulated(workers, delays=delays),
    "processes": lambda workers, delays: anyk.clusters.Processes(workers, delays=delays),
}


@pytest.mark.parametrize("cluster", MAKERS)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_cluster_conforms(cluster, check):
    check(MAKERS[cluster])


def test_the_suite_notices_a_cluster_that_adds_wrongly():
    class Wrong(anyk.clusters.Simulated):
        def combine(self, messages, weights):
            return super().combine(messages[:1], weights[:1])

    with pytest.raises(AssertionError, match="gave"):
        anyk.testing.check_cluster(lambda workers, delays: Wrong(workers, delays=delays))
