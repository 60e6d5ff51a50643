"""Mutants by kind: resources, calls at once, troubles in every call, sizes, values, changes, secrets, objects, loops.

Each is a fault that plugins of clouds have had, such as a cache that never expires, a limit on the number of ids in one
request, or a lock that belongs to the event loop of its first use.
"""
# ruff: noqa: ANN401, D102, D107  (what a mutant's methods are for stands in what they are mutants of)

import asyncio  # noqa: TID251  (that is what is wrong with one of them)
import json
import logging
import os
import socket
import subprocess
import sys
import time
import warnings
from base64 import b64encode
from collections.abc import Sequence
from contextlib import closing, suppress
from datetime import datetime
from http.client import HTTPConnection
from itertools import count as count_from
from threading import Timer
from typing import Any, ClassVar
from urllib.parse import urlsplit

import anyio
import anyio.lowlevel
from attrs import evolve
from fleeting_puddle import Config, Group
from fleeting_puddle._cloud import Cloud

from fleeting import (
    AuthFailed,
    ConnectInfo,
    GroupInfo,
    InstanceNotFound,
    LoopClock,
    Observation,
    Observed,
    OutcomeUnknown,
    Problem,
    ProblemKind,
    ProviderError,
    RateLimited,
    Settings,
    State,
)
from tests.conformance.mutants._table import CHILDREN, GHOSTS, OPEN, found_by
from tests.conformance.mutants.basics import _Changes, _OtherCloud, _Pager

# --- resources ------------------------------------------------------------------------------------------


async def _connect(group: Group) -> socket.socket:
    """Open a connection to the cloud."""
    url = urlsplit(group._config.url)
    opened = await group._cloud._offload(socket.create_connection, (url.hostname or "", url.port or 0), 1)
    OPEN.append(opened)
    return opened


@found_by("calls_release_what_they_took")
class OneEachTime(Group):
    """Opens a connection for each heartbeat, and closes only the last of them."""

    async def heartbeat(self, instance: str) -> None:
        self.connection = await _connect(self)
        await super().heartbeat(instance)

    async def shutdown(self) -> None:
        if hasattr(self, "connection"):
            self.connection.close()


@found_by("calls_release_what_they_took")
class ClosesOnSuccess(Group):
    """Closes the connection of a call only if the call succeeds."""

    async def connect_info(self, instance: str) -> ConnectInfo:
        connection = await _connect(self)
        info = await super().connect_info(instance)
        connection.close()
        return info


@found_by("calls_release_what_they_took")
class Spawner(Group):
    """Starts a thread for each view, which nobody ends, under the name of the pool's."""

    async def update(self) -> Observation:
        ghost = Timer(60, lambda: None)
        ghost.name, ghost.daemon = "AnyIO worker thread", True
        ghost.start()
        GHOSTS.append(ghost)
        return await super().update()


@found_by("openings_add_nothing_up")
class OneSocketMore(Group):
    """Leaves one of its connections open if it cannot be opened because of its credentials."""

    async def init(self, settings: Settings) -> GroupInfo:
        connection = await _connect(self)
        with suppress(AuthFailed):
            info = await super().init(settings)
            connection.close()
            return info
        raise AuthFailed("the token is refused")


@found_by("openings_add_nothing_up")
class Zombies(Group):
    """Runs a command on shutdown, and does not wait for its end."""

    async def shutdown(self) -> None:
        CHILDREN.append(subprocess.Popen(["/bin/true"]))  # noqa: ASYNC220  (that is what is wrong with it)


@found_by("process_is_left_as_it_was")
class Householder(Group):
    """Sets the default time-out of all sockets of the program."""

    async def init(self, settings: Settings) -> GroupInfo:
        socket.setdefaulttimeout(30)
        return await super().init(settings)


@found_by("process_is_left_as_it_was")
class Exporter(Group):
    """Puts its settings into the environment, where its SDK finds them."""

    async def init(self, settings: Settings) -> GroupInfo:
        os.environ["PUDDLE_URL"] = self._config.url
        return await super().init(settings)


@found_by("process_is_left_as_it_was")
class Configurator(Group):
    """Sets up logging for the whole program."""

    async def update(self) -> Observation:
        logging.getLogger().setLevel(logging.INFO + 1)
        return await super().update()


# --- calls at the same time -----------------------------------------------------------------------------


@found_by("reads_at_once_do_not_mix")
class OneDesk(Group):
    """Keeps the instance that it was asked about in itself while it waits."""

    async def connect_info(self, instance: str) -> ConnectInfo:
        self.asked = instance
        await super().heartbeat(instance)
        return await super().connect_info(self.asked)


@found_by("reads_at_once_do_not_mix")
class OneList(Group):
    """Collects the pages of a view in itself, where another view starts over."""

    async def update(self) -> Observation:
        self.found: dict[str, Observed] = {}
        page: str | None = ""
        while page is not None:
            listing = await self._cloud.call("GET", f"{self._pool}/instances?page={page}")
            if not page:
                self.found.clear()
            await anyio.sleep(0.01)
            self.found |= {each["id"]: self._observed(each) for each in listing["instances"]}
            page = listing["next"]
        found, self.found = self.found, {}
        return Observation(found)


@found_by("changes_at_once_do_not_mix")
class OneIntent(Group):
    """Keeps the intent in itself while it checks whether the pool is there."""

    async def increase(self, count: int, *, intent: str) -> int:
        self.count, self.intent = count, intent
        await self._cloud.call("GET", self._pool)
        return await super().increase(self.count, intent=self.intent)


@found_by("changes_at_once_do_not_mix")
class ToTarget(Group):
    """Requests a new size for the pool, computed from the size that it saw before."""

    async def increase(self, count: int, *, intent: str) -> int:
        before = len((await super().update()).instances)
        await anyio.sleep(0.3 * count)
        now = len((await super().update()).instances)
        if missing := before + count - now:
            await super().increase(missing, intent=intent)
        return count


@found_by("changes_at_once_do_not_mix")
class CrossedLocks(Group):
    """Takes two locks, in one order to look and in the other to delete."""

    async def init(self, settings: Settings) -> GroupInfo:
        self.list_lock, self.change_lock = anyio.Lock(), anyio.Lock()
        return await super().init(settings)

    async def update(self) -> Observation:
        async with self.list_lock:
            await anyio.sleep(0.01)
            async with self.change_lock:
                return await super().update()

    async def decrease(self, instances: Sequence[str]) -> Sequence[str]:
        async with self.change_lock:
            await anyio.sleep(0.01)
            async with self.list_lock:
                return await super().decrease(instances)


@found_by("named_create_is_idempotent_at_once")
class LooksFirst(Group):
    """Checks whether the intent has been carried out, and requests it if not."""

    _tries: ClassVar = count_from()

    async def increase(self, count: int, *, intent: str) -> int:
        shown = (await super().update()).instances
        there = sum(each.intent == intent for each in shown.values())
        await anyio.sleep(0.1)
        if there < count:
            body = {"count": count - there, "label": intent}
            await self._cloud.call("POST", f"{self._pool}/instances", body, key=f"{intent}-{next(self._tries)}")
        return count


@found_by("cancelling_one_call_spares_the_others")
class SharedFlight(Group):
    """Lets a second view wait for the first one that is under way, which may be cancelled."""

    flight: anyio.Event | None = None
    view: Observation | None = None

    async def update(self) -> Observation:
        if self.flight is not None:
            await self.flight.wait()
            if self.view is None:
                raise RuntimeError("no view")
            return self.view
        self.flight, self.view = anyio.Event(), None
        try:
            self.view = await super().update()
            return self.view
        finally:
            self.flight.set()
            self.flight = None


@found_by("cancelling_one_call_spares_the_others")
class SharedFuture(Group):
    """Lets a second call wait for the first one of the same instance, forever if that is cancelled."""

    async def init(self, settings: Settings) -> GroupInfo:
        self.under_way: dict[str, anyio.Event] = {}
        return await super().init(settings)

    async def heartbeat(self, instance: str) -> None:
        if instance in self.under_way:
            return await self.under_way[instance].wait()
        self.under_way[instance] = anyio.Event()
        await super().heartbeat(instance)
        await anyio.lowlevel.checkpoint()
        self.under_way.pop(instance).set()
        return None


@found_by("cancelled_calls_change_nothing_else")
class Abandoned(Group):
    """Leaves its connection open if it is cancelled between two requests."""

    async def heartbeat(self, instance: str) -> None:
        for _ in range(3):
            connection = await _connect(self)
            await super().heartbeat(instance)
            await anyio.lowlevel.checkpoint()
            connection.close()


@found_by("shutdown_during_calls_ends")
class WaitsForAll(Group):
    """Waits on shutdown until no call is under way, and never discounts those that failed."""

    calls = 0

    async def connect_info(self, instance: str) -> ConnectInfo:
        self.calls += 1
        await self._cloud.call("GET", self._pool)
        if self.calls > 1:
            self.calls -= 1
        return await super().connect_info(instance)

    async def shutdown(self) -> None:
        while self.calls:  # noqa: ASYNC110  (that is what is wrong with it)
            await anyio.sleep(0.01)


@found_by("shutdown_during_calls_ends")
class PullsThePlug(Group):
    """Raises on shutdown if a call is under way."""

    calls = 0

    async def update(self) -> Observation:
        self.calls += 1
        try:
            return await super().update()
        finally:
            self.calls -= 1

    async def shutdown(self) -> None:
        if self.calls:
            raise RuntimeError("still in use")


# --- every trouble in every call ------------------------------------------------------------------------


class _RawConnection(Cloud):
    def _call(self, method: str, path: str, body: str, key: str) -> Any:
        with closing(socket.create_connection((urlsplit(self._config.url).hostname, urlsplit(self._config.url).port))):
            return super()._call(method, path, body, key)


@found_by("unreachable_cloud_is_a_provider_error")
class Exposed(_OtherCloud):
    """Lets the socket's error through if the cloud refuses connections."""

    cloud = _RawConnection


class _AllUnknown(_Changes):
    def change(self, error: ProviderError) -> Exception:
        return OutcomeUnknown(str(error)) if type(error) is ProviderError else error


@found_by("unreachable_cloud_is_a_provider_error")
class Agnostic(_OtherCloud):
    """Reports that what could not be sent may have been done."""

    cloud = _AllUnknown


@found_by("malformed_answers_are_provider_errors")
class Presuming(Group):
    """Assumes that every answer is complete."""

    async def connect_info(self, instance: str) -> ConnectInfo:
        found = dict(await self._cloud.call("GET", f"/instances/{instance}"))
        return ConnectInfo(id=instance, internal_addr=found["address"], user=found["user"], password=found["password"])


@found_by("malformed_answers_are_provider_errors")
class Forgiving(Group):
    """Treats what is missing from an answer as nothing."""

    async def update(self) -> Observation:
        listing = await self._cloud.call("GET", f"{self._pool}/instances?page=")
        return Observation({each["id"]: self._observed(each) for each in listing.get("instances", [])})


@found_by("late_answer_is_an_unknown_outcome")
class Repeater(Group):
    """Repeats the request under another key if the answer comes too late."""

    async def increase(self, count: int, *, intent: str) -> int:
        with suppress(OutcomeUnknown):
            return await super().increase(count, intent=intent)
        body = {"count": count, "label": intent}
        await self._cloud.call("POST", f"{self._pool}/instances", body, key=f"{intent}-again")
        raise OutcomeUnknown("no answer")


@found_by("late_answer_is_an_unknown_outcome")
class Optimistic(Group):
    """Reports all as accepted if the answer comes too late."""

    async def increase(self, count: int, *, intent: str) -> int:
        try:
            return await super().increase(count, intent=intent)
        except OutcomeUnknown as error:
            if isinstance(error.__cause__, TimeoutError):
                return count
            raise


@found_by("refusals_are_reported_by_every_call")
class ReportsSome(Group):
    """Reports refused credentials as an unspecific error when it deletes."""

    async def decrease(self, instances: Sequence[str]) -> Sequence[str]:
        try:
            return await super().decrease(instances)
        except AuthFailed as error:
            raise ProviderError("the deletion failed") from error


@found_by("refusals_are_reported_by_every_call")
class Unwell(Group):
    """Reports an instance as unhealthy because of throttling."""

    async def heartbeat(self, instance: str) -> None:
        try:
            await super().heartbeat(instance)
        except RateLimited as error:
            raise ProviderError(f"{instance} is not healthy") from error


@found_by("throttled_calls_stop_asking")
class Hammer(Group):
    """Continues with the next instance if the cloud throttles it."""

    async def decrease(self, instances: Sequence[str]) -> Sequence[str]:
        done: list[str] = []
        for instance in instances:
            with suppress(RateLimited):
                done += await super().decrease([instance])
        if not done:
            raise RateLimited("too often", retry_after=7)
        return done


@found_by("throttled_calls_stop_asking")
class Pestering(Group):
    """Retries ten times at once if it is refused."""

    async def update(self) -> Observation:
        for _ in range(9):
            with suppress(RateLimited):
                return await super().update()
        return await super().update()


@found_by("trouble_amid_a_call_is_reported")
class ThirdPage(_Pager):
    """Returns what it has if the third page cannot be fetched."""

    async def page(self, page: str) -> dict[str, Any]:
        try:
            return await super().page(page)
        except ProviderError:
            if page in {"", "3"}:
                raise
            return {"instances": [], "next": None}


@found_by("trouble_amid_a_call_is_reported")
class AllIfOne(Group):
    """Reports all as deleted if the first one was."""

    async def decrease(self, instances: Sequence[str]) -> Sequence[str]:
        await super().decrease(instances[:1])
        with suppress(ProviderError):
            await super().decrease(instances[1:])
        return instances


@found_by("trouble_amid_a_call_is_reported")
class OneByOne(Group):
    """Requests one after the other, and raises if a later one is refused."""

    async def increase(self, count: int, *, intent: str) -> int:
        for number in range(count):
            body = {"count": 1, "label": intent}
            await self._cloud.call("POST", f"{self._pool}/instances", body, key=f"{intent}-{number}")
        return count


@found_by("trouble_amid_a_call_is_reported")
class NameTag(Group):
    """Creates instances outside the pool, and forgets those that cannot be added to it."""

    async def increase(self, count: int, *, intent: str) -> int:
        accepted = 0
        for _ in range(count):
            made = await self._cloud.call("POST", "/instances", {"label": intent})
            with suppress(ProviderError):
                await self._cloud.call("POST", f"/instances/{made['id']}/pool", {"pool": self._config.pool})
                accepted += 1
        return accepted


@found_by("troubles_pass")
class Circuit(Group):
    """Opens a circuit after three failures, and never closes it."""

    failures = 0

    async def heartbeat(self, instance: str) -> None:
        if self.failures > 1:
            raise ProviderError("the cloud does not work")
        try:
            await super().heartbeat(instance)
        except ProviderError:
            self.failures += 1
            raise


@found_by("troubles_pass")
class Banned(Group):
    """Treats credentials that were refused once as wrong forever."""

    refused = False

    async def update(self) -> Observation:
        if self.refused:
            raise AuthFailed("the token is wrong")
        try:
            return await super().update()
        except AuthFailed:
            self.refused = True
            raise


# --- sizes ----------------------------------------------------------------------------------------------


@found_by("large_numbers_are_handled")
class FiftyAtMost(Group):
    """Deletes as many as the API takes in one request, and forgets the rest."""

    async def decrease(self, instances: Sequence[str]) -> Sequence[str]:
        await super().decrease(instances[:50])
        return instances


@found_by("large_numbers_are_handled")
class TwoDigits(Group):
    """Requests no more than the API takes at once, and reports all as accepted."""

    async def increase(self, count: int, *, intent: str) -> int:
        await super().increase(min(count, 99), intent=intent)
        return count


@found_by("every_page_is_known_to_every_call")
class FirstPageOfNames(Group):
    """Looks an instance up on the first page of the listing."""

    async def heartbeat(self, instance: str) -> None:
        listing = await self._cloud.call("GET", f"{self._pool}/instances?page=")
        if instance not in [each["id"] for each in listing["instances"]]:
            raise InstanceNotFound(instance)
        await super().heartbeat(instance)


@found_by("every_page_is_known_to_every_call")
class OnlyItsOwn(Group):
    """Deletes what it created itself, and treats the rest as gone."""

    async def decrease(self, instances: Sequence[str]) -> Sequence[str]:
        shown = (await super().update()).instances
        await super().decrease([each for each in instances if each in shown and shown[each].intent])
        return instances


@found_by("view_follows_a_changing_crowd")
class FullPageEnds(Group):
    """Remembers which page was the last, and reads no further in later views."""

    last: str | None = None

    async def update(self) -> Observation:
        instances: dict[str, Observed] = {}
        page: str | None = ""
        before = ""
        while page is not None:
            listing = await self._cloud.call("GET", f"{self._pool}/instances?page={page}")
            instances |= {each["id"]: self._observed(each) for each in listing["instances"]}
            if page == self.last:
                break
            before, page = page, listing["next"]
        if self.last is None and len(instances) > 3:
            self.last = before
        return Observation(instances)


@found_by("view_follows_a_changing_crowd")
class TwentyAtMost(_Pager):
    """Reads as many pages as it assumes to be enough."""

    pages = 0

    async def update(self) -> Observation:
        self.pages = 0
        return await super().update()

    async def page(self, page: str) -> dict[str, Any]:
        self.pages += 1
        listing = await super().page(page)
        return listing if self.pages < 4 else {**listing, "next": None}


@found_by("empty_page_is_not_the_last")
class UntilEmpty(_Pager):
    """Mistakes a page without instances for the last."""

    async def page(self, page: str) -> dict[str, Any]:
        listing = await super().page(page)
        return listing if listing["instances"] else {**listing, "next": None}


@found_by("instance_on_two_pages_is_one")
class Strict(_Pager):
    """Raises if an instance comes twice."""

    async def update(self) -> Observation:
        self.seen: set[str] = set()
        return await super().update()

    async def page(self, page: str) -> dict[str, Any]:
        listing = await super().page(page)
        for each in listing["instances"]:
            if each["id"] in self.seen:
                raise ProviderError(f"{each['id']} is there twice")
            self.seen.add(each["id"])
        return listing


# --- values ---------------------------------------------------------------------------------------------


@found_by("values_are_of_their_types")
class Numeric(Group):
    """Returns the port as it came out of a file: as text."""

    async def connect_info(self, instance: str) -> ConnectInfo:
        return evolve(await super().connect_info(instance), port="22")  # type: ignore[arg-type]  # that is what is wrong with it


@found_by("values_are_of_their_types")
class Dated(Group):
    """Returns a datetime as a time."""

    def _observed(self, each: dict[str, str]) -> Observed:
        created: Any = datetime.fromisoformat(each["created"])
        return evolve(super()._observed(each), created_at=created)


@found_by("values_are_of_their_types")
class SaysYes(Group):
    """Returns that instances were accepted, and not how many."""

    async def increase(self, count: int, *, intent: str) -> int:
        return await super().increase(count, intent=intent) == count


@found_by("two_instances_are_distinguished")
class SameAge(Group):
    """Returns the creation time of the pool's first instance for all of them."""

    async def update(self) -> Observation:
        view = await super().update()
        first = min((each.created_at or 0 for each in view.instances.values()), default=0)
        return evolve(view, instances={name: evolve(each, created_at=first) for name, each in view.instances.items()})


@found_by("two_instances_are_distinguished")
class OneAddress(Group):
    """Returns the pool's address as the instance's."""

    async def connect_info(self, instance: str) -> ConnectInfo:
        return evolve(await super().connect_info(instance), internal_addr=f"{self._config.pool}.pond")


@found_by("two_instances_are_distinguished")
class OnePassword(Group):
    """Keeps the first password that it got, and returns it for every instance."""

    password: str | None = None

    async def connect_info(self, instance: str) -> ConnectInfo:
        info = await super().connect_info(instance)
        self.password = self.password or info.password
        return evolve(info, password=self.password)


@found_by("times_are_in_seconds")
class Monotonic(Group):
    """Returns the expiry of the credentials by a clock that starts with the machine."""

    async def connect_info(self, instance: str) -> ConnectInfo:
        return evolve(await super().connect_info(instance), expires_at=time.monotonic() + 3600)


@found_by("times_are_in_seconds")
class InThousandths(Group):
    """Returns the expiry of the credentials in milliseconds."""

    async def connect_info(self, instance: str) -> ConnectInfo:
        return evolve(await super().connect_info(instance), expires_at=(LoopClock().now() + 3600) * 1000)


@found_by("times_are_in_seconds")
class LocalTrouble(Group):
    """Reads the time of a problem, which is in UTC, in its own time zone."""

    def _problem(self, each: dict[str, str]) -> Problem:
        since = datetime.fromisoformat(each["since"]).replace(tzinfo=None).timestamp()
        return evolve(super()._problem(each), since=since)


class _Milliseconds(_Changes):
    def change(self, error: ProviderError) -> Exception:
        return RateLimited("too often", retry_after=7000) if isinstance(error, RateLimited) else error


@found_by("advice_of_the_cloud_is_kept")
class TooPatient(_OtherCloud):
    """Returns the time to wait in milliseconds."""

    cloud = _Milliseconds


class _NoAdvice(_Changes):
    def change(self, error: ProviderError) -> Exception:
        return RateLimited("too often") if isinstance(error, RateLimited) else error


@found_by("advice_of_the_cloud_is_kept")
class Unadvised(_OtherCloud):
    """Does not pass on how long the cloud asks it to wait."""

    cloud = _NoAdvice


@found_by("identity_ignores_spelling")
class AsWritten(Group):
    """Is identified by the spelling of its settings."""

    async def init(self, settings: Settings) -> GroupInfo:
        info = await super().init(settings)
        return evolve(info, identity=f"puddle:{self._config.url}/{self._config.pool}")


@found_by("identity_ignores_spelling")
class AllSettings(Group):
    """Is identified by all of its settings, time-outs included."""

    async def init(self, settings: Settings) -> GroupInfo:
        return evolve(await super().init(settings), identity=f"puddle:{self._config!r}".lower().replace("/'", "'"))


@found_by("two_resources_do_not_mix")
class WholeAccount(Group):
    """Is identified by the account, whichever pool it manages."""

    async def init(self, settings: Settings) -> GroupInfo:
        info = await super().init(settings)
        return evolve(info, identity=info.identity.partition("/pools")[0])


@found_by("two_resources_do_not_mix")
class SharedStore(Group):
    """Stores what it sees where all groups of the program see it."""

    shelf: ClassVar[dict[str, Observed]] = {}

    async def update(self) -> Observation:
        view = await super().update()
        if not self._settings.observe_only:
            self.shelf.clear()
        self.shelf.update(view.instances)
        return evolve(view, instances=dict(self.shelf))


@found_by("max_size_is_the_ceiling")
class WhatIsLeft(Group):
    """Returns as its ceiling what is left of it."""

    async def init(self, settings: Settings) -> GroupInfo:
        info = await super().init(settings)
        return evolve(info, max_size=(info.max_size or 0) - len((await super().update()).instances))


# --- what changes back ----------------------------------------------------------------------------------


@found_by("states_change_back")
class Unforgiving(Group):
    """Reports as failed forever what failed once."""

    async def init(self, settings: Settings) -> GroupInfo:
        self.failed: set[str] = set()
        return await super().init(settings)

    def _observed(self, each: dict[str, str]) -> Observed:
        observed = super()._observed(each)
        self.failed |= {each["id"]} if observed.state is State.FAILED else set()
        return evolve(observed, state=State.FAILED) if each["id"] in self.failed else observed


@found_by("states_change_back")
class OnceUnwell(Group):
    """Reports as unhealthy forever an instance that was unhealthy once."""

    async def init(self, settings: Settings) -> GroupInfo:
        self.unwell: set[str] = set()
        return await super().init(settings)

    async def heartbeat(self, instance: str) -> None:
        if instance in self.unwell:
            raise ProviderError(f"{instance} is not healthy")
        try:
            await super().heartbeat(instance)
        except ProviderError:
            self.unwell.add(instance)
            raise


@found_by("states_change_back")
class OnlyForward(Group):
    """Shows no instance in an earlier state than before."""

    async def init(self, settings: Settings) -> GroupInfo:
        self.furthest: dict[str, State] = {}
        return await super().init(settings)

    def _observed(self, each: dict[str, str]) -> Observed:
        order = [State.CREATING, State.RUNNING, State.FAILED, State.DELETING]
        observed = super()._observed(each)
        before = self.furthest.get(each["id"], State.CREATING)
        self.furthest[each["id"]] = max(before, observed.state, key=order.index)
        return evolve(observed, state=self.furthest[each["id"]])


@found_by("problems_end")
class Resentful(Group):
    """Keeps reporting problems that are over."""

    async def init(self, settings: Settings) -> GroupInfo:
        self.met: dict[ProblemKind, Problem] = {}
        return await super().init(settings)

    async def update(self) -> Observation:
        view = await super().update()
        self.met |= {each.kind: each for each in view.problems}
        return evolve(view, problems=list(self.met.values()))


@found_by("problems_end")
class Brooding(Group):
    """Reports a limit of the account forever once it has met it."""

    limits: tuple[Problem, ...] = ()

    async def increase(self, count: int, *, intent: str) -> int:
        try:
            return await super().increase(count, intent=intent)
        except ProviderError as error:
            self.limits = (Problem(kind=ProblemKind.QUOTA, message=str(error)),)
            raise

    async def update(self) -> Observation:
        view = await super().update()
        return evolve(view, problems=[*view.problems, *self.limits])


# --- secrets --------------------------------------------------------------------------------------------


@found_by("secrets_are_shown_to_nobody")
class Printing(Group):
    """Prints its requests, a leftover from debugging."""

    async def decrease(self, instances: Sequence[str]) -> Sequence[str]:
        print(f"DELETE {instances} with {self._config.token}", file=sys.stderr)  # noqa: T201  (that is what is wrong with it)
        return await super().decrease(instances)


@found_by("secrets_are_shown_to_nobody")
class Verbose(Group):
    """Has its HTTP client print all that it sends."""

    async def heartbeat(self, instance: str) -> None:
        before, HTTPConnection.debuglevel = HTTPConnection.debuglevel, 1
        try:
            await super().heartbeat(instance)
        finally:
            HTTPConnection.debuglevel = before


class _ChainsItself(_Changes):
    def change(self, error: ProviderError) -> Exception:
        error.__context__ = ValueError(f"Authorization: Bearer {self._config.token}")
        return error


@found_by("secrets_are_shown_to_nobody")
class Chained(_OtherCloud):
    """Raises a proper error whose traceback also shows its context, which contains the request."""

    cloud = _ChainsItself


@found_by("secrets_are_shown_to_nobody")
class Warns(Group):
    """Warns about deprecated settings, and shows them."""

    async def init(self, settings: Settings) -> GroupInfo:
        warnings.warn(f"token {self._config.token} in url", UserWarning, stacklevel=2)
        return await super().init(settings)


@found_by("secrets_are_shown_to_nobody")
class Encoded(Group):
    """Logs its credentials in base64, as they stand in a header."""

    async def connect_info(self, instance: str) -> ConnectInfo:
        header = b64encode(f"frog:{self._config.token}".encode()).decode()
        logging.getLogger("fleeting.puddle").log(5, "Authorization: Basic %s", header)
        return await super().connect_info(instance)


@found_by("secrets_are_shown_to_nobody")
class Attached(Group):
    """Keeps the request in an attribute of its errors if the cloud is out of stock or fails."""

    async def withdraw(self, count: int) -> int:
        try:
            return await super().withdraw(count)
        except ProviderError as error:
            error.args = (*error.args, {"headers": {"Authorization": self._config.token}})
            raise


class _Open:
    def __init__(self, token: str) -> None:
        self.token = token

    def __repr__(self) -> str:
        return f"Session(token={self.token!r})"


@found_by("secrets_are_shown_to_nobody")
class PlainSession(Group):
    """Has a client whose repr shows the token."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.session = _Open(config.token)


# --- objects that are handed in and out -----------------------------------------------------------------


@found_by("views_do_not_change_later")
class OneView(Group):
    """Returns the same mapping each time, and changes it."""

    async def init(self, settings: Settings) -> GroupInfo:
        self.shown: dict[str, Observed] = {}
        return await super().init(settings)

    async def update(self) -> Observation:
        view = await super().update()
        self.shown.clear()
        self.shown.update(view.instances)
        return evolve(view, instances=self.shown)


class _Remembers(Group):
    """Asks the cloud again only if something has changed."""

    async def init(self, settings: Settings) -> GroupInfo:
        self.cached: dict[str, Observed] = {}
        self.last: str = ""
        return await super().init(settings)

    async def update(self) -> Observation:
        view = await super().update()
        if (state := json.dumps([(name, each.state.value) for name, each in view.instances.items()])) != self.last:
            self.last, self.cached = state, dict(view.instances)
        return evolve(view, instances=self.cached)


@found_by("returned_values_are_the_callers")
class HandsOutItsCache(_Remembers):
    """Hands out the mapping that it keeps for as long as nothing changes."""


@found_by("returned_values_are_the_callers")
class HandsOutItsList(Group):
    """Hands out the list of deletions that it reuses in the next call."""

    async def init(self, settings: Settings) -> GroupInfo:
        self.doomed: list[str] = []
        return await super().init(settings)

    async def decrease(self, instances: Sequence[str]) -> Sequence[str]:
        await super().decrease(self.doomed)
        self.doomed = list(instances)
        await super().decrease(self.doomed)
        return self.doomed


@found_by("arguments_are_left_alone")
class KeepsTheList(Group):
    """Keeps the list that it was given, to check later whether all are gone."""

    doomed: Sequence[str] = ()

    async def update(self) -> Observation:
        await super().decrease(self.doomed)
        return await super().update()

    async def decrease(self, instances: Sequence[str]) -> Sequence[str]:
        self.doomed = instances
        return await super().decrease(instances)


@found_by("arguments_are_left_alone")
class Consumer(Group):
    """Takes the ids out of the list that it was given, one after the other."""

    async def decrease(self, instances: Sequence[str]) -> Sequence[str]:
        done: list[str] = []
        while instances:
            done += await super().decrease([instances.pop()])  # type: ignore[attr-defined]
        return done


@found_by("arguments_are_left_alone")
class Sorter(Group):
    """Sorts the list that it was given."""

    async def decrease(self, instances: Sequence[str]) -> Sequence[str]:
        if isinstance(instances, list):
            instances.sort()
            instances.reverse()
        return await super().decrease(instances)


# --- event loops ----------------------------------------------------------------------------------------


@found_by("groups_work_in_any_event_loop")
class OneLimiter(Group):
    """Has one lock for all groups of the program, of the event loop that first waits for it."""

    locks: ClassVar[dict[str, asyncio.Lock | None]] = {}

    async def update(self) -> Observation:
        from sniffio import current_async_library

        if current_async_library() == "trio":
            return await super().update()
        lock = self.locks.setdefault("lock", asyncio.Lock())
        assert lock is not None
        async with lock:
            await asyncio.sleep(0.01)
            return await super().update()


@found_by("groups_work_in_any_event_loop")
class EarlyBinder(Group):
    """Looks for the event loop in its constructor, where there may be none."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        from sniffio import current_async_library

        self.library = current_async_library()


@found_by("groups_work_in_any_event_loop")
class SharedClient(Group):
    """Keeps what belongs to the first event loop for all groups of the program."""

    token: ClassVar[list[object]] = []

    async def init(self, settings: Settings) -> GroupInfo:
        from anyio.lowlevel import current_token

        if not self.token:
            self.token.append(current_token())
        return await super().init(settings)

    async def update(self) -> Observation:
        from anyio.lowlevel import current_token

        if current_token() != self.token[0]:
            raise RuntimeError("attached to a different loop")
        return await super().update()
