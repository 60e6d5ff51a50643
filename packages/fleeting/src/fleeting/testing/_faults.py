"""What can go wrong with a call to the fake cloud, and the script that says when it does."""

from collections import deque
from collections.abc import Collection, Mapping
from typing import Generic, TypeVar

from attrs import asdict, define, field, frozen

from fleeting._types import State


@frozen(kw_only=True)
class Fault:
    """What goes wrong with any call; as it stands, nothing does."""

    slow: float = 0.0
    """Seconds that the call takes on top of its latency, half of them before it has any effect."""

    refuse: Exception | None = None
    """Raised before anything happens."""

    lose: bool = False
    """The call is carried out, but its answer is lost: `OutcomeUnknown`."""


@frozen(kw_only=True)
class IncreaseFault(Fault):
    """What goes wrong with an `increase`."""

    accept: int | None = None
    """Only so many are accepted; None: as many as there is room for."""

    overstate: int = 0
    """So many more are said to be accepted than are."""

    surplus: int = 0
    """So many more come than were accepted, whatever the cloud's ceiling."""

    late: float = 0.0
    """Seconds until what was accepted begins to exist."""

    hang: bool = False
    """What comes stays in creating until `FakeCloud.release`."""

    broken: bool = False
    """What comes fails instead of running."""


@frozen(kw_only=True)
class DecreaseFault(Fault):
    """What goes wrong with a `decrease`."""

    accept: int | None = None
    """Only the first so many are accepted; None: all."""

    ignore: bool = False
    """They are said to be accepted, and nothing happens."""

    hang: bool = False
    """They stay in deleting until `FakeCloud.release`."""


@frozen(kw_only=True)
class SuspendFault(Fault):
    """What goes wrong with a `suspend` or a `resume`."""

    accept: int | None = None
    """Only the first so many are accepted; None: all that can be."""

    ignore: bool = False
    """They are said to be accepted, and nothing happens."""

    hang: bool = False
    """They stay in suspending or resuming until `FakeCloud.release`."""


@frozen(kw_only=True)
class UpdateFault(Fault):
    """What goes wrong with an `update`."""

    stale: bool = False
    """The view before this one is given once more."""

    hide: Collection[str] = ()
    """Instances that are missing from this view."""

    states: Mapping[str, State] = field(factory=dict)
    """States that this view makes up, by instance."""


F = TypeVar("F", bound=Fault)


class Script(Generic[F]):
    """Says which fault each call of one method meets; without instructions, none."""

    def __init__(self, none: F) -> None:
        """Take the fault with which nothing goes wrong."""
        self._none = none
        self._once: deque[F] = deque()
        self._always = none

    def once(self, fault: F, *, times: int = 1) -> None:
        """The next call not spoken for meets this fault, or the next so many."""
        self._once.extend([fault] * times)

    def always(self, fault: F) -> None:
        """Every call not spoken for meets this fault, until `clear`."""
        self._always = fault

    def clear(self) -> None:
        """From now on nothing goes wrong."""
        self._once.clear()
        self._always = self._none

    def take(self) -> F:
        """Give the fault that the call now made meets."""
        return self._once.popleft() if self._once else self._always


def _plain() -> Script[Fault]:
    return Script(Fault())


@define
class Scripts:
    """One script for each method, by its name."""

    init: Script[Fault] = field(factory=_plain)
    update: Script[UpdateFault] = field(factory=lambda: Script(UpdateFault()))
    increase: Script[IncreaseFault] = field(factory=lambda: Script(IncreaseFault()))
    decrease: Script[DecreaseFault] = field(factory=lambda: Script(DecreaseFault()))
    connect_info: Script[Fault] = field(factory=_plain)
    heartbeat: Script[Fault] = field(factory=_plain)
    withdraw: Script[Fault] = field(factory=_plain)
    suspend: Script[SuspendFault] = field(factory=lambda: Script(SuspendFault()))
    resume: Script[SuspendFault] = field(factory=lambda: Script(SuspendFault()))
    mark_owner: Script[Fault] = field(factory=_plain)
    read_marks: Script[Fault] = field(factory=_plain)
    dial: Script[Fault] = field(factory=_plain)
    shutdown: Script[Fault] = field(factory=_plain)

    def clear(self) -> None:
        """From now on nothing goes wrong with any call."""
        for script in asdict(self, recurse=False).values():
            script.clear()
