"""On which backends a check of the conformance suite runs, for groups of a real daemon or SDK.

What is answered to calls that are made one after the other is translated by code that knows of no backend: a check of
that runs on one, and on which goes in turn, so that each has half of them. What depends on how an event loop switches,
cancels, waits and ends runs on both, and these checks make every call that a group has: ``test_backends.py`` looks.
"""

from itertools import count

import pytest

from fleeting.testing import CHECKS, Check, name_of

BACKENDS = ("asyncio", "trio")

IN_TURN = frozenset(
    {
        "_growing",
        "_handing",
        "_instance",
        "_observing",
        "_opening",
        "_owning",
        "_returning",
        "_secrets",
        "_shrinking",
        "_sizes",
        "_suspending",
        "_values",
        "_view",
    }
)
"""The modules with checks that look at what is answered. Checks of any other module, a new one too, run on both."""


def runs_on_both(check: Check) -> bool:
    """Whether what the check looks at can differ between the backends."""
    return check.__module__.rpartition(".")[2] not in IN_TURN


def runs() -> list[tuple[Check, str]]:
    """Each check, with each backend that it runs on."""
    turn = count()
    return [
        (check, backend)
        for check in CHECKS
        for backend in (BACKENDS if runs_on_both(check) else (BACKENDS[next(turn) % 2],))
    ]


each_on_enough_backends = pytest.mark.parametrize(
    ("check", "anyio_backend"), runs(), ids=[f"{backend}-{name_of(check)}" for check, backend in runs()]
)
"""For a `GroupConformance.test_contract`, in place of the mark that it has."""
