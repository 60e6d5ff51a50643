"""What a switch from one colour to the other does next: pure.

One ladder serves both directions. The colour that is *kept* has to get to where GitLab answers it; then the one that is
*retired* asks for no more jobs, sees those that it has to their ends, and is deleted with its fleet. Going forward, the
new colour is kept, and before it may ask for jobs it has to run a canary. Aborting, the old one is kept, and the canary
is left out.

Each turn looks at both as they are, whatever was done before: so it does not matter at which point an earlier process
was killed, or whether a service was started again meanwhile. Only two things are known from the state alone: that the
canary has passed, and that the deletion was begun, from where there is no way back. The state is written before what
follows from it.

Going forward, some colour takes jobs at any time: the old one is paused only after GitLab has answered the new one, and
asks again if the new one goes away before the deletion has begun.
"""

from collections.abc import Mapping
from enum import Enum

from attrs import evolve, field, frozen


class Step(Enum):
    """How far a switch has come."""

    BEGUN = "begun"
    """It is known where it is to lead."""

    STARTED = "started"
    """The new colour runs, and asks for no jobs."""

    TRIED = "tried"
    """It has run a canary."""

    POLLING = "polling"
    """GitLab answers the colour that is kept."""

    STOPPED = "stopped"
    """The other one asks for no more jobs."""

    DRAINED = "drained"
    """Its jobs are over."""

    DELETING = "deleting"
    """It is to be deleted with its fleet."""

    DELETED = "deleted"
    """It is."""

    OVER = "over"
    """Nothing is left to be done."""


_ORDER = {step: number for number, step in enumerate(Step)}


class Life(Enum):
    """Whether a service is there."""

    AWAY = "away"
    BUSY = "busy"
    """It has its socket, and does not answer: it starts, or ends."""

    THERE = "there"


class Act(Enum):
    """What may be done to a colour; each may be done again."""

    START = "start"
    """Have it run, paused."""

    FLY_CANARY = "fly_canary"
    PAUSE = "pause"
    UNPAUSE = "unpause"
    DELETE = "delete"
    """Have it end with its last lease, and delete its instances."""

    TIDY = "tidy"
    """Have it paused no more, now that it has ended: the next start of it is like the first."""


class Refused(Exception):
    """What an operator wants cannot be done; nothing was done. One sentence that says what to do instead."""


class Stuck(Exception):
    """A switch cannot go on; it stands where it stood. One sentence that says what to do."""


@frozen(kw_only=True)
class Service:
    """A colour as it is."""

    life: Life = Life.AWAY
    paused: bool = False
    """Whether it asks for no jobs, or would not if it ran."""

    answered: bool = False
    """Whether every GitLab has answered it as it should since it began."""

    requests: int = 0
    """Requests for jobs that are under way."""

    jobs: int = 0
    """Jobs of GitLab's, and batches, that are not over."""

    leases: int = 0
    """What others hold of its fleet."""

    ending: bool = False
    """Whether it ends with its last lease."""

    deletes: bool = False
    """Whether it deletes its instances then."""

    retained: tuple[str, ...] = ()
    """Instances that an operator wants to stay, whatever happens."""

    left: int = 0
    """If it is away: jobs that are not over, and instances, without those that are being deleted."""

    going: int = 0
    """Instances that are being deleted, if it is away."""


@frozen(kw_only=True)
class Switch:
    """Where a switch stands."""

    old: str
    """The colour that had the jobs."""

    new: str
    """The one that is to have them."""

    step: Step = Step.BEGUN
    reached: Step = Step.BEGUN
    """How far it had come when it was aborted; else as far as `step`."""

    is_aborting: bool = False
    configs: Mapping[str, str] = field(factory=dict)
    """The configurations of both when it began, by colour."""

    begun_at: float = 0.0
    """Seconds since the epoch."""

    changed_at: float = 0.0
    """When it came to its step, in seconds since the epoch."""

    @property
    def kept(self) -> str:
        """The colour that has the jobs in the end."""
        return self.old if self.is_aborting else self.new

    @property
    def retired(self) -> str:
        """The one that is gone then."""
        return self.new if self.is_aborting else self.old

    @property
    def command(self) -> str:
        """The options that go on with it."""
        return "--abort" if self.is_aborting else f"--to {self.new}"

    @property
    def can_be_aborted(self) -> bool:
        """Whether there is a way back."""
        return not self.is_aborting and self.is_before(Step.DELETING)

    def is_before(self, step: Step) -> bool:
        """Whether it has not come to a step yet."""
        return _ORDER[self.step] < _ORDER[step]

    def at(self, step: Step) -> "Switch":
        """Come to a step."""
        return evolve(self, step=step, reached=self.reached if self.is_aborting else step)


@frozen(kw_only=True)
class Turn:
    """What comes next: the switch as it is to be written, or one thing to do, or what to wait for."""

    switch: Switch
    act: Act | None = None
    colour: str = ""
    """To which it is done."""

    waits: str = ""
    """For what, in a few words."""

    is_work: bool = False
    """Whether that may take as long as jobs do."""


# --- what an operator wants ----------------------------------------------------------------------------------


def begin(to: str, there: Mapping[str, Service], now: float, configs: Mapping[str, str]) -> Switch:
    """Begin a switch.

    Args:
        to: The new colour.
        there: Both as they are.
        now: Seconds since the epoch.
        configs: Both configurations.

    Raises:
        Refused: There is nothing to switch, or it is not known from what.
    """
    (old,) = (each for each in there if each != to)
    new, had = there[to], there[old]
    for name, each in there.items():
        if each.life is Life.BUSY:
            raise Refused(f"{name} has its socket and does not answer, so it starts or ends; try again in a moment")
        if each.ending:
            raise Refused(f"{name} is ending, because it is being drained; wait until it has ended")
    has_jobs = new.life is Life.THERE and not new.paused
    if has_jobs and had.life is Life.THERE and not had.paused:
        drain = f"`taskscaler drain --delete --socket` with the socket of {old}"
        raise Refused(f"both colours ask for jobs, so there is nothing to switch; to end {old}, use {drain}")
    if has_jobs:
        raise Refused(f"{to} is the running colour already; to switch back, use --to {old}")
    if had.life is Life.AWAY:
        start = f"start {old}, or start {to} itself with `taskscaler-gitlab run {configs[to]}`"
        raise Refused(f"{old} does not run, so there is nothing to switch from; {start}")
    if had.paused:
        undo = f"have it ask again with `taskscaler pause --undo --socket` and the socket of {old}"
        raise Refused(f"{old} is paused, so {to} would take over no jobs; {undo}")
    return Switch(old=old, new=to, configs=configs, begun_at=now, changed_at=now)


def resume(switch: Switch, to: str) -> Switch:
    """Go on with a switch that is under way.

    Raises:
        Refused: It leads elsewhere.
    """
    if switch.is_aborting:
        raise Refused(f"the switch to {switch.new} is being aborted; finish that with --abort, then begin again")
    if to != switch.new:
        back = ", or go back with --abort" if switch.can_be_aborted else ""
        raise Refused(f"a switch to {switch.new} is under way; finish it with --to {switch.new}{back}")
    return switch


def abort(switch: Switch | None, now: float) -> Switch:
    """Turn a switch round, or go on with one that was; one that has been aborted already stays so.

    Raises:
        Refused: There is none, or it is too late.
    """
    if switch is not None and switch.is_aborting:
        return switch
    if switch is None or switch.step is Step.OVER:
        raise Refused("no switch is under way, so there is nothing to abort; see --status")
    if not switch.can_be_aborted:
        then = f"finish it with --to {switch.new}, then switch back with --to {switch.old}"
        raise Refused(f"{switch.old} is being deleted already, so the switch cannot be aborted; {then}")
    return evolve(switch, is_aborting=True, step=Step.BEGUN, changed_at=now)


# --- what comes next -----------------------------------------------------------------------------------------


def take_turn(switch: Switch, kept: Service, retired: Service) -> Turn:
    """Say what comes next.

    Args:
        switch: Where it stands; not `Step.OVER`.
        kept: The colour `Switch.kept`, as it is.
        retired: The other one.

    Raises:
        Stuck: Nothing can be done about what is there.
    """
    match switch.step:
        case Step.BEGUN | Step.STARTED | Step.TRIED:
            return _get_ready(switch, kept, retired)
        case Step.POLLING | Step.STOPPED | Step.DRAINED:
            return _hand_over(switch, kept, retired)
        case Step.DELETING:
            return _keep_polling(switch, kept) or _paused(switch, retired) or _delete(switch, retired)
        case Step.DELETED:
            if retired.life is Life.AWAY and retired.paused:
                return Turn(switch=switch, act=Act.TIDY, colour=switch.retired)
            return Turn(switch=switch.at(Step.OVER))
        case Step.OVER:
            raise ValueError("it is over")


def _get_ready(switch: Switch, kept: Service, retired: Service) -> Turn:
    """Have the colour that is kept take jobs; meanwhile the old one does."""
    if switch.is_aborting or switch.step is Step.TRIED:
        if not switch.is_aborting and retired.life is Life.THERE and retired.paused:
            return Turn(switch=switch, act=Act.UNPAUSE, colour=switch.retired)
        return _keep_polling(switch, kept) or Turn(switch=switch.at(Step.POLLING))
    if (turn := _keep_running(switch, kept)) is not None:
        return turn
    if not kept.paused:
        return Turn(switch=switch, act=Act.PAUSE, colour=switch.kept)
    if switch.step is Step.BEGUN:
        return Turn(switch=switch.at(Step.STARTED))
    return Turn(switch=switch, act=Act.FLY_CANARY, colour=switch.kept)


def tried(switch: Switch) -> Switch:
    """The canary has passed."""
    return switch.at(Step.TRIED)


def _keep_running(switch: Switch, kept: Service) -> Turn | None:
    if kept.ending:
        why = f"{switch.kept} is ending, because somebody drains it"
        raise Stuck(f"{why}; once it has ended, run this again with {switch.command}")
    match kept.life:
        case Life.AWAY:
            return Turn(switch=switch, act=Act.START, colour=switch.kept)
        case Life.BUSY:
            return Turn(switch=switch, waits=f"{switch.kept} to answer on its socket")
        case Life.THERE:
            return None


def _keep_polling(switch: Switch, kept: Service) -> Turn | None:
    if (turn := _keep_running(switch, kept)) is not None:
        return turn
    if kept.paused:
        return Turn(switch=switch, act=Act.UNPAUSE, colour=switch.kept)
    if not kept.answered:
        return Turn(switch=switch, waits=f"GitLab to answer {switch.kept}")
    return None


def _hand_over(switch: Switch, kept: Service, retired: Service) -> Turn:
    """Have the colour that is retired take no more jobs, and wait until it has none."""
    if not switch.is_aborting and kept.life is Life.AWAY:
        return Turn(switch=switch.at(Step.TRIED))
    if (turn := _keep_polling(switch, kept)) is not None:
        return turn
    if (turn := _paused(switch, retired)) is not None:
        return turn
    if switch.step is Step.POLLING:
        if retired.requests:
            return Turn(switch=switch, waits=f"{_counted(retired.requests, 'open request')} of {switch.retired}")
        return Turn(switch=switch.at(Step.STOPPED))
    return _see_out(switch, retired)


def _see_out(switch: Switch, retired: Service) -> Turn:
    """Wait for the last job of the colour that is retired."""
    if retired.jobs or retired.requests:
        if switch.step is Step.DRAINED:
            return Turn(switch=switch.at(Step.STOPPED))
        left = _counted(retired.jobs or retired.requests, "job" if retired.jobs else "open request")
        return Turn(switch=switch, waits=f"{left} of {switch.retired}", is_work=bool(retired.jobs))
    if retired.retained:
        which = f"{_counted(len(retired.retained), 'instance')} ({', '.join(retired.retained[:3])})"
        undo = f"`taskscaler retain --undo {retired.retained[0]}`"
        raise Stuck(
            f"{switch.retired} retains {which}, so its fleet would stay; let go with {undo}, and run this again"
        )
    return Turn(switch=switch.at(Step.DRAINED if switch.step is Step.STOPPED else Step.DELETING))


def _paused(switch: Switch, retired: Service) -> Turn | None:
    match retired.life:
        case Life.AWAY if retired.left:
            return Turn(switch=switch, act=Act.START, colour=switch.retired)
        case Life.BUSY:
            return Turn(switch=switch, waits=f"{switch.retired} to answer on its socket, or to end")
        case Life.THERE if not retired.paused:
            return Turn(switch=switch, act=Act.PAUSE, colour=switch.retired)
    return None


def _delete(switch: Switch, retired: Service) -> Turn:
    """Have the colour that is retired end with its fleet; one that was started again may have jobs again."""
    if retired.life is Life.AWAY and retired.going:
        going = _counted(retired.going, "instance")
        return Turn(switch=switch, waits=f"the cloud to delete {going} of {switch.retired}")
    if retired.life is Life.AWAY:
        return Turn(switch=switch.at(Step.DELETED))
    if retired.jobs and not retired.deletes:
        return Turn(switch=switch, waits=f"{_counted(retired.jobs, 'job')} of {switch.retired}", is_work=True)
    if not retired.deletes:
        return Turn(switch=switch, act=Act.DELETE, colour=switch.retired)
    what = _counted(retired.leases, "lease") if retired.leases else "instances"
    return Turn(switch=switch, waits=f"the last {what} of {switch.retired}", is_work=True)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


# --- for people ----------------------------------------------------------------------------------------------


def said_of(switch: Switch) -> str:
    """Say where a switch stands; one sentence without its end."""
    old, new, kept, retired = switch.old, switch.new, switch.kept, switch.retired
    back = "" if switch.is_aborting else "; from here on, there is no way back"
    steps = {
        Step.BEGUN: f"switching from {old} to {new}",
        Step.STARTED: f"{kept} runs, and asks for no jobs yet",
        Step.TRIED: f"{kept} has run a canary",
        Step.POLLING: f"{kept} asks for jobs, and GitLab answers it",
        Step.STOPPED: f"{retired} asks for no more jobs",
        Step.DRAINED: f"all jobs of {retired} are over",
        Step.DELETING: f"{retired} is being deleted, with its fleet{back}",
        Step.DELETED: f"{retired} has ended, and its fleet is gone",
        Step.OVER: f"done: {new} has the jobs, and {old} is gone",
    }
    if switch.is_aborting:
        steps[Step.BEGUN] = f"aborting the switch to {new}: {old} stays"
        steps[Step.OVER] = f"aborted: {old} has the jobs, as before, and {new} is gone"
    return steps[switch.step]


def said_of_act(act: Act, colour: str) -> str:
    """Say what is being done; one sentence without its end."""
    return {
        Act.START: f"starting {colour}, paused",
        Act.FLY_CANARY: f"running a canary through {colour}",
        Act.PAUSE: f"pausing {colour}",
        Act.UNPAUSE: f"having {colour} ask for jobs",
        Act.DELETE: f"having {colour} end, and delete its instances",
        Act.TIDY: f"removing the mark that {colour} is paused",
    }[act]
