"""Workers as Ray actors: partitions resident, model versions and messages as objects of Ray's store."""

from anyk.clusters.ray.actors import Ray

__all__ = ["Ray"]
