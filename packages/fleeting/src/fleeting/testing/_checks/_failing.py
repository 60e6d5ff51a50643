"""What a group makes of a cloud that refuses, fails, or says nothing: one class of error for each thing to do."""

import math

from attrs import evolve

from fleeting._errors import (
    AuthFailed,
    CapacityUnavailable,
    GroupRefused,
    InstanceNotFound,
    OutcomeUnknown,
    ProviderError,
    QuotaExceeded,
    RateLimited,
)
from fleeting._types import Observation, Problem, ProblemKind
from fleeting.testing._harness import (
    Answer,
    Harness,
    Probe,
    Trouble,
    Violation,
    answer_of,
    answers_during,
    describe,
    new_intent,
)

REFUSALS = (Trouble.AUTH, Trouble.RATE_LIMIT)
"""Troubles that are failures too, and that have a check of their own."""

CLAIMS_BY_RETURNING = {"update", "increase", "mark_owner", "read_marks"}
"""Who returns from these says that the cloud has answered, accepted the order, taken the mark, or shown all marks."""

CLAIMS_BY_VALUE = {"decrease", "withdraw", "suspend"}
"""Who returns something from these says that the cloud has done it. What runs may be said to have been resumed."""


async def check_failures_are_provider_errors(harness: Harness) -> None:
    """Whatever the cloud answers, a call raises only a `ProviderError`, and reports only what was done."""
    async with harness.opened() as probe:
        (instance,) = await probe.grow(1)
        for kind in (Trouble.ERROR, Trouble.GARBAGE, *(kind for kind in REFUSALS if kind in harness.troubles)):
            async with harness.trouble(kind):
                for name, call in probe.calls(instance).items():
                    _judge_failure(name, kind, await answer_of(call()))
        await probe.rest(harness.settle)
        added = await probe.added()
        if list(added) != [instance]:
            raise Violation("a failed call has no effect", f"{instance} was running; left are {describe(added)}")
        await probe.remove([instance])


async def check_refused_credentials_are_auth_failed(harness: Harness) -> None:
    """If the cloud refuses the credentials, `update` and `increase` raise `AuthFailed`."""
    await _raises(harness, Trouble.AUTH, AuthFailed)


async def check_throttling_is_rate_limited(harness: Harness) -> None:
    """If the cloud throttles, `update` and `increase` raise `RateLimited`, with the cloud's advice if there is any."""
    for answer in await _raises(harness, Trouble.RATE_LIMIT, RateLimited):
        advice = answer.error.retry_after if isinstance(answer.error, RateLimited) else None
        if advice is not None and not 0 < advice < math.inf:
            raise Violation("retry_after is a number of seconds from now above 0, or None", f"{advice!r}")


async def check_stock_out_is_reported(harness: Harness) -> None:
    """If the cloud has no stock, `increase` raises `CapacityUnavailable`, or `update` shows a problem that says so."""
    await _reports(harness, Trouble.STOCK_OUT, CapacityUnavailable, ProblemKind.CAPACITY)


async def check_quota_is_reported(harness: Harness) -> None:
    """If a quota is exhausted, `increase` raises `QuotaExceeded`, or `update` shows a problem that says so."""
    await _reports(harness, Trouble.QUOTA, QuotaExceeded, ProblemKind.QUOTA)


async def check_silence_ends_in_time(harness: Harness) -> None:
    """Every call has a timeout and raises after it; `increase` then says that the outcome is unknown."""
    async with harness.opened() as probe:
        (instance,) = await probe.grow(1)
        leaver = harness.make()
        await leaver.init(evolve(harness.settings, observe_only=True))
        calls = {**probe.calls(instance), "shutdown": leaver.shutdown}
        for name, answer in (await answers_during(harness, Trouble.SILENCE, calls)).items():
            if answer is None:
                seen = f"{harness.patience:g} s after the cloud stopped answering, {name} had not ended"
                raise Violation("every call to the cloud has a timeout", seen)
            if name == "increase" and not isinstance(answer.error, OutcomeUnknown | OSError):
                clause = "increase raises OutcomeUnknown if no answer comes"
                raise Violation(clause, f"the cloud did not answer, and increase {answer}") from answer.error
            if not isinstance(answer.error, OSError):
                _judge_failure(name, Trouble.SILENCE, answer)


def _judge_failure(name: str, kind: Trouble, answer: Answer) -> None:
    """Look at what came of a call while every request failed."""
    seen = f"the cloud {kind.value}; {name} {answer}"
    allowed = (ProviderError, GroupRefused) if name == "init" else ProviderError
    if answer.error is not None and not isinstance(answer.error, allowed):
        clause = "if the cloud fails, the call raises ProviderError or a subclass"
        raise Violation(clause, seen) from answer.error
    if isinstance(answer.error, InstanceNotFound):
        raise Violation("InstanceNotFound is raised only if the cloud says so", seen) from answer.error
    claims = name in CLAIMS_BY_RETURNING or (name in CLAIMS_BY_VALUE and answer.value)
    if answer.error is None and claims:
        raise Violation(f"{name} raises ProviderError if the cloud does not carry out the request", seen)


async def _raises(harness: Harness, kind: Trouble, expected: type[ProviderError]) -> list[Answer]:
    """Look whether reading and asking both raise that error; returns their answers."""
    async with harness.opened() as probe:
        async with harness.trouble(kind):
            answers = {
                "update": await answer_of(probe.group.update()),
                "increase": await answer_of(probe.group.increase(1, intent=new_intent())),
            }
        for name, answer in answers.items():
            if not isinstance(answer.error, expected):
                clause = f"a call raises {expected.__name__} if the cloud {kind.value}"
                raise Violation(clause, f"{name} {answer}") from answer.error
    return list(answers.values())


async def _reports(harness: Harness, kind: Trouble, refusal: type[ProviderError], problem: ProblemKind) -> None:
    """Look whether the user gets to know why nothing comes: by an error, or by a problem that stays the same."""
    async with harness.opened() as probe:
        async with harness.trouble(kind):
            answer = await answer_of(probe.group.increase(1, intent=new_intent()))
            if not isinstance(answer.error, refusal):
                await _look_for(problem, probe, answer, refusal)
        await probe.rest(harness.settle)


async def _look_for(kind: ProblemKind, probe: Probe, answer: Answer, refusal: type[ProviderError]) -> None:
    first = _problem_in(await probe.group.update(), kind) if answer.error is None else None
    if first is None:
        clause = (
            f"increase raises {refusal.__name__}, or update reports a Problem of {kind}, if nothing comes because of it"
        )
        seen = f"increase {answer}" + ("" if answer.error else ", and update has no such problem")
        raise Violation(clause, seen) from answer.error
    later = _problem_in(await probe.group.update(), kind)
    if later is None or later.since != first.since:
        raise Violation("a persisting problem keeps its since", f"first {first}, then {later}")


def _problem_in(view: Observation, kind: ProblemKind) -> Problem | None:
    return next((problem for problem in view.problems if problem.kind is kind), None)
