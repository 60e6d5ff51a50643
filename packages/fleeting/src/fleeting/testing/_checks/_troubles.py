"""Every trouble in every call: at its first request or a later one, and what is left of it when it is over."""

from collections.abc import Callable, Mapping
from functools import partial

from attrs import frozen

from fleeting._errors import AuthFailed, GroupRefused, InstanceNotFound, OutcomeUnknown, ProviderError, RateLimited
from fleeting._types import Observation, State
from fleeting.testing._harness import (
    Answer,
    Call,
    Harness,
    Probe,
    Trouble,
    TroubleAfter,
    Violation,
    answer_of,
    answers_during,
    describe,
    new_intent,
    without,
)

EXPECTED = {Trouble.AUTH: AuthFailed, Trouble.RATE_LIMIT: RateLimited}
"""The class of error that says what to do about a trouble, where there is one of its own."""

LATER = (Trouble.ERROR, Trouble.GARBAGE, Trouble.AUTH, Trouble.RATE_LIMIT, Trouble.LOST_ANSWER)
"""Troubles that may begin with any request of a call."""

REQUESTS_AT_MOST = 8
"""How many requests of one call are worth breaking."""

TRIES_AT_MOST = 5
"""How many requests a call may send to a cloud that refuses each as one too many: an SDK may try again a few times."""

PASSING = (
    Trouble.ERROR,
    Trouble.GARBAGE,
    Trouble.MALFORMED,
    Trouble.AUTH,
    Trouble.RATE_LIMIT,
    Trouble.LOST_ANSWER,
    Trouble.UNREACHABLE,
    Trouble.SILENCE,
)
"""Troubles after which the cloud is as it was."""


async def check_unreachable_cloud_is_a_provider_error(harness: Harness) -> None:
    """If no connection can be made, every call raises a `ProviderError`, and `increase` knows that nothing was done."""
    await _all_fail(harness, Trouble.UNREACHABLE)


async def check_malformed_answers_are_provider_errors(harness: Harness) -> None:
    """In every call, an answer with missing fields is a `ProviderError`: neither a `KeyError` nor a refusal."""
    await _all_fail(harness, Trouble.MALFORMED)


async def check_late_answer_is_an_unknown_outcome(harness: Harness) -> None:
    """If the cloud carries out a request but answers too late, no call says that it was not done."""
    harness.trouble(Trouble.LATE_ANSWER)  # without which nothing needs to be made
    async with harness.opened() as probe:
        kept, doomed = await probe.grow(2)
        group = probe.group
        calls: Mapping[str, Call] = {
            **probe.reads(kept),
            "increase": lambda: group.increase(1, intent=new_intent()),
            "decrease": lambda: group.decrease([doomed]),
        }
        answers = await answers_during(harness, Trouble.LATE_ANSWER, calls)
        for name, answer in answers.items():
            if answer is None:
                seen = f"the cloud {Trouble.LATE_ANSWER.value}; after {harness.patience:g} s {name} had not ended"
                raise Violation("every call to the cloud has a timeout", seen)
            _judge(name, Trouble.LATE_ANSWER, answer)
        ordered = answers["increase"]
        if ordered is not None and not isinstance(ordered.error, OutcomeUnknown | OSError):
            clause = "increase raises OutcomeUnknown if the answer comes too late"
            raise Violation(clause, f"the cloud {Trouble.LATE_ANSWER.value}, and increase {ordered}")
        await probe.rest(harness.settle)
        added = await probe.added()
        if kept not in added or len(without(added, [kept, doomed])) > 1:
            clause = "increase makes its request once, however late the answer"
            raise Violation(clause, f"1 was requested in addition to {kept} and {doomed}; left are {describe(added)}")


async def check_refusals_are_reported_by_every_call(harness: Harness) -> None:
    """In every call, refused credentials are `AuthFailed` and throttling is `RateLimited`."""
    async with harness.opened() as probe:
        (instance,) = await probe.grow(1)
        for kind in EXPECTED:
            async with harness.trouble(kind):
                for name, call in probe.calls(instance).items():
                    _judge(name, kind, await answer_of(call()))


async def check_throttled_calls_stop_asking(harness: Harness) -> None:
    """A call that the cloud throttles gives up soon, however many instances it was given."""
    requests = harness.need(harness.requests, "requests", "counts all requests so far")
    async with harness.opened() as probe:
        (instance,) = await probe.grow(1)
        many = [instance, *(f"{harness.unknown_id[:-3]}{number:03}" for number in range(30))]
        async with harness.trouble(Trouble.RATE_LIMIT):
            calls: Mapping[str, Call] = {**probe.calls(instance), "decrease": partial(probe.group.decrease, many)}
            for name, call in calls.items():
                before = requests()
                answer = await answer_of(call())
                if (sent := requests() - before) > TRIES_AT_MOST:
                    clause = f"a call sends at most {TRIES_AT_MOST} requests to a cloud that {Trouble.RATE_LIMIT.value}"
                    raise Violation(clause, f"{name} sent {sent}, and {answer}")


async def check_troubles_pass(harness: Harness) -> None:
    """Once a trouble is over, every call works as before: nothing is remembered, nothing is broken."""
    async with harness.opened() as probe:
        (instance,) = await probe.grow(1)
        for kind in (kind for kind in PASSING if kind in harness.troubles):
            await answers_during(harness, kind, probe.reads(instance))
            await probe.rest(harness.settle)
            for name, call in probe.reads(instance).items():
                answer = await _sooner_or_later(probe, call)
                if answer.error is not None:
                    clause = "a call works again once the trouble is over"
                    raise Violation(clause, f"the cloud no longer {kind.value}, and {name} {answer}") from answer.error
            shown = await probe.shown()
            if shown.keys() != {*probe.found, instance} or shown[instance].state is not State.RUNNING:
                clause = "a trouble changes nothing once it is over"
                raise Violation(clause, f"the cloud no longer {kind.value}; the view has {describe(shown)}")


async def _sooner_or_later(probe: Probe, call: Call) -> Answer:
    """Make a call until it succeeds, as long as the harness's deadline: a cloud may ask a client to wait."""
    clock = probe.harness.settings.clock
    end = clock.now() + probe.harness.deadline
    while (answer := await answer_of(call())).error is not None and clock.now() < end:
        await probe.rest(probe.harness.poll)
    return answer


async def check_trouble_amid_a_call_is_reported(harness: Harness) -> None:
    """Whichever request of a call fails, the call reports what was done and what was not."""
    after = harness.need(harness.trouble_after, "trouble_after", "lets a trouble begin after some requests")
    requests = harness.need(harness.requests, "requests", "counts all requests so far")
    for kind in (kind for kind in LATER if kind in harness.troubles):
        async with harness.opened() as probe:
            if harness.launch is not None:
                await harness.launch(harness.crowd)
                probe.found = dict(await probe.shown())
            amid = _Amid(probe, kind, after, requests)
            await amid.read()
            await amid.grow()
            await amid.shrink()
            if harness.launch is not None:
                await probe.group.decrease(list(probe.found)[-harness.crowd :])


@frozen
class _Amid:
    """A trouble that begins with the second, third … request of a call."""

    probe: Probe
    kind: Trouble
    after: TroubleAfter
    requests: Callable[[], int]

    async def read(self) -> None:
        """Read: all of it, or an error."""
        instance = list(self.probe.found)[-1] if self.probe.found else (await self.probe.grow(1))[0]
        before = await self.probe.shown()
        calls: Mapping[str, Call] = {"init": self.probe.harness.open_and_close, **self.probe.reads(instance)}
        for name, call in calls.items():
            for number in range(1, REQUESTS_AT_MOST + 1):
                answer, met = await self._met(number, call)
                if not met:
                    break
                partial_view = isinstance(answer.value, Observation) and answer.value.instances.keys() != before.keys()
                if answer.error is not None or partial_view:
                    _judge(name, self.kind, answer, self._since(number))

    async def grow(self) -> None:
        """Ask for two: what is accepted is returned, and what came of it is shown."""
        for number in range(1, REQUESTS_AT_MOST + 1):
            if not await self._grown(number):
                break

    async def _grown(self, number: int) -> bool:
        """Ask for two, with the trouble after so many requests; returns whether the call met it."""
        probe, harness = self.probe, self.probe.harness
        before = await probe.shown()
        answer, met = await self._met(number, lambda: probe.group.increase(2, intent=new_intent()))
        await probe.rest(harness.settle)
        unknown = isinstance(answer.error, OutcomeUnknown | OSError)
        if answer.error is not None and not unknown:
            _judge("increase", self.kind, answer, self._since(number))
        said = answer.value or 0
        clause = "increase returns how many the cloud accepted, and update shows all of them"
        added = without(await probe.until(clause, lambda shown: len(without(shown, before)) >= said), before)
        seen = f"the cloud {self.kind.value}{self._since(number)}; increase(2) {answer}, and then there were "
        if len(added) > 2 or (len(added) != said and not unknown):  # noqa: PLR2004  (asked for above)
            raise Violation(clause, seen + describe(added)) from answer.error
        if harness.alive is not None and (unseen := set(await harness.alive()) - {*added, *before}):
            raise Violation(clause, f"{seen}{sorted(unseen)}, not shown") from answer.error
        await probe.remove(list(added))
        return met

    async def shrink(self) -> None:
        """Delete two: those that are said to be accepted go, and the others can be deleted later."""
        for number in range(1, REQUESTS_AT_MOST + 1):
            if not await self._shrunk(number):
                break

    async def _shrunk(self, number: int) -> bool:
        """Delete two, with the trouble after so many requests; returns whether the call met it."""
        probe = self.probe
        doomed = await probe.grow(2)
        answer, met = await self._met(number, lambda: probe.group.decrease(doomed))
        if answer.error is not None:
            _judge("decrease", self.kind, answer, self._since(number))
        accepted = set(answer.value or ())
        clause = "decrease returns those whose deletion the cloud accepted, and they disappear"
        clause += f", though it {self.kind.value}{self._since(number)}"
        await probe.until(clause, lambda shown: not shown.keys() & accepted)
        await probe.remove(doomed)
        return met

    async def _met(self, number: int, call: Call) -> tuple[Answer, bool]:
        """Make the call, with the trouble after so many requests; returns whether the call met it."""
        before = self.requests()
        async with self.after(self.kind, number):
            answer = await answer_of(call())
        return answer, self.requests() - before > number

    def _since(self, number: int) -> str:
        return f" after {number} request{'s' * (number > 1)}"


async def _all_fail(harness: Harness, kind: Trouble) -> None:
    """Make every call while the cloud is of no use, and look at what they raise and what they have done."""
    harness.trouble(kind)  # without which nothing needs to be made
    async with harness.opened() as probe:
        (instance,) = await probe.grow(1)
        async with harness.trouble(kind):
            for name, call in probe.calls(instance).items():
                answer = await answer_of(call())
                if answer.error is not None or name in {"update", "increase"}:
                    _judge(name, kind, answer)
                if kind is Trouble.UNREACHABLE and isinstance(answer.error, OutcomeUnknown):
                    clause = (
                        "OutcomeUnknown is raised only for requests that may have been carried out, not for unsent ones"
                    )
                    raise Violation(clause, f"the cloud {kind.value}; {name} {answer}") from answer.error
        await probe.rest(harness.settle)
        added = await probe.added()
        if list(added) != [instance]:
            raise Violation("a failed call has no effect", f"{instance} was running; left are {describe(added)}")


def _judge(name: str, kind: Trouble, answer: Answer, since: str = "") -> None:
    """Raise unless the call failed with an error that says what to do about the trouble, if it failed."""
    seen = f"the cloud {kind.value}{since}; {name} {answer}"
    error = answer.error
    if error is None:
        if name in {"update", "increase"}:
            raise Violation(f"{name} raises ProviderError if the cloud does not carry out the request", seen)
        return
    expected = EXPECTED.get(kind, ProviderError)
    if isinstance(error, GroupRefused) and name == "init":
        return
    if not isinstance(error, expected):
        raise Violation(
            f"a call raises {expected.__name__} if the cloud {kind.value}", f"{name}{since} {answer}"
        ) from error
    if isinstance(error, InstanceNotFound):
        raise Violation("InstanceNotFound is raised only if the cloud says so", seen) from error
