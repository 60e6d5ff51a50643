"""The plan, one rule at a time; what holds over whole lives is in `test_plan_machine`."""

from math import inf

from attrs import evolve

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
from fleeting.core import Plan, Step, messages
from fleeting.core._plan import UNANSWERED, UNFILLED
from fleeting.events import LossKind
from tests.strategies import EPOCH, NO_THROTTLE, Records, a_plan, of_type, one_intent, seen, shows

CONFIG = PlanConfig(scale_throttle=NO_THROTTLE, preexisting=Preexisting.REMOVE)


def started(config: PlanConfig = CONFIG, *, named: bool = False, withdraws: bool = False) -> Plan:
    """A plan that has seen its empty group once."""
    plan = a_plan(config, named=named, withdraws=withdraws)
    plan.tick(EPOCH)
    plan.handle(seen(), EPOCH)
    return plan


def with_ready(plan: Plan, instance: str = "i", now: float = EPOCH) -> None:
    """Bring the instance up, from the request to `Ready`."""
    intent = one_intent(plan.request(1, now))
    plan.handle(messages.Increased(intent, 1), now)
    plan.handle(seen(**{instance: State.RUNNING}), now)
    plan.handle(messages.Prepared(instance), now)


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
    assert plan.handle(messages.Prepared("i"), EPOCH + 2).events == [messages.Ready("i")]
    assert (plan.total, plan.coming) == (1, 0)


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
    assert not plan.handle(messages.Prepared("i"), EPOCH + 11).events


def test_an_instance_that_became_ready_while_missing_gets_no_work() -> None:
    """Absent once means no new work: whoever hears `Ready` would hand out its slots before hearing `Paused`."""
    plan = started()
    intent = one_intent(plan.request(1, EPOCH))
    plan.handle(messages.Increased(intent, 1), EPOCH)
    plan.handle(seen(i=State.RUNNING), EPOCH)
    plan.handle(seen(), EPOCH + 1)
    assert not of_type(messages.Ready, plan.handle(messages.Prepared("i"), EPOCH + 1).events)
    assert of_type(messages.Ready, plan.handle(seen(i=State.RUNNING), EPOCH + 2).events)


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
    assert plan.handle(seen(foreign=State.RUNNING), EPOCH).events == [messages.Refused(("foreign",))]
    step = plan.handle(seen(foreign=State.RUNNING), EPOCH + 60)
    assert not of_type(messages.Decrease, step.actions)


def test_missing_once_pauses_and_missing_twice_loses() -> None:
    """One bad read kills nothing, and is checked at once."""
    plan = started()
    with_ready(plan)
    plan.tick(EPOCH + 60)
    step = plan.handle(seen(), EPOCH + 61)
    assert of_type(messages.Paused, step.events)
    assert of_type(messages.Update, step.actions)
    (gone, ended) = plan.handle(seen(), EPOCH + 62).events
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
        assert bool(of_type(messages.Unhealthy, plan.handle(answer, EPOCH + 2).events)) != passes
        if passes:
            assert not plan.handle(messages.HeartbeatFailed("i", "no answer"), EPOCH + 60).events


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
    plan = started(named=True)
    lost, other = (one_intent(plan.request(1, EPOCH)) for _ in range(2))
    plan.handle(messages.IncreaseFailed(lost, "no answer", outcome_known=False), EPOCH)
    plan.handle(messages.IncreaseFailed(other, "slow down", retry_after=40.0), EPOCH + 1)
    assert not of_type(messages.Increase, plan.tick(EPOCH + 40).actions)
    assert one_intent(plan.tick(EPOCH + 41)) == lost


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


def test_withdrawing_gives_up_what_was_asked_for_first() -> None:
    """Nobody knows whose requests were taken back, so what is left is waited for as long as any of them could need."""
    plan = started(named=True, withdraws=True)
    again = one_intent(plan.request(1, EPOCH))
    once = one_intent(plan.request(1, EPOCH + 1))
    plan.handle(messages.Increased(once, 1), EPOCH + 1)
    plan.handle(messages.IncreaseFailed(again, "no answer", outcome_known=False), EPOCH + 2)
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
    assert plan.ask_heartbeat("i").actions == []
    (paused,) = plan.handle(messages.HeartbeatFailed("i", "no answer"), EPOCH + 1).events
    assert paused == messages.Paused("i", "its last heartbeat failed", briefly=False)
    return plan


def test_a_view_does_not_clear_an_instance_of_suspicion() -> None:
    """It was missing and is there again: that is no sign of life, only a heartbeat is."""
    plan = suspecting()
    (missing,) = plan.handle(seen(), EPOCH + 2).events
    assert missing == messages.Paused("i", "the cloud's last view did not show it", briefly=True)
    (again,) = plan.handle(seen(i=State.RUNNING), EPOCH + 3).events
    assert again == messages.Paused("i", "its last heartbeat failed", briefly=False)
    assert plan.handle(messages.HeartbeatPassed("i"), EPOCH + 4).events == [messages.Alive("i"), messages.Resumed("i")]


def test_a_sign_of_life_does_not_bring_back_what_the_view_does_not_show() -> None:
    """It is not resumed before both are well; a heartbeat that fails meanwhile is no news."""
    plan = suspecting()
    plan.handle(seen(), EPOCH + 2)
    assert plan.handle(messages.HeartbeatPassed("i"), EPOCH + 3).events == [messages.Alive("i")]
    plan.ask_heartbeat("i")
    assert plan.handle(messages.HeartbeatFailed("i", "no answer"), EPOCH + 4).events == []
    plan.ask_heartbeat("i")
    assert plan.handle(messages.HeartbeatPassed("i"), EPOCH + 5).events == [messages.Alive("i")]
    assert plan.handle(seen(i=State.RUNNING), EPOCH + 6).events == [messages.Resumed("i")]


def test_a_notice_that_is_overdue_when_a_view_shows_its_instance_counts() -> None:
    """However long no view comes; only one that does not show it, later than any request is waited for, forgets it."""
    late = EPOCH + 11 + CONFIG.intent_timeout
    for config in (CONFIG, evolve(CONFIG, preexisting=Preexisting.ADOPT)):
        for views, counts in ((["i"], True), (["", "i"], False)):
            plan = started(config)
            plan.handle(messages.Noticed("i", EPOCH + 10, NoticeKind.REBALANCE), EPOCH)
            plan.handle(messages.Noticed("i", EPOCH + 11, NoticeKind.REBALANCE), EPOCH)
            plan.tick(late)
            plan.handle(messages.Increased(one_intent(plan.request(1, late)), 1), late)
            steps = [view(plan, seen(**{shown: State.RUNNING} if shown else {}), late) for shown in views]
            assert bool(of_type(messages.Decrease, steps[-1].actions)) == counts


def test_the_age_counts_from_what_the_cloud_says_as_soon_as_it_does() -> None:
    """Until then from the first sight; a view that dates the instance moves the time."""
    plan = started(evolve(CONFIG, max_instance_age=100.0))
    with_ready(plan, now=EPOCH + 10)
    dated = Observed(state=State.RUNNING, created_at=EPOCH - 40)
    assert plan.handle(messages.Updated(Observation({"i": dated})), EPOCH + 20).events == []
    assert plan.tick(EPOCH + 59).events == []
    assert plan.tick(EPOCH + 60).events == [messages.Aged("i")]
    assert plan.tick(EPOCH + 200).events == []


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
