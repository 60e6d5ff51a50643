"""The settings of one group that concern its instances. Names, meanings and defaults are GitLab's."""

from enum import Enum

from attrs import field, frozen
from attrs.validators import ge, gt, optional

from fleeting._arguments import as_given, in_words
from fleeting._durations import Duration
from fleeting._wording import quoted


class Preexisting(Enum):
    """What to do with instances that stand in the group and that nothing of ours explains."""

    REFUSE = "refuse"
    """Refuse to start if the journal is empty; later, remove."""

    REMOVE = "remove"
    ADOPT = "adopt"
    """Use them, as if they had never been used."""


def _preexisting(given: Preexisting | str) -> Preexisting:
    """Take the word that a file has for it, too."""
    try:
        return Preexisting(given)
    except ValueError:
        words = ", ".join(quoted(choice.value) for choice in Preexisting)
        raise ValueError(f"preexisting: expected one of {words}, found {as_given(given)}") from None


@frozen(kw_only=True, field_transformer=in_words)
class ScaleThrottle:
    """How fast new instances may be asked for: a token bucket."""

    limit: float = field(default=100.0)
    """New instances a second; -1: no limit."""

    burst: int | None = field(default=None, validator=optional(ge(1)))
    """Saved up at most. None: `max_instances`, or the limit where that is 0."""

    @limit.validator
    def _check_limit(self, _: object, limit: float) -> None:
        if limit <= 0 and limit != -1:
            raise ValueError("a number above 0, or -1 for no limit")


@frozen(kw_only=True, field_transformer=in_words)
class PlanConfig:
    """The settings of one group that concern its instances; names and defaults are GitLab's."""

    name: str = "default"
    """The pool's, in leases, logs and metrics."""

    max_instances: int = field(default=0, validator=ge(0))
    """Ceiling over all that exists or may come to exist; 0: none."""

    update_interval: Duration = field(default=60.0, validator=gt(0))
    """Seconds between two views of the group. After a slow view the next one waits at least four times as long as that
    took, but no longer than this."""

    update_interval_when_expecting: Duration = field(default=2.0, validator=gt(0))
    """The same while a change is expected."""

    deletion_retry_interval: Duration = field(default=60.0, validator=gt(0))
    """Seconds after which a deletion that had no effect is asked for again."""

    shutdown_deletion_interval: Duration = field(default=10.0, validator=gt(0))
    """The same while shutting down."""

    failure_threshold: int = field(default=3, validator=ge(1))
    """After so many failed heartbeats in a row an instance is unhealthy."""

    heartbeat_interval: Duration = field(default=60.0, validator=gt(0))
    """Seconds between two heartbeats of an instance."""

    heartbeat_on_acquire: bool = False
    """Whether a heartbeat has to pass each time before an instance is given work."""

    scale_throttle: ScaleThrottle = ScaleThrottle()
    """How fast new instances may be asked for."""

    preexisting: Preexisting = field(default=Preexisting.REFUSE, converter=_preexisting)
    """What to do with instances that are there and that nothing of ours explains; the word for it will do."""

    unhealthy_breaks_jobs: bool = False
    """Whether the jobs on an unhealthy instance are broken and run elsewhere. Otherwise they go on for as long as their
    connections live."""

    max_instance_age: Duration = field(default=0.0, validator=ge(0))
    """An older instance takes no more work and is replaced when free; 0: it may be of any age."""

    intent_timeout: Duration = field(default=900.0, validator=gt(0))
    """After which what was asked for and never appeared is given up."""

    instance_ready_timeout: Duration = field(default=900.0, validator=gt(0))
    """What an instance may take from its first sight to being ready; then it is replaced."""

    backoff_initial: Duration = field(default=5.0, validator=gt(0))
    """Seconds to wait after the cloud has refused; twice as long after each further refusal."""

    backoff_cap: Duration = field(default=300.0, validator=gt(0))
    """Seconds that such a wait takes at the most."""
