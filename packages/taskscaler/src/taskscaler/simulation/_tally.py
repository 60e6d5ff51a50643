"""Adds up what happens in a simulation, while it happens; what it keeps does not grow with time, but for waits."""

from array import array
from collections.abc import Mapping

from attrs import define, field

from taskscaler.core._choices import NOT_NEEDED
from taskscaler.core._decide import Decision
from taskscaler.simulation._churn import Churn
from taskscaler.simulation._outcome import Delays, Reason, Series, Waits

STEPS = 400
"""At least so many steps has what is drawn of the time in which jobs come, and never more than twice as many."""

NICE = (1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0, 7200.0, 10800.0, 21600.0)
"""Seconds that a step takes in the beginning."""

MOST_REASONS = 100
OTHERS = "for other reasons"
"""What all further ones are counted as."""


def step_of(seconds: float) -> float:
    """How long a step is if jobs come for so long."""
    most = seconds / STEPS
    return max((each for each in NICE if each <= most), default=1.0)


@define(eq=False)
class Step:
    """What happened in a span of time, and how many instances and busy slots there were at its end, and at most."""

    submitted: int = 0
    started: int = 0
    waited: float = 0.0
    """Seconds that those had waited which started."""

    longest: float = 0.0
    instances: int = 0
    busy: int = 0
    waiting: int = 0
    peak_instances: int = 0
    peak_busy: int = 0

    def and_then(self, later: "Step") -> "Step":
        """Both as one."""
        return Step(
            self.submitted + later.submitted,
            self.started + later.started,
            self.waited + later.waited,
            max(self.longest, later.longest),
            later.instances,
            later.busy,
            max(self.waiting, later.waiting),
            max(self.peak_instances, later.peak_instances),
            max(self.peak_busy, later.peak_busy),
        )


@define(eq=False)
class Tally:
    """Sums, counts and columns."""

    begins: float
    step: float
    at_once: int = 0
    waited: "array[float]" = field(factory=lambda: array("d"))
    came: "array[float]" = field(factory=lambda: array("d"))
    """When each of those came that waited."""

    refused: int = 0
    interrupted: int = 0
    done: int = 0
    waiting: int = 0
    running: int = 0
    peak_waiting: int = 0
    peak_instances: int = 0
    busy: float = 0.0
    """Seconds."""

    decisions: int = 0
    reasons: dict[str, list[int]] = field(factory=dict)
    """How many decisions and instances, by why."""

    churn: Churn = field(factory=Churn)
    held_back: dict[str, float] = field(factory=dict)
    """For how many seconds requests were held back, by pool and why."""

    steps: list[Step] = field(factory=list)
    this_step: Step = field(factory=Step)
    step_began: float = field(init=False)
    """When this one did."""

    @step_began.default
    def _first_began(self) -> float:
        return self.begins

    def submit(self) -> None:
        """A job has come, and has no slot yet."""
        self.this_step.submitted += 1
        self.waiting += 1

    def queue(self) -> None:
        """It got none at once."""
        waiting, step = self.waiting, self.this_step
        step.waiting = max(step.waiting, waiting)
        self.peak_waiting = max(self.peak_waiting, waiting)

    def start(self, came: float, waited: float) -> None:
        """A job got a slot that came then, after so many seconds."""
        self.running += 1
        step = self.this_step
        step.started += 1
        step.peak_busy = max(step.peak_busy, self.running)
        if waited > 0:
            self.waited.append(waited)
            self.came.append(came)
            step.waited += waited
            step.longest = max(step.longest, waited)
        else:
            self.at_once += 1

    def grow(self, instances: int) -> None:
        """There are more instances than there were: so many."""
        step = self.this_step
        step.peak_instances = max(step.peak_instances, instances)
        self.peak_instances = max(self.peak_instances, instances)

    def end_step(self, instances: int, now: float) -> None:
        """A step is over; so many instances exist. Once there are too many, each two become one."""
        step, self.this_step, self.step_began = self.this_step, Step(), now
        step.instances, step.busy = instances, self.running
        self.this_step.waiting = self.waiting
        self.this_step.peak_instances, self.this_step.peak_busy = instances, self.running
        self.steps.append(step)
        if len(self.steps) == 2 * STEPS:
            self.steps = [
                earlier.and_then(later) for earlier, later in zip(self.steps[::2], self.steps[1::2], strict=True)
            ]
            self.step *= 2

    def decide(self, decision: Decision) -> None:
        """Take in what a decision did, and why. Nothing is withdrawn here: no simulated cloud can do that."""
        self.decisions += bool(decision.increase or decision.removals or decision.sleeps or decision.wakes)
        for pool in decision.pools:
            if pool.increase:
                demand = decision.demand
                self._count("request: jobs wait" if demand.pending else "request: slots to keep idle", pool.increase)
                self.churn.ask(pool.pool, pool.increase, decision.at)
        for removal in decision.removals:
            if removal.why == NOT_NEEDED:
                self.churn.give_up(removal.pool, 1, decision.at)
        for verb, choices in (
            ("remove", decision.removals),
            ("suspend", decision.sleeps),
            ("resume", decision.wakes),
        ):
            by_why: dict[str, int] = {}
            for choice in choices:
                by_why[choice.why] = by_why.get(choice.why, 0) + 1
            for why, instances in by_why.items():
                self._count(f"{verb}: {why}", instances)

    def note_limits(self, decision: Decision, seconds: float) -> None:
        """For so long, what holds requests back is what this decision says."""
        for pool in decision.pools:
            if pool.wanted > pool.increase and pool.limited_by:
                backs_off = pool.limited_by.startswith("backoff (")  # which goes on in words of the cloud's
                why = f"{pool.pool}: {'backoff' if backs_off else pool.limited_by}"
                self.held_back[why] = self.held_back.get(why, 0.0) + seconds

    def forget_decisions(self) -> None:
        """Begin to count them."""
        self.decisions = 0
        self.reasons.clear()
        self.churn = Churn()

    def _count(self, why: str, instances: int) -> None:
        if why not in self.reasons and len(self.reasons) >= MOST_REASONS:
            why = OTHERS
        counts = self.reasons.setdefault(why, [0, 0])
        counts[0] += 1
        counts[1] += instances

    def waits(self) -> Waits:
        """Of all jobs that got a slot."""
        return Waits(self.at_once, array("d", sorted(self.waited)))

    def delays(self) -> Delays:
        """Of those that waited, in the order in which they got a slot."""
        return Delays(self.came, self.waited)

    def all_reasons(self) -> Mapping[str, Reason]:
        """The most frequent first."""
        ordered = sorted(self.reasons.items(), key=lambda each: (-each[1][0], each[0]))
        return {why: Reason(decisions=decisions, instances=instances) for why, (decisions, instances) in ordered}

    def series(self) -> Series:
        """How it went."""
        steps = self.steps
        return Series(
            begins=self.begins,
            step=self.step,
            submitted=tuple(step.submitted for step in steps),
            instances=tuple(step.instances for step in steps),
            busy=tuple(step.busy for step in steps),
            waiting=tuple(step.waiting for step in steps),
            peak_instances=tuple(step.peak_instances for step in steps),
            peak_busy=tuple(step.peak_busy for step in steps),
            mean_wait=tuple(step.waited / step.started if step.started else 0.0 for step in steps),
            longest_wait=tuple(step.longest for step in steps),
        )
