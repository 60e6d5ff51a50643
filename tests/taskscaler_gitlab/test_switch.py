"""What a switch does next: some colour takes jobs at any time, each job ends where it began, the old fleet goes."""

from contextlib import suppress
from itertools import count

import pytest
from attrs import evolve
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from taskscaler_gitlab.switching._switch import (
    Act,
    Life,
    Refused,
    Service,
    Step,
    Stuck,
    Switch,
    abort,
    begin,
    resume,
    said_of,
    said_of_act,
    take_turn,
)
from tests.taskscaler_gitlab.switch_in_time import Killed, SimWorld

RUNS = Service(life=Life.THERE, answered=True)
SWITCH = Switch(old="blue", new="green")
COLOURS = st.sampled_from(["blue", "green"])
EARLY = (Step.BEGUN, Step.STARTED, Step.TRIED, Step.POLLING, Step.STOPPED, Step.DRAINED)


def with_jobs(number: int = 3) -> SimWorld:
    """A world whose old colour has jobs."""
    world = SimWorld()
    for job in range(number):
        world.ask("blue")
        world.answer("blue", f"job {job}")
    return world


def test_a_switch_from_its_beginning_to_its_end() -> None:
    """Each thing is done once, in the order in which nobody notices."""
    world, steps = with_jobs(), []
    world.command(aborts=False)
    while world.kept is not None and world.kept.step is not Step.OVER:
        steps.append(world.kept.step)
        before = sum(world.acts.values())
        world.turn()
        if sum(world.acts.values()) == before:
            for name in world.colours:
                world.proceed(name)
                world.ask(name)
                world.answer(name, None)
                world.end_a_job(name)
    assert [*dict.fromkeys(steps)] == [*Step][:-1]
    assert world.acts == dict.fromkeys(Act, 1)
    world.check_over()


def test_a_request_that_gitlab_holds_is_waited_for() -> None:
    """It may bring a job, which ends where it began like all others."""
    world = with_jobs(0)
    world.command(aborts=False)
    while world.kept is not None and world.kept.step is not Step.POLLING:
        _let_time_pass(world)
        world.turn()
    world.ask("blue")
    waits = [world.turn().waits for _ in range(4)]
    assert waits == ["", *["1 open request of blue"] * 3]
    world.answer("blue", "the last one")
    waits = [world.turn().waits for _ in range(3)]
    assert waits == ["", *["1 job of blue"] * 2]
    world.settle()
    world.check_over()


@pytest.mark.parametrize("aborts_at", [None, *EARLY], ids=lambda step: step.value if step else "not aborted")
def test_the_command_is_killed_at_every_point(aborts_at: Step | None) -> None:
    """Before and after each write and each act, going forward and going back: the same command comes to the end."""
    for fuse in count():
        world = with_jobs()
        world.fuse = fuse
        try:
            _command(world, aborts_at)
        except Killed:
            world.fuse = -1
            _command(world, aborts_at)
        else:
            break
        world.check_over()
    assert fuse > 10, "there were points"


def _command(world: SimWorld, aborts_at: Step | None) -> None:
    if world.kept is None or not world.kept.is_aborting:
        world.command(aborts=False)
        for _ in range(200):
            assert world.kept is not None
            if world.kept.step in (aborts_at, Step.OVER):
                break
            _let_time_pass(world)
            world.turn()
    if aborts_at is not None:
        world.command(aborts=True)
    fuse, points = world.fuse, world.points
    for _ in range(200):
        assert world.kept is not None
        if world.kept.step is Step.OVER:
            return
        _let_time_pass(world)
        world.turn()
    pytest.fail(f"it does not come to an end: {fuse}, {points}")


def _let_time_pass(world: SimWorld, *, ends_jobs: bool = True) -> None:
    for name in world.colours:
        world.proceed(name)
        world.ask(name)
        world.answer(name, None)
        if ends_jobs:
            world.end_a_job(name)


class Switching(RuleBasedStateMachine):
    """A switch under which jobs come and end, and anything may be killed."""

    @initialize(number=st.integers(0, 3))
    def start(self, number: int) -> None:
        """The old colour has jobs."""
        self.world = with_jobs(number)
        self.numbers = count(number)

    @precondition(lambda self: self.world.kept is None)
    @rule(fuse=st.integers(-1, 1))
    def begin(self, fuse: int) -> None:
        """An operator begins."""
        self.world.fuse = fuse
        try:
            self.world.command(aborts=False)
        except Killed:
            pass
        except Refused:
            assert self.world.was_killed, "there was something to switch"

    @precondition(lambda self: self.world.kept is not None and self.world.kept.step is not Step.OVER)
    @rule(turns=st.integers(1, 5), fuse=st.one_of(st.just(-1), st.integers(0, 9)))
    def go_on(self, turns: int, fuse: int) -> None:
        """The command does one thing after the other, or is killed meanwhile."""
        self.world.fuse = fuse
        with suppress(Killed):
            for _ in range(turns):
                if self.world.kept is not None and self.world.kept.step is not Step.OVER:
                    self.world.turn()

    @rule()
    def pass_time(self) -> None:
        """Services come up, ask and are answered."""
        for name in self.world.colours:
            self.world.proceed(name)
            self.world.ask(name)
            self.world.answer(name, None)

    @precondition(lambda self: self.world.kept is not None)
    @rule(fuse=st.integers(-1, 1))
    def abort(self, fuse: int) -> None:
        """An operator wants to go back."""
        kept = self.world.kept
        assert kept is not None
        is_late = not kept.is_aborting and not kept.can_be_aborted
        self.world.fuse = fuse
        try:
            self.world.command(aborts=True)
            assert not is_late
        except Killed:
            pass
        except Refused:
            assert is_late

    @rule(name=COLOURS)
    def ask(self, name: str) -> None:
        """A colour that takes jobs asks for one."""
        self.world.ask(name)

    @rule(name=COLOURS, has_job=st.booleans())
    def answer(self, name: str, has_job: bool) -> None:  # noqa: FBT001  (a rule's)
        """GitLab answers."""
        self.world.answer(name, f"job {next(self.numbers)}" if has_job else None)

    @rule(name=COLOURS)
    def end_a_job(self, name: str) -> None:
        """One is over."""
        self.world.end_a_job(name)

    @rule(name=COLOURS)
    def proceed(self, name: str) -> None:
        """A service comes up, or has ended."""
        self.world.proceed(name)

    @invariant()
    def all_is_as_promised(self) -> None:
        """Somebody takes jobs, and has been tried."""
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        """Left alone, it comes to its end."""
        if hasattr(self, "world") and self.world.kept is not None:
            self.world.settle()
            kept = self.world.colours[self.world.kept.kept]
            if kept.life is Life.THERE and not kept.ending:
                self.world.check_over()


class Killing(Switching):
    """The same, and services are killed as well."""

    @precondition(lambda self: self.world.kept is not None)
    @rule(name=COLOURS)
    def kill(self, name: str) -> None:
        """A service is killed."""
        self.world.kill(name)

    @precondition(lambda self: self.world.was_killed)
    @rule(name=COLOURS)
    def supervise(self, name: str) -> None:
        """Somebody starts it again who knows nothing of switches, if it has something left."""
        colour = self.world.colours[name]
        if colour.life is Life.AWAY and (colour.instances or colour.jobs):
            colour.begin()


Switching.TestCase.settings = settings(deadline=None, max_examples=100, stateful_step_count=30)
Killing.TestCase.settings = settings(deadline=None, max_examples=100, stateful_step_count=30)
test_a_switch_under_which_the_command_is_killed = Switching.TestCase
test_a_switch_under_which_services_are_killed_too = Killing.TestCase


@pytest.mark.parametrize("name", ["blue", "green"])
@pytest.mark.parametrize("step", [*EARLY, Step.DELETING])
def test_a_service_is_killed_at_each_step(step: Step, name: str) -> None:
    """It is started again, its jobs go on, and as long as there is a way back, the old colour takes jobs meanwhile."""
    world = with_jobs()
    world.command(aborts=False)
    while world.kept is not None and world.kept.step is not step:
        _let_time_pass(world, ends_jobs=step is Step.DELETING or step is Step.DRAINED)
        world.turn()
    for job in range(10, 12) if world.colours[name].life is Life.THERE else ():
        world.colours[name].jobs.add(f"job {job}")
        world.began[f"job {job}"] = name
    world.kill(name)
    if name == "green" and step in (Step.POLLING, Step.STOPPED, Step.DRAINED):
        while world.acts[Act.START] < 2:
            world.turn()
        assert world.colours["blue"].asks
    world.settle()
    world.check_over()


@pytest.mark.parametrize(
    ("blue", "green", "why"),
    [
        (Service(), RUNS, "green is the running colour already; to switch back, use --to blue"),
        (evolve(RUNS, paused=True), RUNS, "green is the running colour already"),
        (RUNS, RUNS, "both colours ask for jobs"),
        (Service(), Service(), "blue does not run, so there is nothing to switch from; start blue, or start green"),
        (Service(), evolve(RUNS, paused=True), "blue does not run"),
        (evolve(RUNS, paused=True), Service(), "blue is paused, so green would take over no jobs"),
        (Service(life=Life.BUSY), Service(), "blue has its socket and does not answer"),
        (RUNS, Service(life=Life.BUSY), "green has its socket and does not answer"),
        (evolve(RUNS, ending=True), Service(), "blue is ending"),
    ],
)
def test_where_there_is_nothing_to_switch_one_sentence_says_so(blue: Service, green: Service, why: str) -> None:
    """And what to do instead; nothing is written."""
    with pytest.raises(Refused, match=why):
        begin("green", {"blue": blue, "green": green}, 0.0, {"blue": "blue.toml", "green": "green.toml"})


def test_a_switch_that_is_under_way_is_finished_first() -> None:
    """Or aborted, as long as there is a way back; the sentence names the options."""
    assert resume(SWITCH, "green") is SWITCH
    with pytest.raises(Refused, match="finish it with --to green, or go back with --abort"):
        resume(SWITCH, "blue")
    with pytest.raises(Refused, match=r"finish it with --to green$"):
        resume(SWITCH.at(Step.DELETING), "blue")
    aborting = abort(SWITCH.at(Step.POLLING), 7.0)
    assert (aborting.step, aborting.reached, aborting.kept) == (Step.BEGUN, Step.POLLING, "blue")
    assert abort(aborting, 8.0) is aborting
    with pytest.raises(Refused, match="is being aborted; finish that with --abort"):
        resume(aborting, "green")
    for step in (Step.DELETING, Step.DELETED):
        with pytest.raises(Refused, match="finish it with --to green, then switch back with --to blue"):
            abort(SWITCH.at(step), 0.0)
    for nothing in (None, SWITCH.at(Step.OVER)):
        with pytest.raises(Refused, match="nothing to abort"):
            abort(nothing, 0.0)


def test_what_nothing_can_be_done_about_is_said() -> None:
    """Somebody else drains the colour that is to stay, or keeps instances of the one that is to go."""
    ending = evolve(RUNS, ending=True)
    with pytest.raises(Stuck, match="green is ending, because somebody drains it"):
        take_turn(SWITCH.at(Step.POLLING), ending, RUNS)
    retaining = evolve(RUNS, paused=True, retained=("i-1", "i-2"))
    with pytest.raises(Stuck, match=r"blue retains 2 instances \(i-1, i-2\).*`taskscaler retain --undo i-1`"):
        take_turn(SWITCH.at(Step.STOPPED), RUNS, retaining)


def test_every_step_and_act_has_its_sentence() -> None:
    """No two steps of a direction have the same."""
    for switch in (SWITCH, evolve(SWITCH, is_aborting=True)):
        assert len({said_of(switch.at(step)) for step in Step}) == len(Step)
    assert len({said_of_act(act, "green") for act in Act}) == len(Act)
