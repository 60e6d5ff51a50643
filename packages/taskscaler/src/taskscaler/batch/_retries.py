"""How often a job is tried again, after which ends of a try, and how long it waits before that. Pure."""

from collections.abc import Mapping
from typing import Any, Literal

from attrs import asdict, field, frozen, validators

from fleeting import Duration
from fleeting.config import check, in_words
from taskscaler.batch._job_state import JobState

LONGEST_BACKOFF = 600.0
"""Seconds at which a wait between two tries stops doubling, unless the first one is longer already."""

_MOST_DOUBLED = 40
"""Times: enough for any wait to reach the longest one, and few enough for a float."""


@frozen(kw_only=True, field_transformer=in_words)
class Retries:
    """How often a job is tried again; each kind of end is counted apart.

    What the cloud took as announced, and what ended with its manager, counts for neither.
    """

    lost: int | Literal["any"] = field(default=2)
    """Times, after its instance was lost, the connection died, or its executor failed unexpectedly; ``any``: always."""

    failed: int = field(default=0, validator=validators.ge(0))
    """Times, after it failed by itself or took too long."""

    backoff: Duration = field(default=0.0, validator=validators.ge(0))
    """Seconds before the first retry of a kind; each further one waits twice as long, up to `LONGEST_BACKOFF`."""

    on_exit: tuple[int, ...] = field(default=())
    """Exit codes that make a failure worth a retry; empty: any failure is."""

    @lost.validator
    def _not_negative(self, _: object, value: int | str) -> None:
        if isinstance(value, int) and value < 0:
            raise ValueError('at least 0, or "any"')

    @on_exit.validator
    def _failures(self, _: object, value: tuple[int, ...]) -> None:
        if bad := [code for code in value if code <= 0]:
            raise ValueError("exit codes of failures, from 1", bad[0])

    def wait(self, state: JobState, exit_code: int | None, earlier: int) -> float | None:
        """Say how many seconds a job waits after a try before it is tried again.

        Args:
            state: How the try ended.
            exit_code: What the script exited with; None: it did not.
            earlier: How many tries before it have ended so and count.

        Returns:
            The seconds, 0 or more; None: it is not tried again.
        """
        allowed = self._allowed(state, exit_code)
        if allowed != "any" and earlier >= allowed:
            return None
        return min(self.backoff * 2.0 ** min(earlier, _MOST_DOUBLED), max(self.backoff, LONGEST_BACKOFF))

    def _allowed(self, state: JobState, exit_code: int | None) -> int | Literal["any"]:
        if state is JobState.LOST:
            return self.lost
        is_worth_it = state in FAILURES and (not self.on_exit or exit_code in self.on_exit)
        return self.failed if is_worth_it else 0

    def data(self) -> int | Mapping[str, object]:
        """Give it as a jobs file has it: a number if it is only about losses."""
        if isinstance(self.lost, int) and self == Retries(lost=self.lost):
            return self.lost
        return {**asdict(self), "on_exit": list(self.on_exit)}


FAILURES = frozenset({JobState.FAILED, JobState.TIMED_OUT})
"""How a try ends that ends badly by itself."""


def as_retries(given: int | Retries) -> Retries:
    """Take a number for that of retries after losses, as a jobs file does.

    Raises:
        TypeError: It is neither.
        ValueError: It is negative.
    """
    if isinstance(given, Retries):
        return given
    check("retries", given, int, least=0)
    return Retries(lost=given)


def retries_from(data: Any) -> Retries:  # noqa: ANN401  (JSON)
    """Read what `Retries.data` has given; keys of later releases are passed over.

    Raises:
        ValueError, TypeError: It is not that.
    """
    if not isinstance(data, Mapping):
        return Retries(lost=data)
    known: dict[str, Any] = {name: value for name, value in data.items() if name in _NAMES}
    return Retries(**{**known, "on_exit": tuple(known.get("on_exit", ()))})


_NAMES = frozenset(asdict(Retries()))
