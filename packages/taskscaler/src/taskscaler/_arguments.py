"""What a scaler is given by a program, looked at before anything is done with it."""

import math
from typing import NoReturn

from fleeting import Duration
from fleeting.config import check

MAYBE_SECONDS = Duration | None


def check_settings(
    *,
    max_instances: object,
    acquire_timeout: object,
    reattach_timeout: object,
    delete_instances_on_shutdown: object,
    keep_instance_with_acquisitions: object,
    observe_only: object,
) -> None:
    """See that a scaler's own settings are what it can use. Raises as `fleeting.config.check`."""
    check("max_instances", max_instances, int, least=0)
    check("acquire_timeout", acquire_timeout, Duration, least=0, endless=True)
    check("reattach_timeout", reattach_timeout, Duration, least=0, endless=True)
    check("delete_instances_on_shutdown", delete_instances_on_shutdown, bool | None)
    check("keep_instance_with_acquisitions", keep_instance_with_acquisitions, bool)
    check("observe_only", observe_only, bool)


def check_wait(key: object, timeout: object, expected_duration: object = 0.0) -> None:
    """See that a slot can be waited for. Raises as `fleeting.config.check`."""
    check("key", key, str)
    if timeout is not None:
        check("timeout", timeout, MAYBE_SECONDS, least=0, endless=True)
    if expected_duration is not math.inf:
        check("expected_duration", expected_duration, Duration, least=0, endless=True)


def refuse_with(statement: str, right: str, other: str) -> NoReturn:
    """Refuse to be entered by the other statement.

    Args:
        statement: What was used.
        right: What enters it.
        other: What the statement would enter.

    Raises:
        TypeError: Always.
    """
    raise TypeError(f"a scaler of this kind is entered by `{right}`, not by `{statement}`; for that, use {other}")
