"""The contract of an instance group, as checks that anybody's group can be put through."""

from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from traceback import extract_tb

import anyio

from fleeting.testing._checks._at_once import (
    check_cancelling_one_call_spares_the_others,
    check_changes_at_once_do_not_mix,
    check_named_create_is_idempotent_at_once,
    check_reads_at_once_do_not_mix,
    check_shutdown_during_calls_ends,
)
from fleeting.testing._checks._cancelling import (
    check_cancelled_calls_change_nothing_else,
    check_cancelled_increase_leaves_no_trace,
)
from fleeting.testing._checks._capabilities import (
    check_notice_probe_is_a_command,
    check_notice_probe_prints_notices,
    check_notices_come,
    check_withdraw_spares_instances,
    check_withdraw_takes_requests_back,
)
from fleeting.testing._checks._closing import (
    check_cancelled_init_takes_nothing,
    check_shutdown_leaves_instances,
    check_shutdown_releases_what_was_taken,
)
from fleeting.testing._checks._failing import (
    check_failures_are_provider_errors,
    check_quota_is_reported,
    check_refused_credentials_are_auth_failed,
    check_silence_ends_in_time,
    check_stock_out_is_reported,
    check_throttling_is_rate_limited,
)
from fleeting.testing._checks._growing import (
    check_ids_are_never_reused,
    check_increase_brings_what_it_accepted,
    check_increase_stops_at_max_size,
    check_lost_answer_is_an_unknown_outcome,
    check_named_create_carries_the_intent,
    check_named_create_is_idempotent,
    check_named_create_outlives_its_manager,
    check_named_create_settles_a_lost_answer,
    check_partial_success_is_reported,
)
from fleeting.testing._checks._handing import (
    check_arguments_are_left_alone,
    check_returned_values_are_the_callers,
    check_views_do_not_change_later,
)
from fleeting.testing._checks._instance import (
    check_connect_info_is_complete,
    check_connect_info_knows_what_is_gone,
    check_heartbeat_notices_death,
    check_heartbeat_notices_failure,
    check_heartbeat_reports_health,
)
from fleeting.testing._checks._loop import check_nothing_blocks_the_event_loop
from fleeting.testing._checks._loops import (
    check_groups_work_in_any_event_loop,
)
from fleeting.testing._checks._observing import check_observing_changes_nothing, check_observing_sends_no_change
from fleeting.testing._checks._opening import (
    check_claimed_capabilities_have_their_methods,
    check_identity_is_the_resource,
    check_init_reports_what_the_group_is,
)
from fleeting.testing._checks._owning import (
    check_expired_owner_mark_is_taken_over,
    check_owner_mark_is_renewed,
    check_owner_mark_keeps_others_out,
    check_owner_marks_are_shown,
)
from fleeting.testing._checks._resources import (
    check_calls_release_what_they_took,
    check_openings_add_nothing_up,
    check_process_is_left_as_it_was,
)
from fleeting.testing._checks._returning import (
    check_problems_end,
    check_states_change_back,
)
from fleeting.testing._checks._secrets import check_connect_info_hides_secrets, check_secrets_are_shown_to_nobody
from fleeting.testing._checks._shrinking import (
    check_decrease_accepts_what_is_gone,
    check_decrease_goes_on_past_what_is_gone,
    check_decrease_removes_only_those_named,
    check_decrease_removes_what_does_not_run,
    check_refused_deletion_is_reported,
)
from fleeting.testing._checks._sizes import (
    check_empty_page_is_not_the_last,
    check_every_page_is_known_to_every_call,
    check_instance_on_two_pages_is_one,
    check_large_numbers_are_handled,
    check_view_follows_a_changing_crowd,
)
from fleeting.testing._checks._suspending import (
    check_resuming_without_room_is_reported,
    check_suspended_instances_can_be_deleted,
    check_suspended_instances_come_back,
    check_suspending_again_is_accepted,
    check_suspending_goes_on_past_what_is_gone,
)
from fleeting.testing._checks._troubles import (
    check_late_answer_is_an_unknown_outcome,
    check_malformed_answers_are_provider_errors,
    check_refusals_are_reported_by_every_call,
    check_throttled_calls_stop_asking,
    check_trouble_amid_a_call_is_reported,
    check_troubles_pass,
    check_unreachable_cloud_is_a_provider_error,
)
from fleeting.testing._checks._values import (
    check_advice_of_the_cloud_is_kept,
    check_identity_ignores_spelling,
    check_max_size_is_the_ceiling,
    check_times_are_in_seconds,
    check_two_instances_are_distinguished,
    check_two_resources_do_not_mix,
    check_values_are_of_their_types,
)
from fleeting.testing._checks._view import (
    check_creation_time_is_in_seconds,
    check_every_vendor_state_is_mapped,
    check_failed_update_is_an_error,
    check_first_view_is_complete,
    check_pages_that_loop_are_an_error,
    check_unknown_state_is_not_swallowed,
    check_update_notices_death,
    check_view_has_every_page,
    check_view_is_stable,
    check_view_is_whole_or_an_error,
)
from fleeting.testing._harness import Harness, NotApplicable, Violation
from fleeting.testing._holdings import thawed_after

Check = Callable[[Harness], Awaitable[None]]

CALLS_AT_MOST = 20
"""How many waits of the harness's deadline or patience one check can have, in round numbers."""

CONTRACT = "docs/reference/plugin-contract.md"
"""The page on which every check has its clause."""

CHECKS: tuple[Check, ...] = (
    check_init_reports_what_the_group_is,
    check_claimed_capabilities_have_their_methods,
    check_identity_is_the_resource,
    check_identity_ignores_spelling,
    check_two_resources_do_not_mix,
    check_max_size_is_the_ceiling,
    check_values_are_of_their_types,
    check_first_view_is_complete,
    check_view_is_stable,
    check_view_has_every_page,
    check_view_is_whole_or_an_error,
    check_pages_that_loop_are_an_error,
    check_empty_page_is_not_the_last,
    check_instance_on_two_pages_is_one,
    check_view_follows_a_changing_crowd,
    check_failed_update_is_an_error,
    check_every_vendor_state_is_mapped,
    check_unknown_state_is_not_swallowed,
    check_creation_time_is_in_seconds,
    check_times_are_in_seconds,
    check_states_change_back,
    check_update_notices_death,
    check_increase_brings_what_it_accepted,
    check_increase_stops_at_max_size,
    check_partial_success_is_reported,
    check_lost_answer_is_an_unknown_outcome,
    check_ids_are_never_reused,
    check_named_create_is_idempotent,
    check_named_create_carries_the_intent,
    check_named_create_settles_a_lost_answer,
    check_named_create_outlives_its_manager,
    check_named_create_is_idempotent_at_once,
    check_decrease_removes_only_those_named,
    check_decrease_accepts_what_is_gone,
    check_decrease_goes_on_past_what_is_gone,
    check_decrease_removes_what_does_not_run,
    check_refused_deletion_is_reported,
    check_large_numbers_are_handled,
    check_every_page_is_known_to_every_call,
    check_connect_info_is_complete,
    check_connect_info_knows_what_is_gone,
    check_connect_info_hides_secrets,
    check_two_instances_are_distinguished,
    check_heartbeat_reports_health,
    check_heartbeat_notices_death,
    check_heartbeat_notices_failure,
    check_failures_are_provider_errors,
    check_refused_credentials_are_auth_failed,
    check_throttling_is_rate_limited,
    check_advice_of_the_cloud_is_kept,
    check_throttled_calls_stop_asking,
    check_refusals_are_reported_by_every_call,
    check_unreachable_cloud_is_a_provider_error,
    check_malformed_answers_are_provider_errors,
    check_trouble_amid_a_call_is_reported,
    check_troubles_pass,
    check_stock_out_is_reported,
    check_quota_is_reported,
    check_problems_end,
    check_silence_ends_in_time,
    check_late_answer_is_an_unknown_outcome,
    check_reads_at_once_do_not_mix,
    check_changes_at_once_do_not_mix,
    check_cancelling_one_call_spares_the_others,
    check_cancelled_increase_leaves_no_trace,
    check_cancelled_calls_change_nothing_else,
    check_cancelled_init_takes_nothing,
    check_nothing_blocks_the_event_loop,
    check_groups_work_in_any_event_loop,
    check_views_do_not_change_later,
    check_returned_values_are_the_callers,
    check_arguments_are_left_alone,
    check_secrets_are_shown_to_nobody,
    check_withdraw_spares_instances,
    check_withdraw_takes_requests_back,
    check_notices_come,
    check_notice_probe_is_a_command,
    check_notice_probe_prints_notices,
    check_suspended_instances_come_back,
    check_suspending_again_is_accepted,
    check_suspending_goes_on_past_what_is_gone,
    check_suspended_instances_can_be_deleted,
    check_resuming_without_room_is_reported,
    check_owner_mark_keeps_others_out,
    check_owner_mark_is_renewed,
    check_expired_owner_mark_is_taken_over,
    check_owner_marks_are_shown,
    check_observing_changes_nothing,
    check_observing_sends_no_change,
    check_shutdown_leaves_instances,
    check_shutdown_releases_what_was_taken,
    check_shutdown_during_calls_ends,
    check_calls_release_what_they_took,
    check_openings_add_nothing_up,
    check_process_is_left_as_it_was,
)
"""Every check, in the order in which a new group is best made to pass them."""


def name_of(check: Check) -> str:
    """Name it in words, such as ``view_has_every_page``."""
    name: str = check.__name__
    return name.removeprefix("check_")


def anchor_of(check: Check) -> str:
    """Say where its clause stands."""
    return f"{CONTRACT}#{name_of(check).replace('_', '-')}"


async def judge(check: Check, harness: Harness) -> None:
    """Put a group through a check.

    Raises:
        Violation: The group does not keep the clause; says where that stands.
        NotApplicable: The clause does not concern the group.
        NotChecked: The harness lacks something; says what.
    """
    limit = CALLS_AT_MOST * max(harness.deadline, harness.patience)
    try:
        with thawed_after(), anyio.fail_after(limit):
            await check(harness)
    except TimeoutError as error:
        raise _at(check, Violation("every call ends", f"after {limit:g} s the check had not ended")) from error
    except Violation as violation:
        raise _at(check, violation)  # noqa: B904  (it is the same one)
    except NotApplicable:
        raise
    except Exception as error:
        clause = "no call fails while nothing is wrong with the cloud"
        raise _at(check, Violation(clause, f"{_call_in(error)} raised {error!r}")) from error


def _call_in(error: Exception) -> str:
    """The call that raised it: the first function outside of the suite that the suite called."""
    suite = str(Path(__file__).parent)
    frames = extract_tb(error.__traceback__)
    calls = [
        frame.name
        for before, frame in pairwise(frames)
        if before.filename.startswith(suite) and not frame.filename.startswith(suite)
    ]
    return calls[-1] if calls else "the check"


def _at(check: Check, violation: Violation) -> Violation:
    violation.more = anchor_of(check)
    return violation
