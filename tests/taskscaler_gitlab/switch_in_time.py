"""Two colours of a service, a GitLab and a command that switches them, without time: any of them may be killed."""

from collections import Counter
from collections.abc import Mapping

from attrs import define, evolve, field

from taskscaler_gitlab.switching._switch import (
    Act,
    Life,
    Service,
    Step,
    Switch,
    Turn,
    abort,
    begin,
    resume,
    take_turn,
    tried,
)


class Killed(Exception):
    """The command ends here."""


@define
class SimColour:
    """One of the services, what it has on disk, and its fleet."""

    name: str
    is_noted_paused: bool = False
    jobs: set[str] = field(factory=set)
    """On disk: they outlive the process."""

    instances: int = 0
    life: Life = Life.AWAY
    paused: bool = False
    answered: bool = False
    requests: int = 0
    ending: bool = False
    flown: bool = False
    """Whether a canary has passed through it."""

    def begin(self) -> None:
        """A process starts, and has its socket."""
        self.life, self.paused, self.answered = Life.BUSY, self.is_noted_paused, False
        self.requests, self.ending = 0, False

    def come_up(self) -> None:
        """It answers, and has the instances that its policy wants."""
        self.life, self.instances = Life.THERE, max(1, self.instances)

    def die(self) -> None:
        """It is killed: what GitLab answers to its requests goes to nobody, and to another one later."""
        self.life, self.requests, self.ending = Life.AWAY, 0, False

    @property
    def asks(self) -> bool:
        """Whether it takes jobs."""
        return self.life is Life.THERE and not self.paused and not self.ending

    def seen(self) -> Service:
        """As the command sees it."""
        if self.life is Life.AWAY:
            return Service(paused=self.is_noted_paused, left=len(self.jobs) + self.instances)
        if self.life is Life.BUSY:
            return Service(life=Life.BUSY)
        return Service(
            life=Life.THERE,
            paused=self.paused,
            answered=self.answered,
            requests=self.requests,
            jobs=len(self.jobs),
            ending=self.ending,
            deletes=self.ending,
        )


@define
class SimWorld:
    """All of it. The old colour is blue."""

    colours: dict[str, SimColour] = field(init=False)
    kept: Switch | None = field(default=None, init=False)
    """On disk."""

    began: dict[str, str] = field(factory=dict, init=False)
    """With which colour each job began."""

    ended: dict[str, str] = field(factory=dict, init=False)
    acts: Counter[Act] = field(factory=Counter, init=False)
    was_killed: bool = field(default=False, init=False)
    """Whether a service was."""

    fuse: int = field(default=-1, init=False)
    """After so many more points the command is killed; negative: never."""

    points: int = field(default=0, init=False)
    """Points at which it could have been."""

    @colours.default
    def _both(self) -> dict[str, SimColour]:
        blue = SimColour("blue", instances=2)
        blue.begin()
        blue.come_up()
        blue.answered = True
        return {"blue": blue, "green": SimColour("green")}

    # --- GitLab, and the machines ------------------------------------------------------------------------

    def ask(self, name: str) -> None:
        """A colour makes a request, if it does that now."""
        colour = self.colours[name]
        if colour.asks and not colour.requests:
            colour.requests = 1

    def answer(self, name: str, job: str | None) -> None:
        """It gets an answer, with a job or without."""
        colour = self.colours[name]
        if not colour.requests:
            return
        colour.requests, colour.answered = 0, True
        if job is not None:
            colour.jobs.add(job)
            self.began[job] = name

    def end_a_job(self, name: str) -> None:
        """A job of a colour that runs comes to its end."""
        colour = self.colours[name]
        if colour.life is Life.THERE and colour.jobs:
            job = min(colour.jobs)
            colour.jobs.remove(job)
            self.ended[job] = name

    def proceed(self, name: str) -> None:
        """A process that starts comes up, one that ends is gone with its fleet."""
        colour = self.colours[name]
        if colour.life is Life.BUSY:
            colour.come_up()
        elif colour.life is Life.THERE and colour.ending and not colour.jobs:
            colour.die()
            colour.instances = 0

    # --- the command -------------------------------------------------------------------------------------

    def check(self) -> None:
        """What is promised at any moment."""
        if not self.was_killed:
            assert any(each.asks and each.answered for each in self.colours.values()), "somebody takes jobs"
            assert all(each.life is not Life.AWAY or not each.jobs for each in self.colours.values())
        if self.kept is not None and not self.kept.is_aborting:
            green = self.colours["green"]
            assert not green.asks or green.flown, "it was tried first"

    def kill(self, name: str) -> None:
        """Kill a service: it is not there any more, and what it has on disk is."""
        if self.colours[name].life is not Life.AWAY:
            self.colours[name].die()
            self.was_killed = True

    def _point(self) -> None:
        self.check()
        self.points += 1
        self.fuse -= 1
        if self.fuse == -1:
            raise Killed

    def _write(self, switch: Switch) -> None:
        retired = self.colours[switch.retired]
        if switch.step in (Step.STOPPED, Step.DRAINED, Step.DELETING) and retired.life is Life.THERE:
            assert (retired.paused, retired.requests) == (True, 0)
            assert switch.step is Step.STOPPED or not retired.jobs
        self._point()
        self.kept = switch
        self._point()

    @property
    def there(self) -> Mapping[str, Service]:
        """Both as they are seen."""
        return {name: each.seen() for name, each in self.colours.items()}

    def command(self, *, aborts: bool) -> None:
        """Begin the command, with what it finds."""
        if aborts:
            self._write(abort(self.kept, 0.0))
        elif self.kept is None:
            self._write(begin("green", self.there, 0.0, {}))
        else:
            resume(self.kept, "green")

    def turn(self) -> Turn:
        """One turn of it."""
        assert self.kept is not None
        switch = self.kept
        turn = take_turn(switch, self.colours[switch.kept].seen(), self.colours[switch.retired].seen())
        assert (turn.switch != switch) + (turn.act is not None) + bool(turn.waits) == 1, "one thing at a time"
        if turn.switch != switch:
            self._write(turn.switch)
        elif turn.act is not None:
            self._point()
            self._do(turn.act, self.colours[turn.colour])
            self._point()
        return turn

    def _do(self, act: Act, colour: SimColour) -> None:
        self.acts[act] += 1
        switch = self.kept
        assert switch is not None
        match act:
            case Act.START:
                assert colour.life is Life.AWAY
                colour.is_noted_paused = True
                self._point()
                colour.begin()
            case Act.FLY_CANARY:
                assert (colour.life, colour.paused) == (Life.THERE, True)
                colour.flown = True
                self._point()
                self._write(tried(switch))
            case Act.PAUSE:
                colour.is_noted_paused = colour.paused = True
            case Act.UNPAUSE:
                colour.is_noted_paused = colour.paused = False
            case Act.DELETE:
                assert switch.step is Step.DELETING, "it was written down that there is no way back"
                assert not colour.jobs, "GitLab's jobs are over"
                colour.ending = True
            case Act.TIDY:
                colour.is_noted_paused = False

    def settle(self, *, turns: int = 200) -> None:
        """Go on, with nobody killed any more, until it is over."""
        self.fuse = -1
        for _ in range(turns):
            assert self.kept is not None
            if self.kept.step is Step.OVER:
                return
            for name in self.colours:
                self.proceed(name)
                self.ask(name)
                self.answer(name, None)
                self.end_a_job(name)
            self.turn()
            self.check()
        raise AssertionError(f"it does not come to an end: {self.kept}")

    def check_over(self) -> None:
        """What is promised once it is over."""
        assert self.kept is not None
        assert self.kept.step is Step.OVER
        kept, retired = self.colours[self.kept.kept], self.colours[self.kept.retired]
        assert (retired.life, retired.instances, retired.jobs) == (Life.AWAY, 0, set())
        assert not retired.is_noted_paused
        assert (kept.life, kept.paused, kept.is_noted_paused) == (Life.THERE, False, False)
        kept.begin()
        kept.come_up()
        for _ in range(len(kept.jobs)):
            self.end_a_job(kept.name)
        assert self.ended == self.began, "each job ended where it began"


__all__ = ["Killed", "SimColour", "SimWorld", "evolve"]
