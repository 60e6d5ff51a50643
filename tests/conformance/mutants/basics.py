"""Mutants that break one clause in the plainest way."""
# ruff: noqa: ANN401, D102, D105, D107  (what a mutant's methods are for stands in what they are mutants of)

import logging
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from http.client import HTTPConnection
from itertools import count as count_from
from threading import Timer
from typing import Any, ClassVar
from urllib.parse import urlsplit

import anyio
from attrs import evolve
from fleeting_puddle import Config, Group
from fleeting_puddle._cloud import Cloud
from fleeting_puddle._group import STATES

from fleeting import (
    Capability,
    CapacityUnavailable,
    ConnectInfo,
    GroupInfo,
    InstanceNotFound,
    Observation,
    Observed,
    OutcomeUnknown,
    Problem,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    Settings,
    State,
)
from tests.conformance.mutants._table import GHOSTS, OPEN, found_by

# --- what it says of itself -----------------------------------------------------------------------------


@found_by("init_reports_what_the_group_is")
class NameOnly(Group):
    """Has no identity."""

    async def init(self, settings: Settings) -> GroupInfo:
        return evolve(await super().init(settings), identity="")


@found_by("claimed_capabilities_have_their_methods")
class Boaster(Group):
    """Claims NOTICES without having them."""

    async def init(self, settings: Settings) -> GroupInfo:
        return evolve(await super().init(settings), capabilities=frozenset({Capability.NOTICES}))


@found_by("identity_is_the_resource")
class NewEveryTime(Group):
    """Is identified by the object that manages it, not by the pool."""

    _numbers: ClassVar = count_from()

    async def init(self, settings: Settings) -> GroupInfo:
        return evolve(await super().init(settings), identity=f"puddle:{next(self._numbers)}")


# --- the view -------------------------------------------------------------------------------------------


@found_by("first_view_is_complete")
class LateRiser(Group):
    """Shows an empty group until it has had time to look."""

    _looked = False

    async def update(self) -> Observation:
        view = await super().update()
        looked, self._looked = self._looked, True
        return view if looked else Observation({})


@found_by("view_is_stable")
class AlwaysNew(Group):
    """Returns the time of the request as the creation time."""

    async def init(self, settings: Settings) -> GroupInfo:
        self.clock = settings.clock
        return await super().init(settings)

    def _observed(self, each: dict[str, str]) -> Observed:
        return evolve(super()._observed(each), created_at=self.clock.now())


@found_by("view_has_every_page")
class FirstPageOnly(Group):
    """Drops every page but the first."""

    async def update(self) -> Observation:
        listing = await self._cloud.call("GET", f"{self._pool}/instances?page=")
        return Observation({each["id"]: self._observed(each) for each in listing["instances"]})


@found_by("view_is_stable")
class FirstSight(Group):
    """Returns the time at which it first saw an instance, which changes with a restart."""

    async def init(self, settings: Settings) -> GroupInfo:
        self.clock = settings.clock
        self.first: dict[str, float] = {}
        return await super().init(settings)

    def _observed(self, each: dict[str, str]) -> Observed:
        return evolve(super()._observed(each), created_at=self.first.setdefault(each["id"], self.clock.now()))


class _Pager(Group):
    """Turns the pages itself, without looking whether they lead in a circle."""

    async def update(self) -> Observation:
        instances: dict[str, Observed] = {}
        page: str | None = ""
        while page is not None:
            listing = await self.page(page)
            instances |= {each["id"]: self._observed(each) for each in listing["instances"]}
            page = listing["next"]
        return Observation(instances)

    async def page(self, page: str) -> dict[str, Any]:
        listing: dict[str, Any] = await self._cloud.call("GET", f"{self._pool}/instances?page={page}")
        return listing


@found_by("view_is_whole_or_an_error")
class HalfTruth(_Pager):
    """Returns the pages that it has if one cannot be fetched."""

    async def page(self, page: str) -> dict[str, Any]:
        try:
            return await super().page(page)
        except ProviderError:
            if not page:
                raise
            return {"instances": [], "next": None}


@found_by("pages_that_loop_are_an_error")
class Merry(_Pager):
    """Follows pages that lead in a circle forever."""


@found_by("pages_that_loop_are_an_error")
class Dizzy(_Pager):
    """Mistakes the end of the first round for the end of the list."""

    async def page(self, page: str) -> dict[str, Any]:
        listing = await super().page(page)
        return {**listing, "next": None} if listing["next"] == "0" else listing


@found_by("failed_update_is_an_error")
class Nostalgic(Group):
    """Returns its last view again if the cloud fails."""

    _last = Observation({})

    async def update(self) -> Observation:
        with suppress(ProviderError):
            self._last = await super().update()
        return self._last


@found_by("failed_update_is_an_error")
class Optimist(Group):
    """Mistakes a failing cloud for an empty one."""

    async def update(self) -> Observation:
        try:
            return await super().update()
        except ProviderError:
            return Observation({})


@found_by("every_vendor_state_is_mapped")
class Confused(Group):
    """Reports as running what is being deleted."""

    def _observed(self, each: dict[str, str]) -> Observed:
        observed = super()._observed(each)
        return evolve(observed, state=State.RUNNING) if observed.state is State.DELETING else observed


@found_by("every_vendor_state_is_mapped")
class Incomplete(Group):
    """Fails on a rare state."""

    def _observed(self, each: dict[str, str]) -> Observed:
        states = {status: state for status, state in STATES.items() if state is not State.FAILED}
        return evolve(super()._observed(each), state=states[each["status"]])


@found_by("unknown_state_is_not_swallowed")
class Blind(Group):
    """Leaves out instances whose state it does not know."""

    async def update(self) -> Observation:
        listing = await self._cloud.call("GET", f"{self._pool}/instances?page=")
        known = [each for each in listing["instances"] if each["status"] in STATES]
        return Observation({each["id"]: self._observed(each) for each in known})


@found_by("unknown_state_is_not_swallowed")
class Trusting(Group):
    """Reports an unknown state as running."""

    def _observed(self, each: dict[str, str]) -> Observed:
        return super()._observed({**each, "status": each["status"] if each["status"] in STATES else "active"})


@found_by("creation_time_is_in_seconds")
class Milliseconds(Group):
    """Returns times in milliseconds."""

    def _observed(self, each: dict[str, str]) -> Observed:
        created = datetime.fromisoformat(each["created"]).timestamp()
        return evolve(super()._observed(each), created_at=created * 1000)


@found_by("creation_time_is_in_seconds")
class Homesick(Group):
    """Reads the cloud's times, which are in UTC, in its own time zone."""

    def _observed(self, each: dict[str, str]) -> Observed:
        created = datetime.fromisoformat(each["created"]).replace(tzinfo=None).timestamp()
        return evolve(super()._observed(each), created_at=created)


@found_by("update_notices_death")
class Faithful(Group):
    """Keeps showing, from memory, what the cloud no longer lists."""

    async def init(self, settings: Settings) -> GroupInfo:
        self.seen: dict[str, Observed] = {}
        return await super().init(settings)

    async def update(self) -> Observation:
        self.seen |= (await super().update()).instances
        return Observation(dict(self.seen))


# --- asking for instances -------------------------------------------------------------------------------


@found_by("increase_brings_what_it_accepted")
class Generous(Group):
    """Requests one more, to be on the safe side."""

    async def increase(self, count: int, *, intent: str) -> int:
        return min(count, await super().increase(count + 1, intent=intent))


@found_by("partial_success_is_reported")
class Overreporter(Group):
    """Reports all as accepted without checking how many were."""

    async def increase(self, count: int, *, intent: str) -> int:
        await super().increase(count, intent=intent)
        return count


@found_by("partial_success_is_reported")
class AllOrNothing(Group):
    """Raises if not all were accepted, and forgets those that were."""

    async def increase(self, count: int, *, intent: str) -> int:
        if (accepted := await super().increase(count, intent=intent)) < count:
            raise CapacityUnavailable("not enough")
        return accepted


@found_by("partial_success_is_reported")
class Piecemeal(Group):
    """Requests one after the other, and forgets those that it got if the next is refused."""

    async def increase(self, count: int, *, intent: str) -> int:
        each = [await super(Piecemeal, self).increase(1, intent=f"{intent}-{number}") for number in range(count)]
        return sum(each)


@found_by("lost_answer_is_an_unknown_outcome")
class Insistent(Group):
    """Repeats a request whose answer was lost, as a new one."""

    async def increase(self, count: int, *, intent: str) -> int:
        with suppress(OutcomeUnknown):
            return await super().increase(count, intent=intent)
        return await super().increase(count, intent=f"{intent}-again")


@found_by("lost_answer_is_an_unknown_outcome")
class Resigned(Group):
    """Treats a lost answer as a failure."""

    async def increase(self, count: int, *, intent: str) -> int:
        try:
            return await super().increase(count, intent=intent)
        except OutcomeUnknown as error:
            raise ProviderError("it did not work") from error


@found_by("named_create_is_idempotent")
class Forgetful(Group):
    """Makes a new request each time, whatever the intent."""

    async def increase(self, count: int, *, intent: str) -> int:
        body = {"count": count, "label": intent}
        accepted: int = (await self._cloud.call("POST", f"{self._pool}/instances", body))["accepted"]
        return accepted


@found_by("named_create_carries_the_intent")
class Unlabelled(Group):
    """Does not read the intent back."""

    def _observed(self, each: dict[str, str]) -> Observed:
        return evolve(super()._observed(each), intent=None)


@found_by("named_create_settles_a_lost_answer")
class Bookkeeper(Group):
    """Remembers which intents were answered, and treats all others as new."""

    _tries: ClassVar = count_from()

    async def init(self, settings: Settings) -> GroupInfo:
        self.answers: dict[str, int] = {}
        return await super().init(settings)

    async def increase(self, count: int, *, intent: str) -> int:
        if intent not in self.answers:
            body, key = {"count": count, "label": intent}, f"{intent}-{next(self._tries)}"
            reply = await self._cloud.call("POST", f"{self._pool}/instances", body, key=key)
            self.answers[intent] = reply["accepted"]
        return self.answers[intent]


@found_by("named_create_outlives_its_manager")
class ShortMemory(Group):
    """Recognises an intent only until it is restarted."""

    async def increase(self, count: int, *, intent: str) -> int:
        body = {"count": count, "label": intent}
        reply = await self._cloud.call("POST", f"{self._pool}/instances", body, key=f"{id(self)}-{intent}")
        accepted: int = reply["accepted"]
        return accepted


@found_by("ids_are_never_reused")
class Slots(Group):
    """Names instances by their slot, which the next one inherits."""

    async def init(self, settings: Settings) -> GroupInfo:
        self.slots: dict[str, str] = {}
        return await super().init(settings)

    async def update(self) -> Observation:
        shown = (await super().update()).instances
        self.slots = {slot: each for slot, each in self.slots.items() if each in shown}
        for each in shown.keys() - self.slots.values():
            free = next(slot for slot in map("slot-{}".format, count_from()) if slot not in self.slots)
            self.slots[free] = each
        return Observation({slot: shown[each] for slot, each in self.slots.items()})

    async def decrease(self, instances: Sequence[str]) -> Sequence[str]:
        await super().decrease([self.slots[instance] for instance in instances])
        return instances


# --- deleting them --------------------------------------------------------------------------------------


@found_by("decrease_removes_only_those_named")
class Resizer(Group):
    """Shrinks the pool by any instances."""

    async def decrease(self, instances: Sequence[str]) -> Sequence[str]:
        newest = list((await super().update()).instances)[-len(instances) :]
        await super().decrease(newest)
        return instances


@found_by("decrease_accepts_what_is_gone")
class DoubleDeleter(Group):
    """Raises if what it is to delete is gone."""

    async def decrease(self, instances: Sequence[str]) -> Sequence[str]:
        for instance in instances:
            await self._cloud.call("DELETE", f"/instances/{instance}")
        return instances


@found_by("decrease_goes_on_past_what_is_gone")
class Quitter(Group):
    """Stops at the first that is gone."""

    async def decrease(self, instances: Sequence[str]) -> Sequence[str]:
        with suppress(InstanceNotFound):
            for instance in instances:
                await self._cloud.call("DELETE", f"/instances/{instance}")
        return instances


@found_by("refused_deletion_is_reported")
class Hopeful(Group):
    """Treats a refused deletion as accepted."""

    async def decrease(self, instances: Sequence[str]) -> Sequence[str]:
        with suppress(ProviderError):
            await super().decrease(instances)
        return instances


@found_by("decrease_removes_what_does_not_run")
class Choosy(Group):
    """Deletes what runs, and treats everything else as gone."""

    async def decrease(self, instances: Sequence[str]) -> Sequence[str]:
        shown = (await super().update()).instances
        await super().decrease([each for each in instances if each in shown and shown[each].state is State.RUNNING])
        return instances


@found_by("refused_deletion_is_reported")
class OnceBitten(Group):
    """Does not repeat a deletion request that was refused."""

    async def init(self, settings: Settings) -> GroupInfo:
        self.asked: set[str] = set()
        return await super().init(settings)

    async def decrease(self, instances: Sequence[str]) -> Sequence[str]:
        new = [each for each in instances if each not in self.asked]
        self.asked |= set(new)
        await super().decrease(new)
        return instances


# --- one instance ---------------------------------------------------------------------------------------


@found_by("connect_info_is_complete")
class Homeless(Group):
    """Leaves the address out."""

    async def connect_info(self, instance: str) -> ConnectInfo:
        return evolve(await super().connect_info(instance), internal_addr=None)


@found_by("connect_info_knows_what_is_gone")
class Elephant(Group):
    """Returns connection details from memory after the instance is gone."""

    async def update(self) -> Observation:
        view = await super().update()
        self.known = getattr(self, "known", set()) | view.instances.keys()
        return view

    async def connect_info(self, instance: str) -> ConnectInfo:
        if instance not in self.known:
            raise InstanceNotFound(instance)
        return ConnectInfo(id=instance, internal_addr=f"{instance}.pond")


@found_by("connect_info_is_complete")
class Premature(Group):
    """Returns incomplete connection details for an instance that has no address yet."""

    async def connect_info(self, instance: str) -> ConnectInfo:
        info = await super().connect_info(instance)
        state = (await super().update()).instances[instance].state
        return info if state is State.RUNNING else evolve(info, internal_addr=None)


@found_by("connect_info_hides_secrets")
class Chatty(Group):
    """Puts the password beside the user."""

    async def connect_info(self, instance: str) -> ConnectInfo:
        info = await super().connect_info(instance)
        return evolve(info, user=f"{info.user}:{info.password}")


@found_by("heartbeat_reports_health")
class Carefree(Group):
    """Reports every instance as healthy, whether it exists or not."""

    async def heartbeat(self, instance: str) -> None:
        pass


@found_by("heartbeat_notices_death")
class Sentimental(Group):
    """Reports as healthy what was healthy once."""

    async def init(self, settings: Settings) -> GroupInfo:
        self.alive: set[str] = set()
        return await super().init(settings)

    async def update(self) -> Observation:
        view = await super().update()
        self.alive |= view.instances.keys()
        return view

    async def heartbeat(self, instance: str) -> None:
        if instance not in self.alive:
            raise InstanceNotFound(instance)


@found_by("heartbeat_notices_failure")
class Lenient(Group):
    """Reports an instance as healthy because the cloud lists it, in any state."""

    async def heartbeat(self, instance: str) -> None:
        await self._cloud.call("GET", f"/instances/{instance}")


# --- a cloud that fails ---------------------------------------------------------------------------------


class _OtherCloud(Group):
    """Speaks to the API through something else."""

    cloud: ClassVar[type[Cloud]] = Cloud

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._cloud = self.cloud(config)


class _Changes(Cloud):
    """Changes the errors that it raises."""

    def change(self, error: ProviderError) -> Exception:
        """Give the wrong one."""
        raise NotImplementedError

    async def call(self, method: str, path: str, body: object = None, *, key: str = "") -> Any:
        try:
            return await super().call(method, path, body, key=key)
        except ProviderError as error:
            raise self.change(error) from error


class _RawErrors(_Changes):
    def change(self, error: ProviderError) -> Exception:
        return ValueError("Expecting value") if isinstance(error, OutcomeUnknown) else error


@found_by("failures_are_provider_errors")
class Raw(_OtherCloud):
    """Lets the error of its JSON parser through, if the cloud answers with HTML."""

    cloud = _RawErrors


@found_by("failures_are_provider_errors")
class Serene(Group):
    """Returns that nothing was accepted if the cloud failed."""

    async def increase(self, count: int, *, intent: str) -> int:
        with suppress(ProviderError):
            return await super().increase(count, intent=intent)
        return 0


@found_by("failures_are_provider_errors")
class Hasty(Group):
    """Treats an instance as gone because the cloud did not mention it."""

    async def connect_info(self, instance: str) -> ConnectInfo:
        try:
            return await super().connect_info(instance)
        except ProviderError as error:
            raise InstanceNotFound(instance) from error


class _OneClass(_Changes):
    def change(self, error: ProviderError) -> Exception:
        return error if isinstance(error, InstanceNotFound | OutcomeUnknown) else ProviderError(str(error))


@found_by("refused_credentials_are_auth_failed")
class OneClassForAll(_OtherCloud):
    """Raises the same class of error, whatever the cloud says."""

    cloud = _OneClass


class _Impatient(_Changes):
    def change(self, error: ProviderError) -> Exception:
        return RateLimited("too often", retry_after=-1) if isinstance(error, RateLimited) else error


@found_by("throttling_is_rate_limited")
class Impatient(_OtherCloud):
    """Passes on a time to wait that is in the past."""

    cloud = _Impatient


class _Deaf(_Changes):
    def change(self, error: ProviderError) -> Exception:
        return CapacityUnavailable("busy") if isinstance(error, RateLimited) else error


@found_by("throttling_is_rate_limited")
class Misjudging(_OtherCloud):
    """Mistakes throttling for a lack of stock."""

    cloud = _Deaf


@found_by("stock_out_is_reported")
class Silent(Group):
    """Does not say that the cloud has no stock."""

    async def update(self) -> Observation:
        return Observation((await super().update()).instances)


@found_by("stock_out_is_reported")
class Flickering(Group):
    """Reports an old problem as new in each view."""

    _numbers: ClassVar = count_from(1)

    async def update(self) -> Observation:
        view = await super().update()
        return evolve(view, problems=[evolve(each, since=float(next(self._numbers))) for each in view.problems])


class _Muddled(_Changes):
    def change(self, error: ProviderError) -> Exception:
        return CapacityUnavailable("no room") if isinstance(error, QuotaExceeded) else error


@found_by("quota_is_reported")
class Muddled(_OtherCloud):
    """Mistakes a quota for a lack of stock, so waiting seems to help."""

    cloud = _Muddled


@found_by("silence_ends_in_time")
class Patient(Group):
    """Has no time-out."""

    def __init__(self, config: Config) -> None:
        super().__init__(evolve(config, timeout=3600))


@found_by("silence_ends_in_time")
class GivesUp(Group):
    """Treats a time-out as a failure."""

    async def increase(self, count: int, *, intent: str) -> int:
        try:
            return await super().increase(count, intent=intent)
        except OutcomeUnknown as error:
            raise CapacityUnavailable("no answer") from error


@found_by("silence_ends_in_time")
class Dreamer(Group):
    """Returns its last view again if the cloud does not answer in time."""

    _last = Observation({})

    async def update(self) -> Observation:
        with suppress(OutcomeUnknown):
            self._last = await super().update()
        return self._last


@found_by("silence_ends_in_time")
class Polite(Group):
    """Signs off from the cloud, and waits for its reply."""

    async def shutdown(self) -> None:
        with suppress(ProviderError):
            await _OtherCloud.cloud(evolve(self._config, timeout=3600)).call("GET", self._pool)


# --- cancellation, the event loop -----------------------------------------------------------------------


@found_by("cancelled_increase_leaves_no_trace")
class TwoSteps(Group):
    """Makes an instance and then puts it into the pool; cancelled in between, it leaks."""

    async def increase(self, count: int, *, intent: str) -> int:
        for _ in range(count):
            made = await self._cloud.call("POST", "/instances", {"label": intent})
            await self._cloud.call("POST", f"/instances/{made['id']}/pool", {"pool": self._config.pool})
        return count


@found_by("cancelled_increase_leaves_no_trace")
class UndoesErrorsOnly(Group):
    """Undoes the first step if the second fails, but a cancellation is not an Exception."""

    async def increase(self, count: int, *, intent: str) -> int:
        for _ in range(count):
            made = await self._cloud.call("POST", "/instances", {"label": intent})
            try:
                await self._cloud.call("POST", f"/instances/{made['id']}/pool", {"pool": self._config.pool})
            except Exception:
                await self._cloud.call("DELETE", f"/instances/{made['id']}")
                raise
        return count


@found_by("cancelled_calls_change_nothing_else")
class Locked(Group):
    """Keeps its lock if it is cancelled."""

    async def init(self, settings: Settings) -> GroupInfo:
        self.lock = anyio.Semaphore(1)
        return await super().init(settings)

    async def update(self) -> Observation:
        await self.lock.acquire()
        view = await super().update()
        self.lock.release()
        return view


@found_by("cancelled_init_takes_nothing")
class Unfinished(Group):
    """Opens a connection in init, and leaves it open if the rest of init is cancelled."""

    async def init(self, settings: Settings) -> GroupInfo:
        netloc = urlsplit(self._config.url)
        address = (netloc.hostname or "", netloc.port or 0)
        self.socket = await self._cloud._offload(socket.create_connection, address, 1)
        OPEN.append(self.socket)
        return await super().init(settings)

    async def shutdown(self) -> None:
        self.socket.close()


@found_by("cancelled_init_takes_nothing")
class OpensFirst(Unfinished):
    """Opens a connection in init, and leaves it open if the cloud fails then."""

    async def init(self, settings: Settings) -> GroupInfo:
        before = len(OPEN)
        try:
            return await super().init(settings)
        except ProviderError:
            raise
        except BaseException:
            for opened in OPEN[before:]:
                opened.close()
            raise


@found_by("cancelled_calls_change_nothing_else")
class Deaf(Group):
    """Retries after any failure, even a cancellation."""

    async def update(self) -> Observation:
        while True:
            with suppress(Exception, anyio.get_cancelled_exc_class()):
                return await super().update()


class _OnTheLoop(Cloud):
    async def call(self, method: str, path: str, body: object = None, *, key: str = "") -> Any:
        if method == "GET" and path.startswith("/instances/") and self.ready:
            return self._call(method, path, "null", key)
        return await super().call(method, path, body, key=key)

    ready = False


@found_by("nothing_blocks_the_event_loop")
class Blocking(_OtherCloud):
    """Calls a blocking client directly from a coroutine."""

    cloud = _OnTheLoop

    async def connect_info(self, instance: str) -> ConnectInfo:
        _OnTheLoop.ready = True
        try:
            return await super().connect_info(instance)
        finally:
            _OnTheLoop.ready = False


@found_by("nothing_blocks_the_event_loop")
class Sleeper(Group):
    """Waits with time.sleep for a deletion to take effect."""

    async def decrease(self, instances: Sequence[str]) -> Sequence[str]:
        accepted = await super().decrease(instances)
        time.sleep(0.3)  # noqa: ASYNC251, TID251  (that is what is wrong with it)
        return accepted


@found_by("nothing_blocks_the_event_loop")
class HalfBlocking(Group):
    """Sends the request in a thread, and waits for its answer on the event loop."""

    async def heartbeat(self, instance: str) -> None:
        url = urlsplit(self._config.url)
        connection = HTTPConnection(url.netloc, timeout=1)
        headers = {"Authorization": f"Bearer {self._config.token}"}
        await self._cloud._offload(connection.request, "GET", f"{url.path}/instances/{instance}", None, headers)
        try:
            connection.getresponse().read()
        except OSError as error:
            raise ProviderError("no answer") from error
        finally:
            connection.close()


# --- secrets --------------------------------------------------------------------------------------------


@found_by("secrets_are_shown_to_nobody")
class OpenBook(Group):
    """Shows its settings in its repr, token included."""

    def __repr__(self) -> str:
        return f"OpenBook({self._config.url}, {self._config.token})"


class _Echo(_Changes):
    def change(self, error: ProviderError) -> Exception:
        return type(error)(f"{error} (token {self._config.token})") if type(error) is ProviderError else error


@found_by("secrets_are_shown_to_nobody")
class Parrot(_OtherCloud):
    """Repeats in its errors what the cloud says, which repeats the token."""

    cloud = _Echo


class _Logs(Cloud):
    async def call(self, method: str, path: str, body: object = None, *, key: str = "") -> Any:
        logging.getLogger("fleeting.puddle").debug(
            "request", extra={"config": vars(self), "bearer": self._config.token}
        )
        return await super().call(method, path, body, key=key)


@found_by("secrets_are_shown_to_nobody")
class Logger(_OtherCloud):
    """Logs its requests, with all of their headers."""

    cloud = _Logs


@found_by("secrets_are_shown_to_nobody")
class Quoting(Group):
    """Puts the request into the problems that it reports, to help with debugging."""

    def _problem(self, each: dict[str, str]) -> Problem:
        problem = super()._problem(each)
        return evolve(problem, message=f"{problem.message}, asked with {self._config.token}")


# --- capabilities, observing, the end -------------------------------------------------------------------


@found_by("withdraw_spares_instances")
class Overzealous(Group):
    """Takes back running instances if there are not enough requests."""

    async def withdraw(self, count: int) -> int:
        taken = await super().withdraw(count)
        newest = list((await super().update()).instances)[taken - count :]
        await super().decrease(newest)
        return taken


@found_by("withdraw_takes_requests_back")
class Pretender(Group):
    """Reports requests as taken back, and leaves them."""

    async def withdraw(self, count: int) -> int:
        shown = (await super().update()).problems
        return count if shown else 0


@found_by("observing_changes_nothing")
class Meddler(Group):
    """Lets an observer ask for instances."""

    async def init(self, settings: Settings) -> GroupInfo:
        return await super().init(evolve(settings, observe_only=False))


@found_by("observing_sends_no_change")
class Marker(Group):
    """Leaves a mark at the cloud as soon as it is opened, even if only to observe."""

    async def init(self, settings: Settings) -> GroupInfo:
        info = await super().init(settings)
        await self._cloud.call("POST", f"{self._pool}/withdraw", {"count": 0})
        return info


@found_by("shutdown_leaves_instances")
class Thorough(Group):
    """Deletes its instances on the way out."""

    async def shutdown(self) -> None:
        if shown := list((await super().update()).instances):
            await super().decrease(shown)


@found_by("shutdown_releases_what_was_taken")
class LeavesItsSocket(Group):
    """Opens a connection in init that nobody closes."""

    async def init(self, settings: Settings) -> GroupInfo:
        netloc = urlsplit(self._config.url)
        address = (netloc.hostname or "", netloc.port or 0)
        OPEN.append(await self._cloud._offload(socket.create_connection, address, 1))
        return await super().init(settings)


@found_by("shutdown_releases_what_was_taken")
class Haunted(Group):
    """Starts a thread in init that nobody ends."""

    async def init(self, settings: Settings) -> GroupInfo:
        ghost = Timer(60, lambda: None)
        ghost.daemon = True
        ghost.start()
        GHOSTS.append(ghost)
        return await super().init(settings)


@found_by("shutdown_releases_what_was_taken")
class Lingering(Group):
    """Waits on shutdown for something that never comes."""

    async def shutdown(self) -> None:
        await anyio.sleep_forever()
