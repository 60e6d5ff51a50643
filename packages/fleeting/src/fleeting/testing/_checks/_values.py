"""What the values mean: types, units, identities, and what distinguishes two instances."""

import math
from collections.abc import Mapping, Sequence

from attrs import evolve

from fleeting._errors import RateLimited
from fleeting._types import Capability, ConnectInfo, GroupInfo, Observed, Problem, ProblemKind, State
from fleeting.testing._checks._view import CLOCK_SKEW, far_from_greenwich
from fleeting.testing._harness import (
    Harness,
    NotApplicable,
    Probe,
    Trouble,
    Violation,
    answer_of,
    describe,
    new_intent,
    without,
)

FAR = 100 * 365 * 86400.0
"""Seconds from now after which no credential ends: a time in milliseconds is later."""

HOUR = 3600.0
"""No cloud asks a client to wait longer than that: a time in milliseconds is longer."""

DETAILS = ("user", "password", "key", "host_key", "os", "arch", "protocol", "expires_at")
"""Parts of the connection details that belong to one instance, beside its addresses."""

APART = 1.1
"""Seconds between two instances, so that a cloud that reports whole seconds reports different ones."""


async def check_values_are_of_their_types(harness: Harness) -> None:
    """Every value that a group returns has its declared type."""
    async with harness.opened() as probe:
        _look_at_info(probe.info)
        accepted = await probe.increase(1)
        _of("increase", "an int", type(accepted) is int, accepted)
        shown = await probe.until("accepted instances run", lambda shown: _one_runs(probe, shown))
        (instance,) = without(shown, probe.found)
        view = await probe.group.update()
        for name, each in view.instances.items():
            _of("update", "ids that are a str and not empty", _is(name, str) and name != "", name)
            _look_at_observed(name, each)
        _look_at_problems(view.problems)
        _look_at_connect_info(await probe.group.connect_info(instance))
        _of("heartbeat", "None", (beat := await probe.group.heartbeat(instance)) is None, beat)  # type: ignore[func-returns-value]
        gone = await probe.group.decrease([instance])
        strings = _is(gone, Sequence) and not _is(gone, str) and all(_is(i, str) for i in gone)
        _of("decrease", "a sequence of ids without repeats", strings and len(set(gone)) == len(gone), gone)


def _one_runs(probe: Probe, shown: Mapping[str, Observed]) -> bool:
    return any(each.state is State.RUNNING for each in without(shown, probe.found).values())


def _of(call: str, expected: str, met: object, found: object) -> None:
    """Raise unless what was found is as expected."""
    if not met:
        raise Violation(f"{call} returns {expected}", f"it returned {found!r}")


def _look_at_info(info: GroupInfo) -> None:
    _of("init", "a GroupInfo", _is(info, GroupInfo), info)
    _of("init", "an identity that is a str", _is(info.identity, str), info.identity)
    _of("init", "a max_size that is an int or None", info.max_size is None or type(info.max_size) is int, info.max_size)
    capabilities = _is(info.capabilities, frozenset) and all(_is(c, Capability) for c in info.capabilities)
    _of("init", "a frozenset of Capability", capabilities, info.capabilities)
    advice = not _is(info.advice, str) and all(_is(each, str) for each in info.advice)
    _of("init", "a sequence of sentences as advice", advice, info.advice)


def _look_at_observed(name: str, each: Observed) -> None:
    _of("update", "an Observed for each id", _is(each, Observed), each)
    _of("update", f"a State for {name}", _is(each.state, State), each.state)
    created = each.created_at is None or (_is_number(each.created_at) and each.created_at > 0)
    _of("update", f"a created_at for {name} in seconds, or None", created, each.created_at)
    _of("update", f"an intent for {name} that is a str or None", _is_text(each.intent), each.intent)
    _of("update", f"an offering for {name} that is a str or None", _is_text(each.offering), each.offering)


def _look_at_problems(problems: Sequence[Problem]) -> None:
    _of("update", "a sequence of problems", _is(problems, Sequence), problems)
    for each in problems:
        known = _is(each, Problem) and _is(each.kind, ProblemKind) and _is(each.message, str)
        _of("update", "a Problem with a ProblemKind and a message", known, each)
        _of("update", "a since in seconds, or None", each.since is None or _is_number(each.since), each.since)


def _look_at_connect_info(info: ConnectInfo) -> None:
    _of("connect_info", "a ConnectInfo", _is(info, ConnectInfo), info)
    texts = (info.internal_addr, info.external_addr, info.user, info.password, info.key, info.host_key)
    _of("connect_info", "addresses and credentials that are a str, or None", all(map(_is_text, texts)), info)
    port = info.port is None or (type(info.port) is int and 0 < info.port < 1 << 16)
    _of("connect_info", "a port from 1 to 65535, or None", port, info.port)
    _of(
        "connect_info",
        "an expires_at in seconds, or None",
        info.expires_at is None or _is_number(info.expires_at),
        info,
    )


def _is(value: object, kind: type) -> bool:
    """Whether it is of a type that it is declared to have: a plugin need not be checked for its types."""
    return isinstance(value, kind)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_text(value: object) -> bool:
    return value is None or (_is(value, str) and value != "")


async def check_two_instances_are_distinguished(harness: Harness) -> None:
    """Each instance has its own time, address and login, whatever was asked about before."""
    async with harness.opened(keep=True) as probe:
        (one,) = await probe.grow(1)
        await probe.rest(APART)
        (other,) = await probe.grow(1)
        shown = await probe.shown()
        first, second = [await probe.group.connect_info(instance) for instance in (one, other)]
    fresh: list[ConnectInfo] = []
    for number in range(2):
        async with harness.opened(keep=number == 0) as later:
            fresh.append(await later.group.connect_info(other))
            later.found = without(later.found, [one, other])  # so that they are deleted in the end
    created = [shown[instance].created_at for instance in (one, other)]
    if created[0] is not None and created[1] is not None and not created[0] < created[1]:
        seen = f"{one} was created {APART:g} s before {other}, and they have {created[0]!r} and {created[1]!r}"
        raise Violation("created_at is when that instance was created", seen)
    if (place := _place(first)) == _place(second):
        clause = "connect_info leads to the requested instance"
        raise Violation(clause, f"both {one} and {other} are at {place[0] or place[1]}")
    if fresh[0] == fresh[1] != second:  # two objects that agree have no credentials of their own
        wrong = [part for part in DETAILS if getattr(fresh[0], part) != getattr(second, part)]
        clause = "what connect_info returns for an instance does not depend on earlier calls"
        raise Violation(clause, f"asked about {other} after {one}, {', '.join(wrong)} differed from {other} alone")


def _place(info: ConnectInfo) -> tuple[object, ...]:
    """Where an instance is reached."""
    return info.internal_addr, info.external_addr, info.port


async def check_times_are_in_seconds(harness: Harness) -> None:
    """Every time is in seconds since the epoch (UTC), and every duration in seconds, whatever the cloud writes."""
    clock = harness.settings.clock
    async with harness.opened() as probe:
        begun = clock.now()
        (instance,) = await probe.grow(1)
        with far_from_greenwich():
            expires = (await probe.group.connect_info(instance)).expires_at
        now = clock.now()
        if expires is not None and not now - CLOCK_SKEW < expires < now + FAR:
            clause = "expires_at is when the credentials end, in seconds since the epoch (UTC)"
            raise Violation(clause, f"asked at {now:.0f}, connect_info of {instance} has {expires!r}")
        for kind in (kind for kind in (Trouble.STOCK_OUT, Trouble.QUOTA) if kind in harness.troubles):
            async with harness.trouble(kind):
                await answer_of(probe.group.increase(1, intent=new_intent()))
                with far_from_greenwich():
                    problems = (await probe.group.update()).problems
            for each in problems:
                if each.since is not None and not begun - CLOCK_SKEW <= each.since <= clock.now() + CLOCK_SKEW:
                    clause = "since is when a problem first occurred, in seconds since the epoch (UTC)"
                    raise Violation(
                        clause, f"the cloud {kind.value}, since {begun:.0f} or soon after; update has {each}"
                    )
        await probe.rest(harness.settle)  # so that all that comes is there to be deleted


async def check_advice_of_the_cloud_is_kept(harness: Harness) -> None:
    """`retry_after` is what the cloud advises, in seconds, in every call that it refuses."""
    async with harness.opened() as probe:
        (instance,) = await probe.grow(1)
        async with harness.trouble(Trouble.RATE_LIMIT):
            answers = {name: await answer_of(call()) for name, call in probe.calls(instance).items()}
        refused = {name: each.error for name, each in answers.items() if isinstance(each.error, RateLimited)}
        for name, error in refused.items():
            advice, given = error.retry_after, harness.retry_after
            if (advice is not None and not 0 < advice <= HOUR) or (given is not None and not _is_about(advice, given)):
                clause = "retry_after is how many seconds the cloud asks clients to wait, or None"
                meant = "" if given is None else f"the cloud asked for {given:g} s, and "
                raise Violation(clause, f"{meant}{name} raised {error!r} with retry_after {advice!r}")


def _is_about(advice: float | None, given: float) -> bool:
    """Whether it is that, or what is left of it."""
    return advice is not None and given - 2 <= advice <= given


async def check_identity_ignores_spelling(harness: Harness) -> None:
    """The same resource has the same identity, however its settings are spelled."""
    respelled = harness.need(harness.respelled or None, "respelled", "make the same resource from other spellings")
    async with harness.opened() as probe:
        pass
    for make in respelled:
        async with evolve(harness, make=make).opened(observe_only=True, keep=True) as other:
            pass
        if other.info.identity != probe.info.identity:
            clause = "identity is the cloud resource itself, however its settings are spelled"
            raise Violation(clause, f"{probe.info.identity!r}, and from other settings {other.info.identity!r}")


async def check_two_resources_do_not_mix(harness: Harness) -> None:
    """Another resource has another identity and its own instances, even if both are open at once."""
    elsewhere = harness.need(harness.elsewhere, "elsewhere", "makes a group object for another resource")
    async with harness.opened() as here, evolve(harness, make=elsewhere).opened(observe_only=True, keep=True) as there:
        if here.info.identity == there.info.identity:
            clause = "identity distinguishes resources"
            raise Violation(clause, f"two resources have {here.info.identity!r}")
        (instance,) = await here.grow(1)
        if instance in (shown := await there.shown()) or shown.keys() & (await here.shown()).keys():
            clause = "update shows the instances of this resource, and of no other"
            raise Violation(clause, f"{instance} was created in one of two, and the other shows {describe(shown)}")


async def check_max_size_is_the_ceiling(harness: Harness) -> None:
    """`max_size` is the total ceiling, whatever number of instances exists already."""
    async with harness.opened() as probe:
        if probe.info.max_size is None:
            raise NotApplicable("the group has no max_size")
        await probe.grow(2)
        async with harness.opened(keep=True, observe_only=True) as later:
            now = later.info.max_size
        if now != probe.info.max_size or now < len(await probe.shown()):
            clause = "max_size is the cloud's own ceiling, not the room that is left"
            raise Violation(clause, f"it was {probe.info.max_size}, and {now} once there were 2 more instances")
