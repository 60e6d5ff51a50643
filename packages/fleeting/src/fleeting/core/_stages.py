"""The stages of an instance: what each knows, and which may follow which.

The rules of this file:

- `TRANSITIONS` is the truth. `Instance.move` checks every move against it, and the diagram in
  ``docs/explanation/architecture.md`` is printed from it.
- What is known only in one stage is a field of that stage's class, and goes when the stage is left. What outlives a
  stage is a field of `Instance`.
- An instance may be gone at any time, from any stage; then it is no longer known.
- Nothing here knows of time, journals or clouds: when to move, the plan decides.
"""

from collections.abc import Mapping
from enum import Enum
from math import inf
from typing import ClassVar

from attrs import define, frozen


class Stage(Enum):
    """An instance as the plan sees it."""

    WAITING = "waiting"
    """Not running yet, or not yet being prepared."""

    PREPARING = "preparing"
    READY = "ready"
    UNHEALTHY = "unhealthy"
    ASLEEP = "asleep"
    """Suspended, or about to be. Woken, it is WAITING again."""

    REMOVING = "removing"
    HELD = "held"
    """Done for, but not to be deleted for now: it is retained, or the plan only observes."""

    __hash__ = object.__hash__  # Enum's own is Python, and each decision counts stages


class Start(Enum):
    """Why an instance is on its way to being ready."""

    NEW = "new"
    WOKEN = "woken"
    """It slept, and somebody else had it resumed, or it never was suspended."""

    RESUMED = "resumed"
    """It slept, and we had it resumed."""


@frozen
class Boot:
    """How an instance came to be on its way to being ready."""

    start: Start = Start.NEW
    since: float | None = None
    """When it was asked for, or to be resumed; None if that is not known."""


@frozen
class Sleep:
    """Why an instance is, or is to be, suspended, and since when; None if that is not known."""

    why: str
    since: float | None


@define
class Waiting:
    """Not running yet, or not yet being prepared."""

    stage: ClassVar = Stage.WAITING
    boot: Boot
    unsure_since: float = -inf
    """From when on a view has to be to show whether it runs: nobody knows what came of a call."""

    slept: Sleep | None = None
    """If an earlier manager left it asleep, and nobody has seen it awake."""


@define
class Preparing:
    """Its readiness steps are under way, or are tried again, or wait for a view that shows it running."""

    stage: ClassVar = Stage.PREPARING
    boot: Boot
    slept: Sleep | None = None
    prepared: bool = False
    """Whether it passed them."""

    trouble: str = ""
    """What last kept it from being prepared, though it may pass."""


@define
class Ready:
    """It may be given work, if nothing else keeps it from that."""

    stage: ClassVar = Stage.READY
    boot: Boot
    too_old: bool = False
    """Whether it has reached its age."""

    failures: int = 0
    """Heartbeats failed in a row."""

    suspect: bool = False
    """Whether it gets no new work until a heartbeat passes: the last one failed, and with work each has to pass."""

    cut_off: bool = False
    """Whether a connection died since the last heartbeat: if the next one fails too, no more are waited for."""


@define
class Unhealthy:
    """Too many of its heartbeats failed."""

    stage: ClassVar = Stage.UNHEALTHY
    illness: str
    """What was wrong with the last one."""


@define
class Asleep:
    """Suspended, or about to be."""

    stage: ClassVar = Stage.ASLEEP
    sleep: Sleep


@define
class Deletion:
    """What was done to delete an instance."""

    asked_at: float
    """When it was decided on last; a journal that fails may delay the call."""

    tries: int = 1
    """How often it was decided on: more than once, and it had no effect yet."""

    sent: bool = False
    """Whether the cloud was asked."""


@define
class Removing:
    """Done for; it is deleted until it is gone."""

    stage: ClassVar = Stage.REMOVING
    why: str
    deletion: Deletion | None = None
    """None: somebody else is deleting it, and we have not asked for it."""


@define
class Held:
    """Done for, but not to be deleted for now."""

    stage: ClassVar = Stage.HELD
    why: str


Phase = Waiting | Preparing | Ready | Unhealthy | Asleep | Removing | Held
"""A stage, and what is known of an instance only there."""

DONE_FOR: Mapping[Stage, str] = {Stage.REMOVING: "remove", Stage.HELD: "remove, but it is retained"}

TRANSITIONS: Mapping[Stage, Mapping[Stage, str]] = {
    Stage.WAITING: {Stage.PREPARING: "seen running", Stage.ASLEEP: "seen suspended, or not resumed", **DONE_FOR},
    Stage.PREPARING: {Stage.READY: "prepared", Stage.ASLEEP: "seen suspended", **DONE_FOR},
    Stage.READY: {Stage.UNHEALTHY: "heartbeats fail", Stage.ASLEEP: "suspend", **DONE_FOR},
    Stage.UNHEALTHY: DONE_FOR,
    Stage.ASLEEP: {Stage.WAITING: "resume, or seen awake", **DONE_FOR},
    Stage.HELD: {Stage.REMOVING: "not retained any more"},
    Stage.REMOVING: {},
}
"""What may follow each stage, and what leads there."""


class IllegalMove(AssertionError):
    """A stage may not follow another: a defect of the plan."""


def diagram() -> str:
    """The table as a Mermaid diagram; that an instance may be gone at any time is left out but for REMOVING."""
    moves = [
        f"    {before.value} --> {after.value}: {why}"
        for before, following in TRANSITIONS.items()
        for after, why in following.items()
    ]
    begin, end = "    [*] --> waiting: a view shows it", "    removing --> [*]: no view shows it"
    return "\n".join(["stateDiagram-v2", begin, *moves, end])
