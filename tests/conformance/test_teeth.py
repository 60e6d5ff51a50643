"""The conformance suite bites: each check finds the faults that it is there for."""

import math
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from itertools import count

import anyio
import pytest
from attrs import evolve, frozen

from fleeting import (
    Capability,
    CapacityUnavailable,
    Completed,
    ConnectInfo,
    GroupInfo,
    GroupRefused,
    InstanceNotFound,
    Notice,
    Observation,
    Observed,
    ProviderError,
    Settings,
    State,
)
from fleeting.plugins import Mark
from fleeting.testing import (
    CHECKS,
    Check,
    Command,
    FakeCloud,
    FakeGroup,
    IncreaseFault,
    SuspendFault,
    Violation,
    judge,
    name_of,
    virtual_time,
)
from tests.conformance.mutants import MUTANTS
from tests.conformance.test_fake import harness_for

pytestmark = pytest.mark.anyio
anyio_backend = virtual_time

# --- groups that are wrong, each in one way -------------------------------------------------------------


class _Nameless(FakeGroup):
    """Does not say which resource it manages."""

    async def init(self, settings: Settings) -> GroupInfo:
        return evolve(await super().init(settings), identity="")


class _Renamed(FakeGroup):
    """Is another resource each time it is opened."""

    _numbers = count()

    async def init(self, settings: Settings) -> GroupInfo:
        return evolve(await super().init(settings), identity=f"group-{next(self._numbers)}")


class _FromTheFuture(FakeGroup):
    """Was written for an interface that does not exist yet."""

    async def init(self, settings: Settings) -> GroupInfo:
        return evolve(await super().init(settings), interface_version=99)


class _BelowNothing(FakeGroup):
    """Has a ceiling that no group can keep."""

    async def init(self, settings: Settings) -> GroupInfo:
        return evolve(await super().init(settings), max_size=-1)


class _Limitless(FakeGroup):
    """Reports a ceiling and does not respect it."""

    async def init(self, settings: Settings) -> GroupInfo:
        return evolve(await super().init(settings), max_size=3)


class _Boastful(FakeGroup):
    """Claims to take requests back, and cannot."""

    withdraw = None  # type: ignore[assignment]


class _Sleepy(FakeGroup):
    """Shows nothing at first."""

    async def update(self) -> Observation:
        first = self._last_view is None
        view = await super().update()
        return Observation({}) if first else view


class _Nostalgic(FakeGroup):
    """Never stops showing what once ran."""

    async def update(self) -> Observation:
        await super().update()
        return Observation({machine: Observed(state=State.RUNNING) for machine in self.cloud.machines})


class _Forgetful(FakeGroup):
    """Takes every repeat for something new."""

    _numbers = count()

    async def increase(self, count: int, *, intent: str) -> int:
        return await super().increase(count, intent=f"{intent}-{next(self._numbers)}")


class _Leaky(FakeGroup):
    """Loses sight of what it was making when it is cancelled."""

    async def increase(self, count: int, *, intent: str) -> int:
        before = set(self.cloud.machines)
        try:
            return await super().increase(count, intent=intent)
        except BaseException:
            for instance in self.cloud.machines.keys() - before:
                self.cloud.machines[instance].shown_at = math.inf
            raise


class _Careless(FakeGroup):
    """Deletes an instance that was not named, too."""

    async def decrease(self, instances: Sequence[str]) -> Sequence[str]:
        bystanders = sorted(self.cloud.alive - set(instances))
        await super().decrease([*instances, *bystanders[:1]])
        return instances


class _Fussy(FakeGroup):
    """Will not delete what is gone."""

    async def decrease(self, instances: Sequence[str]) -> Sequence[str]:
        for instance in instances:
            if instance not in self.cloud.alive:
                raise InstanceNotFound(instance)
        return await super().decrease(instances)


class _Silent(FakeGroup):
    """Does not say that it has accepted the deletion of what is gone."""

    async def decrease(self, instances: Sequence[str]) -> Sequence[str]:
        alive = self.cloud.alive
        return [instance for instance in await super().decrease(instances) if instance in alive]


class _Homeless(FakeGroup):
    """Knows no address."""

    async def connect_info(self, instance: str) -> ConnectInfo:
        return evolve(await super().connect_info(instance), internal_addr=None, external_addr=None)


class _Confused(FakeGroup):
    """Gives the details of another instance."""

    async def connect_info(self, instance: str) -> ConnectInfo:
        return evolve(await super().connect_info(instance), id="another")


class _Indiscreet(FakeGroup):
    """Puts a secret where it can be seen."""

    async def connect_info(self, instance: str) -> ConnectInfo:
        info = await super().connect_info(instance)
        return evolve(info, user=f"fake:{info.password}")


class _Gullible(FakeGroup):
    """Believes in any instance."""

    async def connect_info(self, instance: str) -> ConnectInfo:
        return ConnectInfo(id=instance, internal_addr="nowhere")

    async def heartbeat(self, instance: str) -> None:
        pass


class _Trusting(FakeGroup):
    """Takes an instance that it once knew for healthy."""

    async def heartbeat(self, instance: str) -> None:
        if instance not in self.cloud.machines:
            raise InstanceNotFound(instance)


class _Anxious(FakeGroup):
    """Takes no instance for healthy."""

    async def heartbeat(self, instance: str) -> None:
        raise ProviderError("better safe than sorry")


class _Panicky(FakeGroup):
    """Loses everything when one instance dies."""

    async def update(self) -> Observation:
        if len(self.cloud.alive) < len(self.cloud.machines):
            for instance in self.cloud.alive:
                self.cloud.vanish(instance)
        return await super().update()


class _Thorough(FakeGroup):
    """Takes the instances with it when it is closed."""

    async def shutdown(self) -> None:
        for instance in self.cloud.alive:
            self.cloud.vanish(instance)


class _Greedy(FakeGroup):
    """Takes back more than requests."""

    async def withdraw(self, count: int) -> int:
        for instance in sorted(self.cloud.alive)[:count]:
            self.cloud.vanish(instance)
        return 0


class _Flattering(FakeGroup):
    """Claims to have taken back what it was asked to."""

    async def withdraw(self, count: int) -> int:
        return count


class _Meddling(FakeGroup):
    """Mistakes an observer for its manager."""

    async def init(self, settings: Settings) -> GroupInfo:
        return await super().init(evolve(settings, observe_only=False))


class _Exclusive(FakeGroup):
    """Shows an observer nothing."""

    async def update(self) -> Observation:
        return Observation({}) if self._observing else await super().update()


class _Possessive(FakeGroup):
    """Clears away what it finds, even if it was only to look."""

    async def shutdown(self) -> None:
        if self._observing:
            self.cloud.vanish(max(self.cloud.alive))


class _Hushed(FakeGroup):
    """Listens to notices, and keeps them to itself."""

    def notices(self) -> AsyncIterator[Notice]:
        cloud = FakeCloud()
        cloud.clock = self.cloud.clock
        return cloud.notices()


class _Belated(FakeGroup):
    """Returns the time that is left as the deadline."""

    async def notices(self) -> AsyncIterator[Notice]:
        async for notice in super().notices():
            yield evolve(notice, deadline=notice.deadline - self.cloud.now)


class _SaidOnce(FakeGroup):
    """Passes on the first notice, and stops listening."""

    async def notices(self) -> AsyncIterator[Notice]:
        async for notice in super().notices():
            yield notice
            return


class _Enthralled(FakeGroup):
    """Goes on listening to notices though it is cancelled."""

    async def notices(self) -> AsyncIterator[Notice]:
        listening = super().notices()
        while True:
            with suppress(Exception, anyio.get_cancelled_exc_class()):
                yield await anext(listening)
            await anyio.lowlevel.cancel_shielded_checkpoint()  # whoever looks at it has to have a turn


class _Presumptuous(FakeGroup):
    """Says that its mark is there, though the cloud failed."""

    async def mark_owner(self, until: float | None) -> None:
        with suppress(ProviderError):
            await super().mark_owner(until)


class _Busybody(FakeGroup):
    """Lets an observer suspend instances."""

    async def suspend(self, instances: Sequence[str]) -> Sequence[str]:
        return self.cloud.suspend(instances, SuspendFault())


class _Drowsy(FakeGroup):
    """Claims to suspend, and cannot wake."""

    resume = None  # type: ignore[assignment]


class _Unmarked(FakeGroup):
    """Claims OWNER_MARK, and cannot be marked."""

    mark_owner = None  # type: ignore[assignment]


class _Restless(FakeGroup):
    """Accepts every suspension, and suspends nothing."""

    async def suspend(self, instances: Sequence[str]) -> Sequence[str]:
        return instances


class _Comatose(FakeGroup):
    """Accepts every resumption, and resumes nothing."""

    async def resume(self, instances: Sequence[str]) -> Sequence[str]:
        return instances


class _OutOfMind(FakeGroup):
    """Does not show what is suspended."""

    async def update(self) -> Observation:
        view = await super().update()
        return Observation({each: it for each, it in view.instances.items() if it.state is not State.SUSPENDED})


class _Undertaker(FakeGroup):
    """Reports what is suspended as failed."""

    async def update(self) -> Observation:
        shown = (await super().update()).instances.items()
        asleep = (State.SUSPENDING, State.SUSPENDED)
        return Observation({each: evolve(it, state=State.FAILED) if it.state in asleep else it for each, it in shown})


class _Soporific(FakeGroup):
    """Suspends an instance that was not named, too."""

    async def suspend(self, instances: Sequence[str]) -> Sequence[str]:
        await super().suspend(sorted(self.cloud.alive))
        return instances


class _Reborn(FakeGroup):
    """Replaces the instance that it should resume."""

    async def resume(self, instances: Sequence[str]) -> Sequence[str]:
        self.cloud.launch(len(instances))
        return await super().resume(instances)


class _Estranged(FakeGroup):
    """Forgets, once an instance was suspended, how to log in to it."""

    async def connect_info(self, instance: str) -> ConnectInfo:
        info = await super().connect_info(instance)
        return evolve(info, user=None) if self.cloud.machines[instance].resumed_at < math.inf else info


class _Boundless(FakeGroup):
    """Reports as suspended an instance that it was not asked to suspend."""

    async def suspend(self, instances: Sequence[str]) -> Sequence[str]:
        return [*await super().suspend(instances), "another"]


class _Strict(FakeGroup):
    """Refuses to suspend what is suspended."""

    async def suspend(self, instances: Sequence[str]) -> Sequence[str]:
        if any(self.cloud.machines[each].state(self.cloud.now) is State.SUSPENDED for each in instances):
            raise ProviderError("it is suspended")
        return await super().suspend(instances)


class _Stubborn(FakeGroup):
    """Refuses to resume what runs."""

    async def resume(self, instances: Sequence[str]) -> Sequence[str]:
        asleep = [each for each in instances if self.cloud.machines[each].state(self.cloud.now) is not State.RUNNING]
        return await super().resume(asleep)


class _Squeamish(FakeGroup):
    """Suspends nothing if one is gone."""

    async def suspend(self, instances: Sequence[str]) -> Sequence[str]:
        if gone := set(instances) - self.cloud.alive:
            raise InstanceNotFound(gone.pop())
        return await super().suspend(instances)


class _Credulous(FakeGroup):
    """Reports as resumed what does not exist."""

    async def resume(self, instances: Sequence[str]) -> Sequence[str]:
        return [*await super().resume(instances), *(each for each in instances if each not in self.cloud.alive)]


class _AlarmClock(FakeGroup):
    """Resumes all on shutdown."""

    async def shutdown(self) -> None:
        await super().resume(sorted(self.cloud.alive))
        await super().shutdown()


class _LetsSleep(FakeGroup):
    """Does not delete what is suspended."""

    async def decrease(self, instances: Sequence[str]) -> Sequence[str]:
        awake = [each for each in instances if self.cloud.machines[each].state(self.cloud.now) is not State.SUSPENDED]
        await super().decrease(awake)
        return instances


class _Vague(FakeGroup):
    """Does not say why it cannot resume an instance."""

    async def resume(self, instances: Sequence[str]) -> Sequence[str]:
        try:
            return await super().resume(instances)
        except CapacityUnavailable as error:
            raise ProviderError("it did not work") from error


class _Desperate(FakeGroup):
    """Deletes what it cannot resume."""

    async def resume(self, instances: Sequence[str]) -> Sequence[str]:
        try:
            return await super().resume(instances)
        except CapacityUnavailable:
            await super().decrease(instances)
            raise


class _Unguarded(FakeGroup):
    """Lets anybody put a mark over another's."""

    async def mark_owner(self, until: float | None) -> None:
        self.cloud.owner_mark = None
        await super().mark_owner(until)


class _Thief(FakeGroup):
    """Removes any mark, no matter whose it is."""

    async def mark_owner(self, until: float | None) -> None:
        if until is None:
            self.cloud.owner_mark = None
        else:
            await super().mark_owner(until)


class _Discreet(FakeGroup):
    """Does not name the mark's owner."""

    async def mark_owner(self, until: float | None) -> None:
        try:
            await super().mark_owner(until)
        except GroupRefused as error:
            raise GroupRefused("somebody manages the group") from error


class _Indelible(FakeGroup):
    """Does not remove its mark."""

    async def mark_owner(self, until: float | None) -> None:
        if until is not None:
            await super().mark_owner(until)


class _Set(FakeGroup):
    """Marks the group once, and never renews the mark."""

    async def mark_owner(self, until: float | None) -> None:
        mark = self.cloud.owner_mark
        if until is None or mark is None or mark.owner != self._owner:
            await super().mark_owner(until)


class _Selfish(FakeGroup):
    """Mistakes its own mark for another manager's after a restart."""

    async def init(self, settings: Settings) -> GroupInfo:
        return await super().init(evolve(settings, owner=f"{settings.owner}-{id(self)}"))


class _Eternal(FakeGroup):
    """Does not see that a mark has expired."""

    async def mark_owner(self, until: float | None) -> None:
        if (mark := self.cloud.owner_mark) is not None and mark.owner != self._owner:
            raise GroupRefused(f"{mark.owner} manages the group")
        await super().mark_owner(until)


class _Incumbent(FakeGroup):
    """Checks the mark once, and renews it from then on without checking."""

    async def mark_owner(self, until: float | None) -> None:
        if until is not None and getattr(self, "marked", False):
            self.cloud.owner_mark = Mark(owner=self._owner, until=until)
            return
        await super().mark_owner(until)
        self.marked = True


class _Sanguine(FakeGroup):
    """Shows no marks, though the cloud failed to."""

    async def read_marks(self) -> Sequence[Mark]:
        with suppress(ProviderError):
            return await super().read_marks()
        return []


class _Euphemist(FakeGroup):
    """Shows no mark that has expired."""

    async def read_marks(self) -> Sequence[Mark]:
        return [mark for mark in await super().read_marks() if mark.until > self.cloud.now]


class _Vain(FakeGroup):
    """Takes every mark for its own."""

    async def read_marks(self) -> Sequence[Mark]:
        return [evolve(mark, owner=self._owner) for mark in await super().read_marks()]


class _Chronicler(FakeGroup):
    """Goes on showing a mark that was taken away."""

    last: Sequence[Mark] = ()

    async def read_marks(self) -> Sequence[Mark]:
        self.last = await super().read_marks() or self.last
        return self.last


class _Echo(FakeGroup):
    """Shows a mark twice once it was renewed."""

    async def read_marks(self) -> Sequence[Mark]:
        return [each for mark in await super().read_marks() for each in (evolve(mark, until=mark.until - 1), mark)]


class _Unclaimed(FakeGroup):
    """Has a probe, and does not claim NOTICES."""

    async def init(self, settings: Settings) -> GroupInfo:
        return evolve(await super().init(settings), capabilities=frozenset())


class _Ungrammatical(FakeGroup):
    """Has a probe that no shell understands."""

    async def init(self, settings: Settings) -> GroupInfo:
        return evolve(await super().init(settings), notice_probe="if curl; do it")


class _Blank(FakeGroup):
    """Has a probe that is not a command."""

    async def init(self, settings: Settings) -> GroupInfo:
        return evolve(await super().init(settings), notice_probe=" ")


class _Probing(FakeCloud):
    """Its probe prints, and ends, as told."""

    quiet = b""
    told = b"preemption 112\n"
    exit_status = 0

    async def obey(self, instance: str, command: Command) -> Completed:
        return Completed(exit_status=self.exit_status, stdout=self.told if self.notices_given else self.quiet)


class _Talkative(_Probing):
    """Prints a line when there is no notice."""

    quiet = b"404\n"


class _Tongueless(_Probing):
    """Prints nothing when an instance is about to go."""

    told = b""


class _Verbatim(_Probing):
    """Prints the cloud's answer unchanged."""

    told = b'{"action": "terminate", "time": "2026-01-01T00:00:00Z"}\n'


class _Failing(_Probing):
    """Fails if nothing is announced, as curl does."""

    exit_status = 22


class _Recycling(FakeCloud):
    """Gives an id again once its instance is gone."""

    def _new_id(self) -> str:
        return next(instance for instance in map("i-{}".format, count(1)) if instance not in self.alive)


# --- what finds them ------------------------------------------------------------------------------------


FAULTLESS = IncreaseFault()

CAPABILITIES = frozenset(Capability) - {Capability.PRICES}

CHECK = {name_of(check): check for check in CHECKS}


@frozen
class Wrong:
    """One way of being wrong, the check that is to find it, and words of the clause that it breaks."""

    check: Check
    clause: str
    group: type[FakeGroup] = FakeGroup
    fault: IncreaseFault = FAULTLESS
    cloud: type[FakeCloud] = FakeCloud

    def __str__(self) -> str:
        """As the id of a test."""
        return f"{name_of(self.check)}-{self._what.__name__}-{self.clause}"

    @property
    def name(self) -> str:
        """As in the documentation's table."""
        return self._what.__name__.removeprefix("_")

    @property
    def mistake(self) -> str:
        """What is wrong, in a sentence."""
        return (self._what.__doc__ or "").splitlines()[0].removesuffix(".")

    @property
    def _what(self) -> type:
        return self.group if self.group is not FakeGroup else self.cloud


WRONG = [
    Wrong(CHECK["init_reports_what_the_group_is"], "identity is the cloud resource itself", _Nameless),
    Wrong(CHECK["init_reports_what_the_group_is"], "the interface version is 1", _FromTheFuture),
    Wrong(CHECK["init_reports_what_the_group_is"], "max_size is the cloud's own ceiling", _BelowNothing),
    Wrong(CHECK["claimed_capabilities_have_their_methods"], "methods of Withdraws", _Boastful),
    Wrong(CHECK["identity_is_the_resource"], "the same each time it is opened", _Renamed),
    Wrong(CHECK["first_view_is_complete"], "update shows every instance", _Sleepy),
    Wrong(
        CHECK["increase_brings_what_it_accepted"],
        "as many instances as increase accepted appear",
        fault=IncreaseFault(accept=1, overstate=1),
    ),
    Wrong(CHECK["increase_brings_what_it_accepted"], "0 to count", fault=IncreaseFault(overstate=1)),
    Wrong(CHECK["increase_brings_what_it_accepted"], "adds as many", fault=IncreaseFault(surplus=1)),
    Wrong(CHECK["increase_brings_what_it_accepted"], "starts running", fault=IncreaseFault(hang=True)),
    Wrong(CHECK["increase_brings_what_it_accepted"], "room for three", fault=IncreaseFault(accept=1)),
    Wrong(CHECK["named_create_is_idempotent"], "a repeat with the same intent", _Forgetful),
    Wrong(CHECK["named_create_carries_the_intent"], "instances carry the intent", _Forgetful),
    Wrong(CHECK["increase_stops_at_max_size"], "increase beyond max_size 3", _Limitless),
    Wrong(CHECK["decrease_removes_only_those_named"], "and no others", _Careless),
    Wrong(CHECK["decrease_removes_only_those_named"], "leaves the view", _Nostalgic),
    Wrong(CHECK["decrease_accepts_what_is_gone"], "already gone", _Fussy),
    Wrong(CHECK["decrease_accepts_what_is_gone"], "already gone", _Silent),
    Wrong(CHECK["ids_are_never_reused"], "never reused", cloud=_Recycling),
    Wrong(CHECK["connect_info_is_complete"], "connect_info has a protocol, an address", _Homeless),
    Wrong(CHECK["connect_info_is_complete"], "about the requested instance", _Confused),
    Wrong(CHECK["connect_info_hides_secrets"], "secrets do not appear", _Indiscreet),
    Wrong(CHECK["connect_info_knows_what_is_gone"], "raises InstanceNotFound", _Gullible),
    Wrong(CHECK["heartbeat_reports_health"], "returns if the instance is healthy", _Anxious),
    Wrong(CHECK["heartbeat_reports_health"], "that does not exist", _Gullible),
    Wrong(CHECK["heartbeat_notices_death"], "that is dead", _Trusting),
    Wrong(CHECK["update_notices_death"], "that died is deleted, failed or absent", _Nostalgic),
    Wrong(CHECK["update_notices_death"], "changes no other", _Panicky),
    Wrong(CHECK["cancelled_increase_leaves_no_trace"], "cancelling a call", _Leaky),
    Wrong(CHECK["cancelled_increase_leaves_no_trace"], "cancelling a call", fault=IncreaseFault(surplus=1)),
    Wrong(CHECK["shutdown_leaves_instances"], "instances stay after shutdown", _Thorough),
    Wrong(CHECK["withdraw_spares_instances"], "never touches an instance", _Greedy),
    Wrong(CHECK["withdraw_spares_instances"], "how many requests it withdrew", _Flattering),
    Wrong(CHECK["notices_come"], "notices yields", _Hushed),
    Wrong(CHECK["notices_come"], "notices yields", _Belated),
    Wrong(CHECK["notices_come"], "and continues", _SaidOnce),
    Wrong(CHECK["cancelled_calls_change_nothing_else"], "that is cancelled ends", _Enthralled),
    Wrong(CHECK["failures_are_provider_errors"], "mark_owner raises", _Presumptuous),
    Wrong(CHECK["observing_changes_nothing"], "raise Unsupported", _Busybody),
    Wrong(CHECK["claimed_capabilities_have_their_methods"], "methods of Suspends", _Drowsy),
    Wrong(CHECK["claimed_capabilities_have_their_methods"], "methods of MarksOwner", _Unmarked),
    Wrong(CHECK["suspended_instances_come_back"], "becomes suspended", _Restless),
    Wrong(CHECK["suspended_instances_come_back"], "becomes running", _Comatose),
    Wrong(CHECK["suspended_instances_come_back"], "stays in update", _OutOfMind),
    Wrong(CHECK["suspended_instances_come_back"], "neither failed", _Undertaker),
    Wrong(CHECK["suspended_instances_come_back"], "and no others", _Soporific),
    Wrong(CHECK["suspended_instances_come_back"], "and no others", _Reborn),
    Wrong(CHECK["suspended_instances_come_back"], "all its connection details", _Estranged),
    Wrong(CHECK["suspended_instances_come_back"], "those of its arguments", _Boundless),
    Wrong(CHECK["suspending_again_is_accepted"], "that is already suspended", _Strict),
    Wrong(CHECK["suspending_again_is_accepted"], "that is already running", _Stubborn),
    Wrong(CHECK["suspending_goes_on_past_what_is_gone"], "nor raises", _Squeamish),
    Wrong(CHECK["suspending_goes_on_past_what_is_gone"], "neither accepts", _Credulous),
    Wrong(CHECK["suspended_instances_can_be_deleted"], "after shutdown", _AlarmClock),
    Wrong(CHECK["suspended_instances_can_be_deleted"], "leaves the view", _LetsSleep),
    Wrong(CHECK["resuming_without_room_is_reported"], "raises CapacityUnavailable", _Vague),
    Wrong(CHECK["resuming_without_room_is_reported"], "neither failed nor deleted", _Desperate),
    Wrong(CHECK["owner_mark_keeps_others_out"], "raises GroupRefused", _Unguarded),
    Wrong(CHECK["owner_mark_keeps_others_out"], "raises GroupRefused", _Thief),
    Wrong(CHECK["owner_mark_keeps_others_out"], "names the owner", _Discreet),
    Wrong(CHECK["owner_mark_keeps_others_out"], "once it was removed", _Indelible),
    Wrong(CHECK["owner_mark_is_renewed"], "raises GroupRefused", _Set),
    Wrong(CHECK["owner_mark_is_renewed"], "this owner's own", _Selfish),
    Wrong(CHECK["expired_owner_mark_is_taken_over"], "has expired", _Eternal),
    Wrong(CHECK["expired_owner_mark_is_taken_over"], "raises GroupRefused", _Incumbent),
    Wrong(CHECK["failures_are_provider_errors"], "read_marks raises", _Sanguine),
    Wrong(CHECK["owner_marks_are_shown"], "with its owner and its expiry", _Euphemist),
    Wrong(CHECK["owner_marks_are_shown"], "with its owner and its expiry", _Vain),
    Wrong(CHECK["owner_marks_are_shown"], "or was taken away", _Chronicler),
    Wrong(CHECK["owner_marks_are_shown"], "at most one mark of each owner", _Echo),
    Wrong(CHECK["notice_probe_is_a_command"], "claims NOTICES", _Unclaimed),
    Wrong(CHECK["notice_probe_is_a_command"], "command line for a POSIX shell", _Ungrammatical),
    Wrong(CHECK["notice_probe_is_a_command"], "or None", _Blank),
    Wrong(CHECK["notice_probe_prints_notices"], "nothing else", cloud=_Talkative),
    Wrong(CHECK["notice_probe_prints_notices"], "nothing else", cloud=_Tongueless),
    Wrong(CHECK["notice_probe_prints_notices"], "nothing else", cloud=_Verbatim),
    Wrong(CHECK["notice_probe_prints_notices"], "exits with 0", cloud=_Failing),
    Wrong(CHECK["observing_changes_nothing"], "raise Unsupported", _Meddling),
    Wrong(CHECK["observing_changes_nothing"], "sees what the manager sees", _Exclusive),
    Wrong(CHECK["observing_changes_nothing"], "changes nothing", _Possessive),
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
async def test_what_is_wrong_is_found(wrong: Wrong) -> None:
    """The check raises a violation that names the clause and says what was seen."""
    cloud = wrong.cloud(capabilities=CAPABILITIES, notice_probe="curl http://169.254.169.254/notices")
    if wrong.check is CHECK["first_view_is_complete"]:
        cloud.launch(1)
    cloud.faults.increase.always(wrong.fault)
    with pytest.raises(Violation, match=r"^the contract says: .*; seen: .+; more: docs/reference/.+") as caught:
        await judge(wrong.check, harness_for(cloud, wrong.group))
    assert wrong.clause in caught.value.clause


def test_every_check_is_shown_to_bite() -> None:
    """No check is in the suite that was never seen to find anything."""
    assert {wrong.check for wrong in WRONG} | {mutant.check for mutant in MUTANTS} == set(CHECKS)
