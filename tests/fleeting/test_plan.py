"""The plan, one rule at a time; what holds over whole lives is in `test_plan_machine`."""

from math import inf

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from fleeting import (
    NoticeKind,
    Observation,
    Observed,
    PlanConfig,
    Preexisting,
    Problem,
    ProblemKind,
    ScaleThrottle,
    State,
)
from fleeting.core import TOO_OLD, Drop, Plan, Put, Step, messages
from fleeting.core._context import REMEMBER_LOST
from fleeting.core._early_notices import MOST, EarlyNotices
from fleeting.core._growth import UNFILLED
from fleeting.core._intents import IntentRecord
from fleeting.core._pacing import UNANSWERED
from fleeting.core._records import INTENT
from fleeting.core._views import REST
from fleeting.events import Access, Availability, LossKind
from tests.strategies import EPOCH, NO_THROTTLE, Records, a_plan, heard, of_type, one_intent, seen, shows

CONFIG = PlanConfig(scale_throttle=NO_THROTTLE, preexisting=Preexisting.REMOVE)


def started(config: PlanConfig = CONFIG, *, named: bool = False, withdraws: bool = False) -> Plan:
    """A plan that has seen its empty group once."""
    plan = a_plan(config, named=named, withdraws=withdraws)
    plan.tick(EPOCH)
    plan.handle(seen(), EPOCH)
    return plan


def with_ready(plan: Plan, instance: str = "i", now: float = EPOCH) -> None:
    """Bring the instance up, from the request on."""
    intent = one_intent(plan.request(1, now))
    plan.handle(messages.Increased(intent, 1), now)
    plan.handle(seen(**{instance: State.RUNNING}), now)
    plan.handle(messages.Prepared(instance), now)


def test_what_falls_short_names_no_cloud() -> None:
    """A group may be a list of hosts."""
    plan = started()
    intent = one_intent(plan.request(2, EPOCH))
    plan.handle(messages.Increased(intent, 1), EPOCH)
    assert plan.last_failure == (EPOCH, "the group accepted 1 of 2")


def access(plan: Plan) -> Access:
    """Whether the one instance may be given work."""
    return plan.instances["i"].availability.access


def with_named(plan: Plan, instance: str, now: float) -> None:
    """Bring an instance up that carries its intent."""
    intent = one_intent(plan.request(1, now))
    plan.handle(messages.Increased(intent, 1), now)
    plan.handle(shows({instance: intent}), now)
    plan.handle(messages.Prepared(instance), now)


# --- from the request to ready ------------------------------------------------------------------------------


def test_an_instance_goes_from_request_to_ready() -> None:
    """Request, view, preparation: each step says what is next, and the intent is closed when it is matched."""
    plan = started()
    intent = one_intent(plan.request(1, EPOCH))
    plan.handle(messages.Increased(intent, 1), EPOCH)
    assert (plan.total, plan.coming, plan.outstanding) == (1, 1, 1)
    step = plan.handle(seen(i=State.RUNNING), EPOCH + 1)
    assert messages.Prepare("default", "i") in step.actions
    assert (plan.total, plan.coming, plan.outstanding) == (1, 1, 0)
    assert heard(plan.handle(messages.Prepared("i"), EPOCH + 2)) == []
    assert access(plan) is Access.AVAILABLE
    assert (plan.total, plan.coming) == (1, 0)


def test_without_a_journal_nothing_is_written() -> None:
    """The same is done, from the request to the end."""
    steps = []
    for journaled in (True, False):
        plan = a_plan(CONFIG, journaled=journaled)
        facts: list[messages.Command | messages.Fact] = [
            messages.Tick(),
            seen(),
            messages.Request(1),
            messages.Increased("intent-1-1", 1),
            seen(i=State.RUNNING),
            messages.Prepared("i"),
            messages.Remove({"i": "not needed"}),
            messages.Decreased(("i",), ("i",)),
            seen(),
        ]
        steps.append([plan.handle(fact, EPOCH) for fact in facts])
    written, unwritten = steps
    assert [len(step.writes) for step in written] == [0, 0, 1, 1, 2, 0, 1, 0, 2]
    assert [(type(write), write.kind) for write in written[-1].writes] == [(Drop, "instance"), (Put, "lost")]
    assert [(*step.writes,) for step in unwritten] == [()] * len(written)
    assert [[*map(list, step[1:])] for step in unwritten] == [[*map(list, step[1:])] for step in written]


def test_nothing_is_asked_for_before_the_group_was_seen() -> None:
    """Who does not know what the group holds would grow past its ceiling, and change a group it must refuse."""
    plan = a_plan(evolve(CONFIG, max_instances=1, preexisting=Preexisting.REFUSE))
    plan.tick(EPOCH)
    step = plan.request(1, EPOCH)
    assert not of_type(messages.Increase, step.actions)
    assert plan.limits(EPOCH).allowed(1) == 0


def test_an_instance_older_than_the_request_does_not_answer_it() -> None:
    """Instances without an intent are matched by count and time: one created an hour ago is not what was asked for."""
    plan = started()
    intent = one_intent(plan.request(1, EPOCH))
    plan.handle(messages.Increased(intent, 1), EPOCH)
    old = Observed(state=State.RUNNING, created_at=EPOCH - 3600)
    step = plan.handle(messages.Updated(Observation({"old": old})), EPOCH + 1)
    assert plan.outstanding == 1
    assert of_type(messages.Decrease, step.actions) == [messages.Decrease("default", ("old",))]


def test_a_group_that_names_its_instances_is_not_matched_by_count() -> None:
    """Where every instance of ours carries its intent, one that carries none is not ours."""
    plan = started(named=True)
    intent = one_intent(plan.request(1, EPOCH))
    plan.handle(messages.Increased(intent, 1), EPOCH)
    plan.handle(shows({"foreign": None}), EPOCH + 1)
    step = plan.handle(shows({"foreign": None, "ours": intent}), EPOCH + 2)
    assert messages.Prepare("default", "ours") in step.actions
    assert plan.instances["foreign"].removing


def test_a_preparation_and_its_time_limit_that_are_due_at_once() -> None:
    """What is being removed because it took too long is not prepared again in the same tick."""
    plan = started(evolve(CONFIG, update_interval_when_expecting=10.0, instance_ready_timeout=10.0))
    intent = one_intent(plan.request(1, EPOCH))
    plan.handle(messages.Increased(intent, 1), EPOCH)
    plan.handle(seen(i=State.RUNNING), EPOCH)
    plan.handle(messages.PrepareFailed("i", "connection refused", final=False), EPOCH)
    step = plan.tick(EPOCH + 10)
    assert of_type(messages.Decrease, step.actions) == [messages.Decrease("default", ("i",))]
    assert not of_type(messages.Prepare, step.actions)
    assert not heard(plan.handle(messages.Prepared("i"), EPOCH + 11))


def test_an_instance_that_became_ready_while_missing_gets_no_work() -> None:
    """Absent once means no new work, also for one that was never given any."""
    plan = started()
    intent = one_intent(plan.request(1, EPOCH))
    plan.handle(messages.Increased(intent, 1), EPOCH)
    plan.handle(seen(i=State.RUNNING), EPOCH)
    plan.handle(seen(), EPOCH + 1)
    plan.handle(messages.Prepared("i"), EPOCH + 1)
    assert access(plan) is Access.COMING
    plan.handle(seen(i=State.RUNNING), EPOCH + 2)
    assert access(plan) is Access.AVAILABLE


# --- the cloud's view ---------------------------------------------------------------------------------------


def test_the_view_is_fetched_however_busy_the_plan_is() -> None:
    """A request every second must not put the next view off again and again."""
    plan = started(evolve(CONFIG, update_interval_when_expecting=2.0))
    updates = 0
    for second in range(1, 20):
        now = EPOCH + second
        step = plan.tick(now)
        updates += len(of_type(messages.Update, step.actions))
        if of_type(messages.Update, step.actions):
            plan.handle(seen(), now)
        plan.handle(messages.Increased(one_intent(plan.request(1, now)), 1), now)
    assert updates >= 5


def test_what_was_refused_stays_untouched() -> None:
    """A refused group is left as it is, also when the views go on until its manager has stopped."""
    plan = a_plan(evolve(CONFIG, preexisting=Preexisting.REFUSE))
    plan.tick(EPOCH)
    assert heard(plan.handle(seen(foreign=State.RUNNING), EPOCH)) == [messages.Refused(("foreign",))]
    step = plan.handle(seen(foreign=State.RUNNING), EPOCH + 60)
    assert not of_type(messages.Decrease, step.actions)


def test_missing_once_pauses_and_missing_twice_loses() -> None:
    """One bad read kills nothing, and is checked at once."""
    plan = started()
    with_ready(plan)
    plan.tick(EPOCH + 60)
    step = plan.handle(seen(), EPOCH + 61)
    assert access(plan) is Access.PAUSED
    assert of_type(messages.Update, step.actions)
    (gone, ended) = heard(plan.handle(seen(), EPOCH + 62))
    assert isinstance(gone, messages.Gone)
    assert gone.loss is not None
    assert gone.loss.kind is LossKind.VANISHED
    assert ended == messages.Ended("i")


def test_missing_once_with_a_dead_connection_loses() -> None:
    """Two witnesses are enough, in either order."""
    for died_first in (True, False):
        plan = started()
        with_ready(plan)
        died, missed = messages.ConnectionDied("i", "reset"), seen()
        first, second = (died, missed) if died_first else (missed, died)
        assert not of_type(messages.Gone, plan.handle(first, EPOCH + 61).events)
        assert of_type(messages.Gone, plan.handle(second, EPOCH + 61).events)


def test_a_dead_connection_asks_for_health_and_then_one_failure_is_enough() -> None:
    """A heartbeat follows at once; a failure means no new work, a success that all is well."""
    for passes in (True, False):
        plan = started()
        with_ready(plan)
        asked = plan.handle(messages.ConnectionDied("i", "reset"), EPOCH + 1).actions
        assert of_type(messages.Heartbeat, asked) == [messages.Heartbeat("default", "i")]
        assert not of_type(messages.Heartbeat, plan.handle(messages.ConnectionDied("i", "another"), EPOCH + 1).actions)
        answer = messages.HeartbeatPassed("i") if passes else messages.HeartbeatFailed("i", "no answer")
        plan.handle(answer, EPOCH + 2)
        assert access(plan) is (Access.AVAILABLE if passes else Access.CLOSING)
        if passes:
            assert not heard(plan.handle(messages.HeartbeatFailed("i", "no answer"), EPOCH + 60))


def test_a_lost_instance_that_comes_back_is_deleted() -> None:
    """It is never used again, also after a restart."""
    plan, records = started(), Records()
    with_ready(plan)
    for _ in range(2):
        records.apply(plan.handle(seen(), EPOCH + 60).writes)
    restarted = a_plan(CONFIG, recovered=records.kinds, now=EPOCH + 70)
    for each in (plan, restarted):
        each.request(1, EPOCH + 70)
        step = each.handle(seen(i=State.RUNNING), EPOCH + 71)
        assert of_type(messages.Decrease, step.actions) == [messages.Decrease("default", ("i",))]
        assert not of_type(messages.Prepare, step.actions)


def test_a_deletion_by_others_that_is_called_off_is_finished() -> None:
    """What somebody else began to delete before it was ready is never used, so it is deleted in the end."""
    plan = started()
    intent = one_intent(plan.request(1, EPOCH))
    plan.handle(messages.Increased(intent, 1), EPOCH)
    plan.handle(seen(i=State.DELETING), EPOCH)
    plan.handle(seen(i=State.RUNNING), EPOCH + 2)
    step = plan.tick(EPOCH + CONFIG.deletion_retry_interval)
    assert of_type(messages.Decrease, step.actions) == [messages.Decrease("default", ("i",))]


def test_what_was_not_asked_for_is_not_waited_for() -> None:
    """It waited for the journal: there is room for as many again at once, and no failure that is waited for."""
    plan = started(evolve(CONFIG, max_instances=2, scale_throttle=ScaleThrottle(limit=0.001, burst=2)))
    intent = one_intent(plan.request(2, EPOCH))
    plan.handle(messages.NotAsked(intent), EPOCH + 30)
    limits = plan.limits(EPOCH + 30)
    assert (limits.room, limits.tokens, limits.blocked_until) == (2, 2, None)
    assert one_intent(plan.request(2, EPOCH + 30)) != intent


def test_what_is_not_asked_again_may_come_all_the_same() -> None:
    """The first try may have created the instances: the intent counts until they appear, or it expires."""
    plan = started(evolve(CONFIG, max_instances=2), named=True)
    intent = one_intent(plan.request(2, EPOCH))
    plan.handle(messages.IncreaseFailed(intent, "timed out", outcome_known=False), EPOCH + 1)
    assert one_intent(plan.tick(EPOCH + 60)) == intent
    plan.handle(messages.NotAsked(intent), EPOCH + 61)
    assert (plan.outstanding, plan.limits(EPOCH + 61).room) == (2, 0)


# --- ceilings -----------------------------------------------------------------------------------------------


def test_a_refused_repeat_does_not_settle_what_became_of_the_first_try() -> None:
    """The first try may have created the instances: the intent counts until they appear, or it expires."""
    plan = started(evolve(CONFIG, max_instances=2), named=True)
    intent = one_intent(plan.request(2, EPOCH))
    plan.handle(messages.IncreaseFailed(intent, "timed out", outcome_known=False), EPOCH + 1)
    now = EPOCH + 60
    assert one_intent(plan.tick(now)) == intent
    plan.handle(messages.IncreaseFailed(intent, "rate limited", outcome_known=True), now)
    assert plan.outstanding == 2
    assert plan.limits(EPOCH + 800).room == 0


def test_a_success_that_was_retried_is_no_capacity() -> None:
    """A repeat that is answered counts its instances once, and what becomes ready does not end a wait that is due."""
    plan = started(evolve(CONFIG, max_instances=9), named=True)
    with_named(plan, "a", EPOCH)
    lost = one_intent(plan.request(2, EPOCH))
    plan.handle(messages.IncreaseFailed(lost, "no answer", outcome_known=False), EPOCH)
    first = plan.limits(EPOCH).blocked_until
    assert first is not None
    throttled = one_intent(plan.tick(first))
    assert throttled == lost
    plan.handle(messages.IncreaseFailed(lost, "slow down", outcome_known=False, retry_after=50.0), first)
    plan.handle(shows({"a": "earlier", "b": lost}), first + 1)
    plan.handle(messages.Prepared("b"), first + 2)
    assert plan.limits(first + 2).blocked_until == first + 50
    assert not of_type(messages.Increase, plan.tick(first + 49).actions)
    assert one_intent(plan.tick(first + 50)) == lost
    plan.handle(messages.Increased(lost, 2), first + 51)
    assert (plan.total, plan.outstanding) == (3, 1)


def test_a_repeat_waits_for_what_another_request_was_told() -> None:
    """The cloud has asked to be left alone, whichever request it was that heard of it."""
    record = IntentRecord(pool="default", count=1, accepted=None, matched=0, requested_at=EPOCH, asked_at=EPOCH)
    left = {INTENT: {"default/lost": record, "default/other": record}}
    plan = a_plan(CONFIG, named=True, recovered=left)
    plan.tick(EPOCH)
    plan.handle(seen(), EPOCH)
    asked = plan.tick(EPOCH + CONFIG.update_interval_when_expecting)
    lost, other = (each.intent for each in of_type(messages.Increase, asked.actions))
    plan.handle(messages.IncreaseFailed(lost, "no answer", outcome_known=False), EPOCH)
    plan.handle(messages.IncreaseFailed(other, "slow down", retry_after=40.0), EPOCH + 1)
    assert not of_type(messages.Increase, plan.tick(EPOCH + 40).actions)
    assert {each.intent for each in of_type(messages.Increase, plan.tick(EPOCH + 41).actions)} == {lost, other}


def test_what_was_asked_for_again_has_the_whole_time_to_appear() -> None:
    """An intent expires `intent_timeout` after it was last asked for: until then that may still bring instances."""
    config = evolve(CONFIG, max_instances=1, intent_timeout=100.0, backoff_initial=90.0, backoff_cap=90.0)
    plan = a_plan(config, named=True, random=lambda: 1.0)
    plan.tick(EPOCH)
    plan.handle(seen(), EPOCH)
    intent = one_intent(plan.request(1, EPOCH))
    plan.handle(messages.IncreaseFailed(intent, "timed out", outcome_known=False), EPOCH)
    assert one_intent(plan.tick(EPOCH + 90)) == intent
    plan.handle(messages.IncreaseFailed(intent, "timed out", outcome_known=False, retry_after=15), EPOCH + 91)
    plan.tick(EPOCH + 185)
    assert plan.outstanding == 1
    plan.tick(EPOCH + 195)
    assert plan.outstanding == 1  # the views that there were are older than that
    plan.handle(seen(), EPOCH + 196)
    assert plan.outstanding == 1  # so is this one: it was begun before
    plan.handle(seen(), EPOCH + 197)
    assert plan.outstanding == 1  # one bad view decides nothing
    plan.handle(seen(), EPOCH + 198)
    assert plan.outstanding == 0


def test_no_repeat_above_the_ceiling() -> None:
    """An increase is asked for again only once instances that the cloud added leave room for it, and then it is."""
    plan = started(evolve(CONFIG, max_instances=1), named=True)
    intent = one_intent(plan.request(1, EPOCH))
    plan.handle(messages.IncreaseFailed(intent, "timed out", outcome_known=False), EPOCH)
    plan.handle(shows({"foreign": "somebody else's"}), EPOCH + 1)
    assert plan.total == 2
    assert not of_type(messages.Increase, plan.tick(EPOCH + 60).actions)
    plan.handle(seen(), EPOCH + 61)
    plan.handle(seen(), EPOCH + 62)
    assert one_intent(plan.tick(EPOCH + 65)) == intent


@pytest.mark.parametrize("restarted", [False, True], ids=["same manager", "restarted since"])
def test_no_repeat_of_what_came_and_went(restarted: bool) -> None:  # noqa: FBT001  (a parameter)
    """Some clouds would make it once more: what is left of the request is waited for, and not asked for again."""
    config = evolve(CONFIG, max_instances=2)
    plan, journal = started(config, named=True), Records()
    asked = plan.request(2, EPOCH)
    intent = one_intent(asked)
    steps = [asked, plan.handle(messages.IncreaseFailed(intent, "timed out", outcome_known=False), EPOCH)]
    steps.append(plan.handle(shows({"i": intent}), EPOCH + 1))
    steps += [plan.handle(seen(), EPOCH + 2), plan.handle(seen(), EPOCH + 3)]
    assert not plan.instances
    if restarted:
        journal.apply(write for step in steps for write in step.writes)
        plan = a_plan(config, named=True, recovered=journal.kinds)
        plan.handle(seen(), EPOCH + 4)
    assert plan.outstanding == 1
    for after in range(5, 120):
        assert not of_type(messages.Increase, plan.tick(EPOCH + after).actions)


def test_what_nobody_can_be_asking_for_any_more_is_waited_for_no_longer_after_a_restart() -> None:
    """Nor is it, then, after another: instances that carry no intent were taken for those of whatever expires next."""
    config = evolve(CONFIG, intent_timeout=100.0)
    record = IntentRecord(pool="default", count=1, accepted=None, matched=0, requested_at=EPOCH, asked_at=EPOCH)
    journal = Records()
    journal.kinds[INTENT] = {"default/lost": record}
    given_up = set()
    for restarted in (EPOCH + 10, EPOCH + 50, EPOCH + 90):
        plan, now = a_plan(config, recovered=journal.kinds, now=restarted), restarted
        journal.apply(plan.tick(now).writes)
        while plan.outstanding:
            now += 1.0
            plan.tick(now)
            plan.handle(seen(), now)
        given_up.add(now)
    assert given_up == {EPOCH + 111}, "in two views after the time-out, which began with the first manager's life"


def stock_out(offering: str | None = None, **shown: str) -> messages.Updated:
    """A view of running instances of these offerings, and that there is no more of one."""
    problem = Problem(kind=ProblemKind.CAPACITY, message="none left", since=EPOCH, offering=offering)
    running = {id_: Observed(state=State.RUNNING, offering=each) for id_, each in shown.items()}
    return messages.Updated(Observation(running, (problem,)))


def asked_for(plan: Plan, count: int, now: float) -> str:
    """So many are on their way; returns the intent."""
    intent = one_intent(plan.request(count, now))
    plan.handle(messages.Increased(intent, count), now)
    return intent


def view(plan: Plan, fact: messages.Updated, now: float) -> Step:
    """A view is fetched at that time."""
    plan.tick(now)
    return plan.handle(fact, now)


def test_a_problem_that_lasts_is_a_failure_again_for_whoever_asked_in_spite_of_it() -> None:
    """Each request that meets it waits longer for the next; who asks for nothing is not held back any longer."""
    plan = started(withdraws=True)
    asked_for(plan, 1, EPOCH)
    view(plan, stock_out(), EPOCH + 2)
    first = plan.limits(EPOCH + 2).blocked_until
    assert first is not None
    view(plan, stock_out(), first + 1)
    second = plan.limits(first + 1).blocked_until
    assert second is not None
    assert second - (first + 1) > first - (EPOCH + 2)
    plan.withdraw(1)
    plan.handle(messages.Withdrawn(1, 1), second)
    view(plan, stock_out(), second + 10)
    assert plan.limits(second + 10).blocked_until is None


def test_a_problem_that_is_over_holds_nothing_back() -> None:
    """The first view without it lifts the back-off that it led to, and no other."""
    for offering in (None, "zone-a/small"):
        plan = started()
        asked_for(plan, 1, EPOCH)
        view(plan, stock_out(offering), EPOCH + 2)
        assert plan.limits(EPOCH + 2).blocked_why == "none left"
        view(plan, seen(), EPOCH + 4)
        assert plan.limits(EPOCH + 4).blocked_until is None
        refused = one_intent(plan.request(1, EPOCH + 4))
        plan.handle(messages.IncreaseFailed(refused, "quota"), EPOCH + 4)
        view(plan, stock_out(offering), EPOCH + 5)
        view(plan, seen(), EPOCH + 6)
        assert plan.limits(EPOCH + 6).blocked_why == "quota"


def test_a_problem_with_one_offering_leaves_the_others() -> None:
    """A group that has given something else may go on to, until requests stay unfilled."""
    plan = started()
    asked_for(plan, 2, EPOCH)
    view(plan, messages.Updated(Observation({"i": Observed(state=State.RUNNING, offering="dear")})), EPOCH + 2)
    plan.handle(messages.Prepared("i"), EPOCH + 2)
    view(plan, stock_out("cheap", i="dear"), EPOCH + 4)
    assert plan.limits(EPOCH + 4).blocked_until is None
    late = EPOCH + 4 + UNFILLED
    view(plan, stock_out("cheap", i="dear"), late)
    assert plan.limits(late).blocked_why == "none left"


def test_a_cloud_that_does_not_answer_is_asked_for_nothing_more() -> None:
    """Until it does: whoever needs more has to ask elsewhere."""
    plan = started()
    intent = one_intent(plan.request(1, EPOCH))
    assert plan.limits(EPOCH + UNANSWERED - 1).blocked_until is None
    assert plan.limits(EPOCH + UNANSWERED).blocked_until == inf
    plan.handle(messages.Increased(intent, 1), EPOCH + UNANSWERED)
    assert plan.limits(EPOCH + UNANSWERED).blocked_until is None


def test_what_expires_is_taken_back_first() -> None:
    """As long as that is under way it may still appear, and counts."""
    plan = started(evolve(CONFIG, intent_timeout=100.0), withdraws=True)
    asked_for(plan, 2, EPOCH)
    step = view(plan, seen(), EPOCH + 100)
    assert of_type(messages.Withdraw, step.actions) == [messages.Withdraw("default", 2)]
    plan.handle(seen(), EPOCH + 101)
    assert plan.outstanding == 2
    plan.handle(messages.Withdrawn(2, 1), EPOCH + 102)
    assert plan.outstanding == 1
    plan.handle(seen(), EPOCH + 103)
    assert plan.outstanding == 0


def test_only_what_cannot_be_filled_is_stranded() -> None:
    """Requests on their way are not, as long as nothing is wrong."""
    plan = started(withdraws=True)
    asked_for(plan, 2, EPOCH)
    assert plan.stranded(EPOCH + 1) == 0
    view(plan, stock_out(), EPOCH + 2)
    assert plan.stranded(EPOCH + 2) == 2


def test_withdrawing_spares_what_was_asked_for_later() -> None:
    """Only requests that were open when the withdrawal was asked for can have been taken back by it."""
    plan = started(named=True, withdraws=True)
    first = one_intent(plan.request(1, EPOCH))
    plan.handle(messages.Increased(first, 1), EPOCH)
    assert plan.withdraw(1).actions == [messages.Withdraw("default", 1)]
    second = one_intent(plan.request(1, EPOCH + 1))
    plan.handle(messages.Increased(second, 1), EPOCH + 1)
    plan.handle(messages.Withdrawn(1, 1), EPOCH + 2)
    assert [intent.id for intent in plan.intents] == [second]


def test_what_was_not_taken_back_is_expected_whoever_asked_for_it() -> None:
    """The cloud took the newer request back, the plan gave up the older: its instance comes in the other's place."""
    plan = started(named=True, withdraws=True)
    older = asked_for(plan, 1, EPOCH)
    newer = asked_for(plan, 1, EPOCH + 1)
    plan.withdraw(1)
    plan.handle(messages.Withdrawn(1, 1), EPOCH + 2)
    assert [intent.id for intent in plan.intents] == [newer]
    step = plan.handle(shows({"i": older}), EPOCH + 3)
    assert not of_type(messages.Decrease, step.actions)
    assert plan.outstanding == 0
    assert of_type(messages.Decrease, plan.handle(shows({"i": older, "j": newer}), EPOCH + 4).actions)


def unanswered(plan: Plan, count: int) -> str:
    """A request that nobody knows the outcome of; its repetition is due in time."""
    intent = one_intent(plan.request(count, EPOCH))
    plan.handle(messages.IncreaseFailed(intent, "no answer", outcome_known=False), EPOCH)
    return intent


def test_what_is_being_taken_back_is_not_asked_for_again_meanwhile() -> None:
    """Else the answer to the repetition would count in full what the cloud has just taken back in part."""
    plan = started(named=True, withdraws=True)
    intent = unanswered(plan, 2)
    plan.withdraw(1)
    assert not of_type(messages.Increase, plan.tick(EPOCH + 60).actions)
    plan.handle(messages.Withdrawn(1, 0), EPOCH + 60)
    assert one_intent(plan.tick(EPOCH + 120)) == intent


def test_what_was_taken_back_in_part_is_not_asked_for_again() -> None:
    """A request is repeated as it was, and might bring what does not count any more: there may be no room for it."""
    plan = started(named=True, withdraws=True)
    unanswered(plan, 2)
    plan.withdraw(1)
    plan.handle(messages.Withdrawn(1, 1), EPOCH)
    assert not of_type(messages.Increase, plan.tick(EPOCH + 60).actions)
    assert plan.outstanding == 1


def test_withdrawing_gives_up_what_was_asked_for_first() -> None:
    """Nobody knows whose requests were taken back, so what is left is waited for as long as any of them could need."""
    plan = started(named=True, withdraws=True)
    again = one_intent(plan.request(1, EPOCH))
    plan.handle(messages.IncreaseFailed(again, "no answer", outcome_known=False), EPOCH + 2)
    once = one_intent(plan.request(1, EPOCH + 10))
    plan.handle(messages.Increased(once, 1), EPOCH + 10)
    assert one_intent(plan.tick(EPOCH + 60)) == again
    plan.handle(messages.Increased(again, 1), EPOCH + 61)
    plan.withdraw(1)
    plan.handle(messages.Withdrawn(1, 1), EPOCH + 62)
    assert [intent.id for intent in plan.intents] == [again]


def suspecting() -> Plan:
    """A plan that asks for a heartbeat before work, and whose instance failed the last one."""
    plan = started(evolve(CONFIG, heartbeat_on_acquire=True))
    with_ready(plan)
    assert plan.ask_heartbeat("i").actions == [messages.Heartbeat("default", "i")]
    assert not plan.ask_heartbeat("i").actions
    assert plan.handle(messages.HeartbeatFailed("i", "no answer"), EPOCH + 1).events == [messages.Changed("i")]
    assert plan.instances["i"].availability == Availability(Access.PAUSED, "its last heartbeat failed")
    return plan


def test_a_view_does_not_clear_an_instance_of_suspicion() -> None:
    """It was missing and is there again: that is no sign of life, only a heartbeat is."""
    plan = suspecting()
    assert plan.handle(seen(), EPOCH + 2).events == [messages.Changed("i")]
    missing = Availability(Access.PAUSED, "the cloud's last view did not show it", briefly=True)
    assert plan.instances["i"].availability == missing
    assert plan.handle(seen(i=State.RUNNING), EPOCH + 3).events == [messages.Changed("i")]
    assert plan.instances["i"].availability == Availability(Access.PAUSED, "its last heartbeat failed")
    alive = plan.handle(messages.HeartbeatPassed("i"), EPOCH + 4)
    assert alive.events == [messages.Alive("i"), messages.Changed("i")]
    assert access(plan) is Access.AVAILABLE


def test_a_sign_of_life_does_not_bring_back_what_the_view_does_not_show() -> None:
    """It is not resumed before both are well; a heartbeat that fails meanwhile is no news."""
    plan = suspecting()
    plan.handle(seen(), EPOCH + 2)
    assert heard(plan.handle(messages.HeartbeatPassed("i"), EPOCH + 3)) == [messages.Alive("i")]
    assert access(plan) is Access.PAUSED
    plan.ask_heartbeat("i")
    before = plan.instances["i"].availability
    assert heard(plan.handle(messages.HeartbeatFailed("i", "no answer"), EPOCH + 4)) == []
    assert plan.instances["i"].availability == before
    plan.ask_heartbeat("i")
    assert heard(plan.handle(messages.HeartbeatPassed("i"), EPOCH + 5)) == [messages.Alive("i")]
    assert access(plan) is Access.PAUSED
    assert plan.handle(seen(i=State.RUNNING), EPOCH + 6).events == [messages.Changed("i")]
    assert access(plan) is Access.AVAILABLE


SHOWN, DELETED, OMITTED = {"i": State.RUNNING}, {"i": State.DELETED}, dict[str, State]()


@pytest.mark.parametrize("preexisting", [Preexisting.REMOVE, Preexisting.ADOPT])
@pytest.mark.parametrize(
    ("views", "counts"),
    [
        ([SHOWN], True),
        ([DELETED, SHOWN], True),
        ([OMITTED, SHOWN], True),
        ([OMITTED, DELETED, OMITTED, SHOWN], True),
        ([OMITTED, OMITTED, SHOWN], False),
    ],
)
def test_a_notice_that_is_overdue_when_a_view_shows_its_instance_counts(
    preexisting: Preexisting, views: list[dict[str, State]], *, counts: bool
) -> None:
    """However long no view comes; two in a row that do not show it, later than a lost one is remembered, forget it.

    One is not enough, as it is not for an instance that is known, and neither is one that shows it as deleted.
    """
    late = EPOCH + 11 + max(CONFIG.intent_timeout, REMEMBER_LOST)
    plan = started(evolve(CONFIG, preexisting=preexisting))
    plan.handle(messages.Noticed("i", EPOCH + 10, NoticeKind.REBALANCE), EPOCH)
    plan.handle(messages.Noticed("i", EPOCH + 11, NoticeKind.REBALANCE), EPOCH)
    plan.tick(late)
    plan.handle(messages.Increased(one_intent(plan.request(1, late)), 1), late)
    steps = [view(plan, seen(**shown), late) for shown in views]
    assert bool(of_type(messages.Decrease, steps[-1].actions)) == counts


@pytest.mark.parametrize("intent_timeout", [CONFIG.intent_timeout, 2 * REMEMBER_LOST])
def test_a_notice_is_kept_as_long_as_a_lost_instance_and_a_request(intent_timeout: float) -> None:
    """However many views do not show its instance meanwhile: that may be on its way, or come back."""
    plan = started(evolve(CONFIG, intent_timeout=intent_timeout))
    plan.handle(messages.Noticed("i", EPOCH + 10, NoticeKind.REBALANCE), EPOCH)
    late = EPOCH + 10 + max(intent_timeout, REMEMBER_LOST)
    for at in (EPOCH + 11, EPOCH + 12, late - 1, late):
        plan.tick(at)
        view(plan, seen(), at)
    plan.handle(messages.Increased(one_intent(plan.request(1, late)), 1), late)
    assert of_type(messages.Decrease, view(plan, seen(**SHOWN), late).actions)


def test_notices_of_any_number_of_other_machines_are_not_all_kept() -> None:
    """Only those of the last instances that had one; which those are, the last notice of each says."""
    notices = EarlyNotices(REMEMBER_LOST)
    for number in [*range(MOST), 0, MOST]:
        notices.keep(messages.Noticed(f"i-{number}", EPOCH + number, NoticeKind.PREEMPTION), EPOCH)
    kept = [notices.take(f"i-{number}") is not None for number in range(MOST + 1)]
    assert kept == [True, False, *[True] * (MOST - 1)]


def test_the_age_counts_from_what_the_cloud_says_as_soon_as_it_does() -> None:
    """Until then from the first sight; a view that dates the instance moves the time."""
    plan = started(evolve(CONFIG, max_instance_age=100.0))
    with_ready(plan, now=EPOCH + 10)
    dated = Observed(state=State.RUNNING, created_at=EPOCH - 40)
    assert heard(plan.handle(messages.Updated(Observation({"i": dated})), EPOCH + 20)) == []
    assert messages.Changed("i") not in plan.tick(EPOCH + 59).events
    assert access(plan) is Access.AVAILABLE
    assert plan.tick(EPOCH + 60).events == [messages.Changed("i")]
    assert plan.instances["i"].availability == Availability(Access.CLOSING, TOO_OLD)
    assert messages.Changed("i") not in plan.tick(EPOCH + 200).events


def test_the_throttle_paces_requests() -> None:
    """Half an instance a second: the second one has to wait two seconds."""
    plan = started(evolve(CONFIG, scale_throttle=ScaleThrottle(limit=0.5, burst=1)))
    assert plan.limits(EPOCH).tokens == 1
    plan.request(5, EPOCH)
    assert plan.outstanding == 1
    assert plan.limits(EPOCH + 1).tokens == 0
    assert plan.limits(EPOCH + 1).tokens_at == EPOCH + 2
    plan.request(5, EPOCH + 2)
    assert plan.outstanding == 2


# --- what is asked for while a call is under way ------------------------------------------------------------


def test_what_is_wanted_while_the_cloud_is_asked_goes_into_the_next_call() -> None:
    """One call for all of it, once there is an answer; it counts against the ceiling all the while."""
    plan = started(evolve(CONFIG, max_instances=6))
    first = one_intent(plan.request(1, EPOCH))
    for _ in range(3):
        assert not plan.request(1, EPOCH + 1).actions
    assert (plan.outstanding, plan.queued, plan.limits(EPOCH + 1).room) == (4, 3, 2)
    assert one_intent(plan.handle(messages.Increased(first, 1), EPOCH + 2)) != first
    assert [intent.count for intent in plan.intents] == [1, 3]
    assert plan.queued == 0


def test_what_is_wanted_is_forgotten_if_the_call_under_way_fails() -> None:
    """Whoever still wants it once the cloud may be asked again asks again, and has lost no tokens."""
    plan = started(evolve(CONFIG, scale_throttle=ScaleThrottle(limit=0.001, burst=4)))
    first = one_intent(plan.request(1, EPOCH))
    plan.request(3, EPOCH)
    assert plan.limits(EPOCH).tokens == 0
    assert not of_type(messages.Increase, plan.handle(messages.IncreaseFailed(first, "none left"), EPOCH).actions)
    assert (plan.outstanding, plan.limits(EPOCH).tokens) == (0, 3)


def test_what_waits_for_a_call_is_taken_back_without_one() -> None:
    """Also where requests cannot be withdrawn."""
    plan = started()
    first = one_intent(plan.request(1, EPOCH))
    plan.request(3, EPOCH)
    assert not plan.withdraw(2).actions
    assert plan.outstanding == 2
    plan.handle(messages.Increased(first, 1), EPOCH + 1)
    assert [intent.count for intent in plan.intents] == [1, 1]


def test_deletions_that_fall_due_while_the_cloud_is_asked_go_into_the_next_call() -> None:
    """In one call, once there is an answer, or none for long; gone ones are left out."""
    plan = started(evolve(CONFIG, preexisting=Preexisting.ADOPT))
    plan.handle(seen(**dict.fromkeys("abcd", State.RUNNING)), EPOCH)
    assert plan.remove({"a": "not needed"}, EPOCH).actions[-1] == messages.Decrease("default", ("a",))
    for each in "bcd":
        assert not of_type(messages.Decrease, plan.remove({each: "not needed"}, EPOCH + 1).actions)
    assert plan.agenda.deletes_at(EPOCH + 1) == EPOCH + UNANSWERED
    plan.handle(seen(a=State.RUNNING, c=State.RUNNING, d=State.RUNNING, b=State.DELETED), EPOCH + 2)
    assert messages.Decrease("default", ("c", "d")) in [action for _, action in plan.agenda.actions()]
    step = plan.handle(messages.Decreased(("a",), ("a",)), EPOCH + 3)
    assert of_type(messages.Decrease, step.actions) == [messages.Decrease("default", ("c", "d"))]
    plan.handle(messages.DecreaseFailed(("c", "d"), "timed out"), EPOCH + 4)
    assert plan.agenda.deletes_at(EPOCH + 5) == EPOCH + 5
    assert of_type(messages.Decrease, plan.tick(EPOCH + 100).actions) == [messages.Decrease("default", ("a", "c", "d"))]


def test_deletions_wait_for_no_answer_for_ever() -> None:
    """Of a call that hangs nothing is known; that others are not deleted would cost money."""
    plan = started(evolve(CONFIG, preexisting=Preexisting.ADOPT))
    plan.handle(seen(**dict.fromkeys("ab", State.RUNNING)), EPOCH)
    plan.remove({"a": "not needed"}, EPOCH)
    plan.remove({"b": "not needed"}, EPOCH + 1)
    assert not of_type(messages.Decrease, plan.tick(EPOCH + UNANSWERED - 1).actions)
    assert of_type(messages.Decrease, plan.tick(EPOCH + UNANSWERED).actions) == [messages.Decrease("default", ("b",))]


# --- what views cost ----------------------------------------------------------------------------------------


@given(st.floats(0.0, 800.0), st.booleans())
def test_the_interval_between_views_grows_with_what_a_view_costs(cost: float, expecting: bool) -> None:  # noqa: FBT001  (drawn)
    """At least so many times as long, but no longer than the usual interval, even after a sleep of minutes."""
    plan = started()
    if expecting:
        plan.handle(messages.Increased(one_intent(plan.request(1, EPOCH)), 1), EPOCH)
    begun = plan.wake_at
    assert begun is not None
    assert messages.Update("default") in plan.tick(begun).actions
    now = begun + cost
    plan.handle(seen(), now)
    interval = CONFIG.update_interval_when_expecting if expecting else CONFIG.update_interval
    rest = min(REST * cost, CONFIG.update_interval)
    assert plan.wake_at is not None
    assert plan.wake_at - now == pytest.approx(max(interval, rest), abs=1e-3)
    if not expecting:
        plan.handle(messages.Increased(one_intent(plan.request(1, now)), 1), now)
        soon = max(CONFIG.update_interval_when_expecting, rest)
        assert plan.wake_at - now == pytest.approx(soon, abs=1e-3)


def test_a_view_that_failed_or_is_odd_is_fetched_again_as_soon_as_ever() -> None:
    """That the cloud did not answer is no cost, and what one view does not show another has to."""
    plan = started()
    with_ready(plan)
    (begun,) = [at for at, action in plan.agenda.actions() if action == messages.Update("default")]
    plan.tick(begun)
    plan.handle(messages.UpdateFailed("timed out"), begun + 120)
    (begun,) = [at for at, action in plan.agenda.actions() if action == messages.Update("default")]
    plan.tick(begun)
    assert messages.Update("default") in plan.handle(seen(), begun + 30).actions
