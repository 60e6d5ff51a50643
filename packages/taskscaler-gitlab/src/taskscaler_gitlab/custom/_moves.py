"""What a part of a job does about the job's slot: pure.

    (none) ──prepare──► KEPT ◄──► USED by a run ──cleanup──► (none)
                          └──ttl, loss──► (none)

Any of the processes may be killed at any time, and the next part is called all the same, or none is.
"""

from collections.abc import Mapping
from enum import Enum

from taskscaler.cli.job_slot import Standing


class Part(Enum):
    """Of a job, for which gitlab-runner calls a program."""

    PREPARE = "prepare"
    RUN = "run"
    CLEANUP = "cleanup"


class Move(Enum):
    """What is done about the slot."""

    ACQUIRE = "acquire"
    """Wait for one."""

    TAKE_UP = "take up"
    """Get the one ready that is kept already, with nothing left in it."""

    WORK = "work"
    """Run the script in it."""

    GIVE_BACK = "give back"
    NOTHING = "nothing"
    """There is none, or it goes back by itself."""

    REFUSE = "refuse"
    """Another process is at it, or there is none to work in."""


_MOVES: Mapping[Part, Mapping[Standing, Move]] = {
    Part.PREPARE: {
        Standing.NONE: Move.ACQUIRE,
        Standing.GOING: Move.ACQUIRE,
        Standing.KEPT: Move.TAKE_UP,
    },
    Part.RUN: {Standing.KEPT: Move.WORK},
    Part.CLEANUP: {
        Standing.NONE: Move.NOTHING,
        Standing.GOING: Move.NOTHING,
        Standing.HELD: Move.NOTHING,
        Standing.KEPT: Move.GIVE_BACK,
        Standing.USED: Move.GIVE_BACK,
    },
}


def decide(part: Part, standing: Standing) -> Move:
    """Say what a part does about the job's slot."""
    return _MOVES[part].get(standing, Move.REFUSE)


_WHY_NOT: Mapping[tuple[Part, Standing], str] = {
    (Part.PREPARE, Standing.HELD): "another process gets the slot of this job ready; end that first",
    (Part.PREPARE, Standing.USED): "another process uses the slot of this job; end that first",
    (Part.RUN, Standing.NONE): "there is no slot for this job: it was not prepared, or its slot has gone back"
    " or was lost; call `custom-executor prepare` first, as prepare_exec",
    (Part.RUN, Standing.HELD): "the slot of this job is still being prepared; wait for the end of that",
    (Part.RUN, Standing.USED): "another process uses the slot of this job; end that first",
}


def why_not(part: Part, standing: Standing) -> str:
    """Say why a part refuses."""
    return _WHY_NOT.get((part, standing), _WHY_NOT[Part.RUN, Standing.NONE])
