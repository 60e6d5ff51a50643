"""What is simulated: pools and policies, as a file has them."""

from math import inf
from typing import Self

from attrs import frozen

from taskscaler._types import Policy
from taskscaler.config import Autoscaler, PoolTable


@frozen(kw_only=True)
class Fleet:
    """The settings that decisions depend on; a variant is made with `attrs.evolve`."""

    pools: tuple[PoolTable, ...]
    """At least one, in order of preference."""

    policies: tuple[Policy, ...] = ()
    """The last that matches holds."""

    max_instances: int = 0
    """Over all pools; 0: any number."""

    acquire_timeout: float = inf
    """Seconds after which a job that has got no slot is refused; infinite: it waits."""

    @classmethod
    def of(cls, autoscaler: Autoscaler) -> Self:
        """Take those of a file.

        Its `instance_acquire_timeout` is left aside: a job that waits for a slot is one that GitLab, or a batch, keeps
        in its own queue, for as long as that takes.
        """
        return cls(
            pools=tuple(autoscaler.all_pools),
            policies=autoscaler.policy,
            max_instances=autoscaler.max_instances if autoscaler.pools else 0,
        )
