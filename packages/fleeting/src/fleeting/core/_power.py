"""Which instances sleep: suspending and resuming them, and what came of it. Pure.

Where the group can suspend, an instance that is READY may be put to sleep: it is ASLEEP from the moment at which that
is decided, and WAITING again once it is woken, by us or by somebody else; so it passes the readiness steps once more.
One that cannot be suspended is woken at once; one that cannot be resumed is ASLEEP again.

`Power` owns what is asked of the cloud about that and has not been answered, which of those ASLEEP no view has shown as
suspended yet, and the backoffs of both.
"""

from collections.abc import Iterable, Mapping
from math import inf

from fleeting._types import State
from fleeting.core import messages
from fleeting.core._chance import Chance
from fleeting.core._context import Context
from fleeting.core._due import Due, Timer
from fleeting.core._instance import Instance
from fleeting.core._pacing import Backoff
from fleeting.core._stages import Asleep, Boot, Sleep, Stage, Start, Waiting
from fleeting.core._views import Views

RESTING = frozenset({State.SUSPENDING, State.SUSPENDED})
"""How the cloud shows what sleeps."""


class Power:
    """The sleep of one group's instances."""

    def __init__(self, context: Context, views: Views, chance: Chance, *, suspends: bool) -> None:
        """Nothing is asked yet; *suspends*: whether instances can be suspended and resumed."""
        self._context = context
        self._views = views
        self._timers = context.timers
        self.suspends = suspends
        config = context.config
        self.suspending = Backoff(config.backoff_initial, config.backoff_cap, chance)
        """Whether suspending went wrong, so that it is not to be tried for a while; to be read."""

        self.resuming = Backoff(config.backoff_initial, config.backoff_cap, chance)
        """The same of resuming."""

        self.falling: set[str] = set()
        """Those ASLEEP that no view has shown as suspended yet; to be read."""

        self._unanswered: set[str] = set()
        """Those of which the cloud has not answered yet whether they are suspended, or resumed."""

    # --- what is wanted ----------------------------------------------------------------------------------

    def may_suspend(self, known: Instance) -> bool:
        """Whether it is in a state in which `put_to_sleep` has an effect."""
        at_hand = known.stage is Stage.READY and self._may_turn(known)
        return self.suspends and at_hand and known.state in {State.RUNNING, *RESTING}

    def may_resume(self, known: Instance) -> bool:
        """Whether it is in a state in which `wake` has an effect."""
        return known.stage is Stage.ASLEEP and self._may_turn(known) and known.state is State.SUSPENDED

    def _may_turn(self, known: Instance) -> bool:
        """Whether the cloud can be asked to suspend or resume it: it is there and ours, and no answer is awaited."""
        return not (known.missed or known.id in self._unanswered or self._context.disowned)

    def put_to_sleep(self, reasons: Mapping[str, str], now: float) -> None:
        """In one request; that of one that somebody else has suspended is only noted."""
        for known in self._context.table.known(reasons):
            if self.may_suspend(known):
                self.fall_asleep(known, reasons[known.id], now)
                if known.state is State.RUNNING:
                    self._unanswered.add(known.id)
                    self._context.turn.suspensions.append(known.id)
                self._views.expect(now)

    def wake(self, instances: Iterable[str], now: float) -> None:
        """In one request; passes over those that are not known to be suspended."""
        for known in self._context.table.known(instances):
            if self.may_resume(known):
                self.wake_up(known, Boot(Start.RESUMED, now), now)
                self.time_boot(known)
                self._unanswered.add(known.id)
                self._context.turn.resumptions.append(known.id)
                self._views.expect(now)

    # --- falling asleep and waking up --------------------------------------------------------------------

    def fall_asleep(self, known: Instance, why: str, now: float) -> None:
        """It sleeps, or is about to; nothing else is done with it."""
        sleep = known.sleep
        since = now if sleep is None or sleep.since is None else sleep.since
        sleep = Sleep(why if sleep is None else sleep.why, since)
        self._context.table.pause(known, "")
        self._context.stop(known.id)
        self._context.table.move(known, Asleep(sleep))
        if known.state is State.SUSPENDED:
            self.falling.discard(known.id)
        else:
            self.falling.add(known.id)
        turn = self._context.turn
        turn.write_instance(known.id)
        turn.actions.append(messages.Forget(self._context.pool, known.id))

    def wake_up(self, known: Instance, boot: Boot, now: float, *, unsure_since: float = -inf) -> None:
        """It is to run; it has to become ready as if it were new."""
        self.falling.discard(known.id)
        self._context.stop(known.id)
        known.notices = tuple(each for each in known.notices if each.deadline > now)  # it slept through the others
        self._context.table.move(known, Waiting(boot, unsure_since))
        self._context.turn.write_instance(known.id)
        self._timers.set(Timer(Due.READY, known.id), now + self._context.config.instance_ready_timeout)

    def time_boot(self, known: Instance) -> None:
        """One that was to be resumed need not be lost as long as it sleeps: views decide which timer ends its try."""
        if isinstance(known.phase, Waiting) and known.phase.boot.start is Start.NEW:  # it never slept
            return
        ready, resumed = Timer(Due.READY, known.id), Timer(Due.RESUMED, known.id)
        sleeps_on = self._sleeps_on(known)
        before, after = (ready, resumed) if sleeps_on else (resumed, ready)
        at = self._timers.at(before)
        if at is not None:
            self._timers.cancel(before)
            self._timers.set(after, at)

    def _sleeps_on(self, known: Instance) -> bool:
        """Whether it was to be resumed, and no view shows that it is."""
        resumed = isinstance(known.phase, Waiting) and known.phase.boot.start is Start.RESUMED
        return resumed and known.state in RESTING

    # --- what views show ---------------------------------------------------------------------------------

    def about_to_sleep(self, instance: str) -> bool:
        """Whether the cloud is being asked to suspend it, or has accepted that: then it may be seen running still."""
        return instance in self._unanswered or Timer(Due.SUSPENDED, instance) in self._timers

    def seen_suspended(self, known: Instance) -> None:
        """It has fallen asleep; that one sleeps on, as each view shows, says nothing of those that do not."""
        if known.id in self.falling:
            self.falling.discard(known.id)
            self.suspending.succeeded()

    def forget(self, instance: str) -> None:
        """It is no more, or is to be removed."""
        if self.falling or self._unanswered:
            self.falling.discard(instance)
            self._unanswered.discard(instance)

    # --- the cloud's answers -----------------------------------------------------------------------------

    def _answered(self, asked: Iterable[str]) -> None:
        """The cloud can be asked to suspend or resume them again."""
        self._unanswered.difference_update(asked)
        for known in self._context.table.known(asked):
            self._context.table.note_change(known)

    def suspend_answered(self, fact: messages.SuspendAccepted | messages.SuspendFailed, now: float) -> None:
        """Those that the cloud did not take go on running; whether those that it took fall asleep, views show."""
        accepted, error, retry_after = _answer(fact)
        self._answered(fact.asked)
        for known in self._context.table.known(fact.asked):
            if known.id not in self.falling or known.state in RESTING:
                continue
            if known.id in accepted:
                at = now + self._context.config.deletion_retry_interval
                self._timers.set(Timer(Due.SUSPENDED, known.id), at)
            else:
                self.not_suspended(known, error, now, retry_after)
        self._views.expect(now)

    def not_suspended(self, known: Instance, error: str, now: float, retry_after: float | None = None) -> None:
        """It goes on running, as far as is known: a view shows it."""
        self.suspending.failed(f"instance {known.id} could not be suspended: {error}", now, retry_after)
        self.wake_up(known, Boot(Start.WOKEN), now, unsure_since=now)
        self._views.fetch(now)

    def resume_answered(self, fact: messages.ResumeAccepted | messages.ResumeFailed, now: float) -> None:
        """Those that the cloud did not take sleep on."""
        accepted, error, retry_after = _answer(fact)
        self._answered(fact.asked)
        for known in self._context.table.known(fact.asked):
            if self._sleeps_on(known) and known.id not in accepted:
                self.not_resumed(known, error, now, retry_after)
        self._views.expect(now)

    def not_resumed(self, known: Instance, error: str, now: float, retry_after: float | None = None) -> None:
        """It sleeps on, as far as is known."""
        self.resuming.failed(f"instance {known.id} could not be resumed: {error}", now, retry_after)
        known.resume_failures += 1
        self.fall_asleep(known, f"it could not be resumed: {error}", now)


def _answer(
    fact: messages.SuspendAccepted | messages.SuspendFailed | messages.ResumeAccepted | messages.ResumeFailed,
) -> tuple[tuple[str, ...], str, float | None]:
    """Which the cloud accepted; why not the others; and for how long it wants to be left alone."""
    match fact:
        case messages.SuspendAccepted() | messages.ResumeAccepted():
            return fact.accepted, "the cloud did not accept it", None
        case messages.SuspendFailed() | messages.ResumeFailed():
            return (), fact.error, fact.retry_after
