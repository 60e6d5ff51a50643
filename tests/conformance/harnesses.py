"""What harnesses of several groups have in common."""

from fleeting.testing import CHECKS, Check, name_of

LONG = 240.0
"""Seconds until a harness reports what did not come, which only the harness knows: below the limit of a test, 300 s,
and above what a busy machine takes."""

LONGEST_CALL = 60.0
"""Seconds: the largest limit of one call that every plugin accepts."""

AWAITED = frozenset(
    (
        "late_answer_is_an_unknown_outcome",
        "secrets_are_shown_to_nobody",
        "silence_ends_in_time",
        "troubles_pass",
    )
)
"""The checks that wait for a call's timeout, because no answer comes."""

if missing := AWAITED - {name_of(check) for check in CHECKS}:
    raise AssertionError(f"there are no such checks: {missing}")


def call_timeout(check: Check, brief: float) -> float:
    """Seconds that a call of the group may take: *brief* only where the check waits for no answer that long."""
    return brief if name_of(check) in AWAITED else LONGEST_CALL


WHAT_TAKES_AN_ENDPOINT = (
    "troubles",
    "launch",
    "set_state",
    "secrets",
    "writes",
    "requests",
    "trouble_after",
    "room",
    "elsewhere",
    "respelled",
)
"""What a harness cannot have where no cloud of ours answers requests."""
