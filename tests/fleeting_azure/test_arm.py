"""The pure part: budgets, capacities, states, errors."""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from fleeting import OutcomeUnknown, Problem, ProblemKind, ProviderError, RateLimited, State
from fleeting_azure import _arm as arm
from tests.fleeting_azure.arm_cloud import Mode
from tests.fleeting_azure.harness import STATES
from tests.later import Later

if TYPE_CHECKING:
    from azure.mgmt.compute import models
else:
    models = Later("azure.mgmt.compute.models")

times = st.floats(min_value=0, max_value=1e6)
counts = st.integers(min_value=0, max_value=1000)


@given(st.lists(times, max_size=60), st.integers(1, 12), st.floats(min_value=0.1, max_value=60))
def test_a_budget_is_kept_however_requests_come(gaps: Sequence[float], burst: int, interval: float) -> None:
    """In no span of time are there more requests than the burst and what the interval adds."""
    budget, now, made = arm.Budget(interval=interval, burst=burst), 0.0, list[float]()
    for gap in gaps:
        now = max(now + gap / 1e4, budget.ready_at(now + gap / 1e4))
        budget.take(now)
        made.append(now)
    for first, begun in enumerate(made):
        for last in range(first, len(made)):
            assert last - first + 1 <= burst + (made[last] - begun) / interval + 1e-6


@given(times)
def test_a_budget_that_was_not_used_is_full(now: float) -> None:
    """Nobody waits for the first burst; the next has to."""
    budget = arm.Budget(interval=15, burst=10)
    for _ in range(10):
        assert budget.ready_at(now) == pytest.approx(now)
        budget.take(now)
    assert budget.ready_at(now) == pytest.approx(now + 15)


@given(counts, st.one_of(st.none(), counts), st.integers(1, 1000))
def test_the_capacity_is_never_lowered(capacity: int, live: int | None, wanted: int) -> None:
    """Azure removes instances of its own choice if it is; no more come than were accepted, or asked for before."""
    there = min(capacity, live) if live is not None else capacity
    target, accepted = arm.capacity_for(capacity, live, wanted, 1000)
    assert target == max(capacity, there + accepted)
    assert 0 <= accepted <= wanted
    assert accepted == wanted or target == 1000


@given(st.lists(counts, min_size=1), st.floats(0, 1))
def test_what_was_accepted_is_shared_out(wishes: Sequence[int], part: float) -> None:
    """All of it, to nobody more than asked for, in the order of asking."""
    accepted = int(sum(wishes) * part)
    shares = arm.share(accepted, wishes)
    assert sum(shares) == accepted
    assert all(0 <= got <= wish for got, wish in zip(shares, wishes, strict=True))
    assert all(
        got == wish for got, wish in zip(shares, wishes, strict=True) if sum(shares[: len(shares)]) == sum(wishes)
    )


words = st.sampled_from(sorted({word for written in STATES for word in written.split("/")} | {"", "new"}))


@given(words, st.lists(words, max_size=1), st.booleans())
def test_only_what_runs_is_shown_as_running(provisioning: str, power: list[str], evicts: bool) -> None:  # noqa: FBT001  (hypothesis)
    """Whatever the two states say, used is only what runs and is settled, and nothing is ever hidden as deleted."""
    state = arm.state_of(provisioning, power, evicts_by_deallocating=evicts)
    settled = provisioning.lower() in {"succeeded", "updating", "failed", "canceled"}
    assert (state is State.RUNNING) == (settled and power == ["running"])
    assert state is not State.DELETED


@given(st.integers(200, 599), st.text(max_size=20), st.text(max_size=20), st.booleans(), st.text())
def test_only_a_no_is_a_no(status: int, code: str, target: str, changing: bool, message: str) -> None:  # noqa: FBT001  (hypothesis)
    """The outcome of a change is known if the answer is in the 400s; and Azure's own words are in no error."""
    secret = f"{message} SECRET"
    error = arm.failure_of(
        "try", status=status, code=code, target=target, message=secret, retry_after=None, changing=changing
    )
    assert isinstance(error, OutcomeUnknown) == (changing and not 400 <= status < 500)
    assert isinstance(error, RateLimited) == (status == 429)
    assert "SECRET" not in str(error)
    assert isinstance(error, ProviderError)


MOMENTS = st.datetimes(datetime(2021, 11, 1), datetime(2100, 1, 1), timezones=st.timezones())  # noqa: DTZ001  (as asked)
LIVES = st.lists(st.sampled_from(sorted(STATES)), min_size=1)
GUIDS = st.uuids().map(str)
KINDS: st.SearchStrategy[Mode] = st.sampled_from(["Uniform", "Flexible"])


def views(
    kind: Mode, name: str, states: Sequence[str], *, created: datetime | None, vm_id: str, early: bool
) -> "Iterator[models.VirtualMachine | models.VirtualMachineScaleSetVM]":
    """An instance as Azure shows it in one state after the other, ``vmId`` withheld while it creates unless *early*.

    Its name changes case, its time of creation the zone.
    """
    for number, (provisioning, _, power) in enumerate(written.partition("/") for written in states):
        turned = created and created.astimezone(timezone(timedelta(hours=number % 24 - 12)))
        shown = {
            "provisioningState": provisioning,
            "timeCreated": turned and turned.isoformat(),
            "vmId": None if provisioning == "Creating" and not early else vm_id,
            "instanceView": {"statuses": [{"code": f"PowerState/{power}"}] if power else []},
        }
        body = {"location": "here", "properties": shown}
        if kind == "Flexible":
            yield models.VirtualMachine({**body, "name": (name.upper if number % 2 else name.lower)()})
        else:
            yield models.VirtualMachineScaleSetVM({**body, "name": f"runners_{name}", "instanceId": name})


numbers = st.integers(0, 9).map(str)
"""Instance ids of a uniform set, few, so that they come back."""


@given(kind=KINDS, name=numbers, states=LIVES, created=MOMENTS, vm_id=GUIDS, early=st.booleans())
def test_an_instance_has_one_id_in_all_its_states(
    *, kind: Mode, name: str, states: Sequence[str], created: datetime, vm_id: str, early: bool
) -> None:
    """From the moment when it is listed first, whenever Azure tells the ``vmId``."""
    shown = views(kind, name, states, created=created, vm_id=vm_id, early=early)
    (identity,) = {arm.identity_of(each) for each in shown}
    assert identity is not None
    assert re.fullmatch(r"[a-z0-9_]+-\d{8}T\d{12}", identity), "it is a good name for a file, too"


@given(kind=KINDS, states=LIVES, vm_id=GUIDS, early=st.booleans())
def test_without_a_time_an_instance_has_no_id_before_it_is_made_and_then_one(
    *, kind: Mode, states: Sequence[str], vm_id: str, early: bool
) -> None:
    """Not even if ``vmId`` is told early: the time may be told next."""
    for state, each in zip(states, views(kind, "3", states, created=None, vm_id=vm_id, early=early), strict=True):
        assert arm.identity_of(each) == (None if state.startswith("Creating") else vm_id)


@given(KINDS, st.lists(st.tuples(numbers, MOMENTS), min_size=2), st.data())
def test_no_two_instances_share_an_id(kind: Mode, crowd: Sequence[tuple[str, datetime]], data: st.DataObject) -> None:
    """Not even those of one name: they were created one after the other."""
    instances = {(name, created.astimezone(UTC)) for name, created in crowd}
    found = set()
    for name, created in instances:
        states = data.draw(LIVES)
        found |= {
            arm.identity_of(each)
            for each in views(kind, name, states, created=created, vm_id=data.draw(GUIDS), early=False)
        }
    assert len(found) == len(instances)


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        ("OperationNotAllowed", "exceeding approved Total Regional Cores Quota", ProblemKind.QUOTA),
        ("OperationNotAllowed", "The instance is protected", ProblemKind.OTHER),
        ("OSProvisioningTimedOut", None, ProblemKind.IMAGE),
        ("Failed", None, ProblemKind.OTHER),
    ],
)
def test_problems_have_kinds(code: str, message: str | None, kind: ProblemKind) -> None:
    """By their codes; only a quota hides behind one that means much else."""
    statuses = [models.InstanceViewStatus(code=f"ProvisioningState/failed/{code}", message=message)]
    statuses.append(models.InstanceViewStatus(code="PowerState/running", message="quota"))
    (problem,) = arm.problems_of(statuses)
    assert (problem.kind, problem.since) == (kind, None)
    assert problem.message.startswith(f"Azure says {code}: ")


PROBLEMS = st.builds(
    Problem,
    kind=st.sampled_from(ProblemKind),
    message=st.sampled_from("ab"),
    since=st.one_of(st.none(), times),
    offering=st.sampled_from([None, "here"]),
)


@given(st.lists(st.tuples(st.lists(PROBLEMS), times), min_size=1))
def test_a_problem_keeps_the_time_when_it_was_first_met(views: Sequence[tuple[list[Problem], float]]) -> None:
    """Azure tells the time of the last try; and tells the same of each instance that does not come."""
    known: Mapping[Problem, float] = {}
    for problems, now in views:
        before, known = known, arm.first_met(problems, known, now)
        assert known.keys() == {evolve(problem, since=None) for problem in problems}
        assert all(at <= before.get(what, at) for what, at in known.items())


@pytest.mark.parametrize(
    ("size", "arch"),
    [
        ("Standard_D2s_v5", "amd64"),
        ("Standard_D4ps_v5", "arm64"),
        ("Standard_E96-24pds_v6", "arm64"),
        ("Standard_B2pts_v2", "arm64"),
        ("Standard_NP10s", "amd64"),
        ("Standard_PB6s", "amd64"),
        ("Basic_A0", "amd64"),
    ],
)
def test_the_size_tells_the_processor(size: str, arch: str) -> None:
    """A p among the features means ARM; one in the family does not."""
    profile = models.VirtualMachineScaleSetVMProfile()
    found = models.VirtualMachineScaleSet(
        location="here",
        sku=models.Sku(name=size, capacity=0),
        properties=models.VirtualMachineScaleSetProperties(virtual_machine_profile=profile),
    )
    found["id"] = "/subscriptions/…"
    assert arm.scale_set_of(found).arch == arch
