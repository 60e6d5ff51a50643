"""The table of mutants, which each enters by its decorator, and what they have left behind."""

import socket
import subprocess
from collections.abc import Callable
from threading import Timer

from attrs import frozen
from fleeting_puddle import Group

from fleeting.testing import CHECKS, Check, name_of


@frozen
class Mutant:
    """One way of being wrong, and the check that is meant to find it."""

    group: type[Group]
    check: Check

    @property
    def name(self) -> str:
        """As in the documentation's table."""
        return self.group.__name__

    @property
    def fault(self) -> str:
        """What is wrong, in a sentence."""
        return (self.group.__doc__ or "").splitlines()[0].removesuffix(".")


MUTANTS: list[Mutant] = []

OPEN: list[socket.socket] = []
"""What mutants have left open; whoever runs them closes it."""

GHOSTS: list[Timer] = []
"""Threads that mutants have left; whoever runs them ends them."""

CHILDREN: list[subprocess.Popen[bytes]] = []
"""Processes that mutants have left; whoever runs them waits for them."""


def found_by(name: str) -> Callable[[type[Group]], type[Group]]:
    """Mark a mutant with the check that is meant to find it."""
    (check,) = (check for check in CHECKS if name_of(check) == name)

    def note(group: type[Group]) -> type[Group]:
        MUTANTS.append(Mutant(group, check))
        return group

    return note
