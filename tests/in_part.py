"""What the suite, which people wait for, has only in part.

`IN_PART`: ``nox -s full`` runs it in full: the same faults and assertions, more often. These tests ask for the fixture
``full``, which says whether the whole length is wanted, as it is with ``--full``. `LATER` and `SAMPLED`: ``nox -s
later`` runs what the suite leaves out, so continuous integration runs each test once.
"""

import pytest

IN_PART = (
    "tests/chaos/test_crash_points.py",
    "tests/chaos/test_served.py",
    "tests/e2e/test_crash.py",
    "tests/e2e/test_gcp.py",
    "tests/e2e/test_gitlab_peers.py",
    "tests/e2e/test_outliving.py",
    "tests/e2e/test_page.py",
    "tests/e2e/test_quickstart.py",
    "tests/e2e/test_secrets.py",
    "tests/e2e/test_secrets_of_a_daemon.py",
    "tests/e2e/test_static_ssh.py",
    "tests/fleeting/test_ssh_slow.py",
    "tests/gitlab_jobs/test_peers.py",
    "tests/taskscaler_gitlab/test_killed_managers.py",
    "tests/taskscaler_gitlab/test_running_jobs.py",
    "tests/taskscaler_gitlab/test_running_jobs_files.py",
    "tests/taskscaler_gitlab/test_relay_teeth.py",
    "tests/taskscaler_gitlab/test_sidecars_crash_points.py",
    "tests/taskscaler_gitlab/test_sidecars_lose_nothing.py",
    "tests/test_one_backend.py",
)
"""Where they are: all that ``--rest`` collects, besides what runs on one backend in the suite."""

STORIES_OF_SIDECARS = "tests/taskscaler_gitlab/test_sidecars_crash_points.py::test_a_service_dies_at_each_write"

LATER = (
    "tests/conformance/test_azure.py",
    "tests/conformance/test_gcp.py",
    "tests/conformance/test_tutorial.py::test_who_does_what_the_page_says_arrives",
    "tests/distributions/test_wheels.py",
    "tests/e2e/test_aws.py",
    "tests/e2e/test_azure.py",
    "tests/e2e/test_crash.py",
    "tests/e2e/test_custom_executor.py",
    "tests/e2e/test_docker.py",
    "tests/e2e/test_examples.py",
    "tests/e2e/test_gcp.py",
    "tests/e2e/test_gitlab_runner.py",
    "tests/e2e/test_kept_leases.py",
    "tests/e2e/test_leasing.py",
    "tests/e2e/test_outliving.py",
    "tests/e2e/test_page.py",
    "tests/e2e/test_prometheus.py",
    "tests/e2e/test_runs_on_a_daemon.py",
    "tests/e2e/test_secrets_of_a_daemon.py",
    "tests/e2e/test_static_ssh.py",
    "tests/e2e/test_submitting.py",
    "tests/e2e/test_windows.py",
    "tests/fleeting_aws/test_conformance.py",
    "tests/fleeting/test_new_plugin.py::test_what_is_written_passes_as_it_is[the-cloud",
    "tests/taskscaler_gitlab/test_dependencies.py::test_a_zip_of_70000_files_is_taken",
    "tests/taskscaler_gitlab/test_router_as_a_program.py::test_the_same_conversation_through_the_router",
    "tests/taskscaler_gitlab/test_sidecars_keep_secrets.py",
    "tests/taskscaler_gitlab/test_switch_as_a_program.py",
    f"{STORIES_OF_SIDECARS}[that is cancelled]",
    f"{STORIES_OF_SIDECARS}[that is placed again]",
    f"{STORIES_OF_SIDECARS}[that loses its sidecar]",
    f"{STORIES_OF_SIDECARS}[whose second service dies, too]",
)
"""What the suite has no part of, as ids begin; ``nox -s later`` runs it, and whoever names its files: what installs all
distributions elsewhere, and whole programs that meet others (browsers, servers, pipelines), of which the suite has the
quickstart and the parts; and the contract as the clouds' own SDKs keep it. They are a third of all work, and wait for
most of their time."""


SAMPLED = (
    "examples/puddle/tests/test_conformance.py",
    "tests/chaos/test_crash_points.py::test_killed_at",
    "tests/chaos/test_repeatable.py::test_a_story_comes_out_the_same",
    "tests/chaos/test_served.py::test_a_daemon_killed_at_any_write_of_its_journal",
    "tests/chaos/test_served.py::test_a_lease_is_replaced_whatever_write_its_daemon_dies_at",
    "tests/chaos/test_served.py::test_every_job_of_the_living_ends_once",
    "tests/chaos/test_served.py::test_kept_leases_whatever_write_their_daemon_dies_at",
    "tests/conformance/test_docker.py",
    "tests/conformance/test_exec.py",
    "tests/e2e/test_exec.py",
    "tests/e2e/test_group_members.py",
    "tests/e2e/test_quickstart.py",
    "tests/e2e/test_secrets.py",
    "tests/e2e/test_sigterm.py::test_a_script_that_is_terminated_leaves_nothing",
    "tests/executor_docker/test_jobs.py",
    "tests/executor_docker/test_leftovers.py",
    "tests/executor_docker/test_reattaching.py",
    "tests/executor_docker/test_refusals.py",
    "tests/fleeting/test_cli_copy.py::test_an_interrupted_copy_leaves_nothing",
    "tests/fleeting/test_cli_copy.py::test_large_copies_take_little_memory",
    "tests/fleeting/test_cli_copy.py::test_what_cannot_be_copied_is_told",
    "tests/fleeting/test_cli_ssh.py",
    "tests/fleeting/test_live.py::test_an_interrupt_leaves_nothing",
    "tests/fleeting/test_new_plugin.py::test_what_is_written_passes_as_it_is",
    "tests/fleeting/test_winrm_connector.py",
    "tests/fleeting_docker_engine/test_liars.py::test_only_errors_of_ours_come_of_what_a_daemon_answers",
    "tests/fleeting_exec/test_docker_machine.py",
    "tests/job_steps/test_bring.py",
    "tests/job_steps/test_executor.py",
    "tests/taskscaler/test_compare_command.py::test_the_frontier_has_those_that_no_other_beats",
    "tests/taskscaler/test_doctor.py::test_an_unruly_plugin_ends_only_its_line",
    "tests/taskscaler/test_idling.py::test_nothing_is_lost_on_other_traces",
    "tests/taskscaler/test_reattaching.py::test_a_job_that_is_started_and_attached_to_at_once_is_a_job",
    "tests/taskscaler/test_report.py::test_what_cannot_be_looked_back_on_is_told",
    "tests/taskscaler/test_simulation.py::test_a_seed_decides_all",
    "tests/taskscaler/test_simulation_traces.py::test_no_object_is_unfolded_that_is_too_large",
    "tests/taskscaler/test_tune.py::test_it_finds_what_trying_everything_finds",
    "tests/taskscaler/test_tune.py::test_of_many_jobs_a_part_shows_what_is_worth_it",
    "tests/taskscaler/test_tune.py::test_one_seed_finds_the_same",
    "tests/taskscaler/test_tune.py::test_who_refuses_jobs_meets_no_target",
    "tests/taskscaler/test_tune_command.py::test_what_it_prints_can_be_pasted",
    "tests/taskscaler_gitlab/test_beside_the_real_runner.py",
    "tests/taskscaler_gitlab/test_jobs_in_containers.py",
    "tests/taskscaler_gitlab/test_running_jobs.py",
    "tests/taskscaler_gitlab/test_running_jobs_files.py",
    "tests/taskscaler_gitlab/test_sidecars.py",
    "tests/taskscaler_gitlab/test_sidecars_changed.py",
    STORIES_OF_SIDECARS,
    "tests/taskscaler_gitlab/test_sidecars_lose_nothing.py",
    "tests/taskscaler_gitlab/test_sidecars_of_a_private_gitlab.py",
    "tests/taskscaler_gitlab/test_sources.py",
    "tests/taskscaler_gitlab/test_sources_left.py::test_damage_is_repaired",
    "tests/taskscaler_gitlab/test_sources_left.py::test_files_are_those_of_the_commit",
    "tests/taskscaler_gitlab/test_sources_left.py::test_what_was_left_does_not_run",
    "tests/taskscaler_gitlab/test_submodules.py",
    "tests/taskscaler_gitlab/test_switching.py",
    "tests/taskscaler_gitlab/test_traces.py::test_each_job_is_one_trace",
    "tests/test_peers.py",
    "tests/test_timeouts.py",
)
"""What takes long, as ids begin, and of which the suite has `SAMPLES`: enough to see that something is broken there.
``nox -s later`` runs the others, each in the variant that the suite would."""

CONTRACTS = (
    "examples/puddle/tests/test_conformance.py::TestPuddle",
    "tests/conformance/test_docker.py::TestDocker",
    "tests/conformance/test_exec.py::TestExec",
)
"""Groups of whose contract the suite checks a part; the fake cloud, static hosts and local instances keep it there."""

SOME_CHECKS = (
    "decrease_removes_only_those_named",
    "heartbeat_notices_death",
    "named_create_is_idempotent",
    "owner_mark_keeps_others_out",
    "stock_out_is_reported",
    "unreachable_cloud_is_a_provider_error",
    "view_is_whole_or_an_error",
)
"""That part."""

SAMPLES = (
    *(
        f"{group}::test_contract[{backend}-{check}]"
        for group in CONTRACTS
        for check in SOME_CHECKS
        for backend in ("asyncio", "trio")
    ),
    "tests/chaos/test_crash_points.py::test_killed_at[asyncio-named-",
    "tests/chaos/test_crash_points.py::test_killed_at[lasting-outlived-worn-",
    "tests/chaos/test_crash_points.py::test_killed_at[trio-unnamed-",
    "tests/chaos/test_crash_points.py::test_killed_at[worn-kept-",
    "tests/chaos/test_repeatable.py::test_a_story_comes_out_the_same[406]",
    "tests/chaos/test_repeatable.py::test_a_story_comes_out_the_same[410]",
    "tests/chaos/test_served.py::test_a_daemon_killed_at_any_write_of_its_journal[asyncio-before]",
    "tests/chaos/test_served.py::test_a_daemon_killed_at_any_write_of_its_journal[trio-after]",
    "tests/chaos/test_served.py::test_a_lease_is_replaced_whatever_write_its_daemon_dies_at[asyncio-after]",
    "tests/chaos/test_served.py::test_a_lease_is_replaced_whatever_write_its_daemon_dies_at[trio-before]",
    "tests/chaos/test_served.py::test_every_job_of_the_living_ends_once[0]",
    "tests/chaos/test_served.py::test_every_job_of_the_living_ends_once[1]",
    "tests/chaos/test_served.py::test_kept_leases_whatever_write_their_daemon_dies_at[asyncio-commit]",
    "tests/chaos/test_served.py::test_kept_leases_whatever_write_their_daemon_dies_at[trio-keep]",
    "tests/e2e/test_exec.py::test_a_batch_runs_on_the_script_as_printed",
    "tests/e2e/test_exec.py::test_a_mistake_in_the_script_is_told_in_one_line",
    "tests/e2e/test_group_members.py::test_members_use_the_fleet_and_nobody_else_reaches_it",
    "tests/e2e/test_quickstart.py::test_all_forty_jobs_succeed_within_the_ceiling",
    "tests/e2e/test_quickstart.py::test_ctrl_c_drains_and_a_second_one_stops[1-",
    "tests/e2e/test_secrets.py::test_commands_and_variables_that_fail_are_named_and_not_shown",
    "tests/e2e/test_sigterm.py::test_a_script_that_is_terminated_leaves_nothing[threads]",
    "tests/executor_docker/test_jobs.py::test_a_great_deal_of_output_arrives_whole",
    "tests/executor_docker/test_jobs.py::test_a_job_that_takes_too_long_is_ended_and_its_artifacts_are_brought_back",
    "tests/executor_docker/test_jobs.py::test_a_script_that_ends_well_has_succeeded_and_what_it_used_is_known",
    "tests/executor_docker/test_jobs.py::test_artifacts_are_brought_back_and_nothing_else_is",
    "tests/executor_docker/test_jobs.py::test_output_is_told_while_the_job_runs_and_a_cancelled_job_is_gone",
    "tests/executor_docker/test_jobs.py::test_the_environment_is_the_image_s_the_job_s_and_the_place",
    "tests/executor_docker/test_jobs.py::test_volumes_caches_and_tmpfs_are_where_they_are_wanted",
    "tests/executor_docker/test_leftovers.py::test_what_a_killed_run_has_left_is_cleared_away_and_not_before",
    "tests/executor_docker/test_reattaching.py::test_a_job_is_started_once",
    "tests/executor_docker/test_reattaching.py::test_a_later_manager_joins_a_job_from_any_byte",
    "tests/executor_docker/test_refusals.py::test_a_command_that_is_not_found_is_told",
    "tests/fleeting/test_cli_copy.py::test_an_interrupted_copy_leaves_nothing[local_fleet-2]",
    "tests/fleeting/test_cli_copy.py::test_what_cannot_be_copied_is_told[{here}/nix-{i}:{there}-",
    "tests/fleeting/test_cli_ssh.py::test_a_login_shell[local_fleet]",
    "tests/fleeting/test_cli_ssh.py::test_a_signal_leaves_the_terminal_as_it_was[ssh_fleet-2]",
    "tests/fleeting/test_cli_ssh.py::test_a_terminal_there_as_it_is_here[ssh_fleet]",
    "tests/fleeting/test_live.py::test_an_interrupt_leaves_nothing[2]",
    "tests/fleeting/test_winrm_connector.py::test_a_cancelled_command_leaves_no_shell",
    "tests/fleeting/test_winrm_connector.py::test_a_host_that_dies_under_a_command",
    "tests/fleeting/test_winrm_connector.py::test_a_program_that_may_not_be_run",
    "tests/fleeting/test_winrm_connector.py::test_a_script_longer_than_a_command_line_is_run",
    "tests/fleeting/test_winrm_connector.py::test_a_shell_is_used_again",
    "tests/fleeting/test_winrm_connector.py::test_input_that_is_not_read_for_long_arrives_once",
    "tests/fleeting/test_winrm_connector.py::test_nobody_is_sent_on_to_another_host",
    "tests/fleeting/test_winrm_connector.py::test_text_is_utf8",
    "tests/fleeting/test_winrm_connector.py::test_there_are_no_tunnels",
    "tests/fleeting_docker_engine/test_liars.py::test_only_errors_of_ours_come_of_what_a_daemon_answers[the group]",
    "tests/fleeting_exec/test_docker_machine.py::test_a_machine_lives_and_goes",
    "tests/fleeting_exec/test_docker_machine.py::test_a_wrong_call_is_told_how",
    "tests/fleeting_exec/test_docker_machine.py::test_an_inspection_that_makes_no_sense_is_said_so",
    "tests/fleeting_exec/test_docker_machine.py::test_it_",
    "tests/fleeting_exec/test_docker_machine.py::test_machines_of_others_are_not_seen",
    "tests/fleeting_exec/test_docker_machine.py::test_without_",
    "tests/job_steps/test_bring.py::test_a_connection_that_dies_costs_nothing",
    "tests/job_steps/test_bring.py::test_a_job_runs_once_and_is_known_until_it_is_closed",
    "tests/job_steps/test_bring.py::test_an_agent_that_was_killed_leaves_its_jobs_defined",
    "tests/job_steps/test_bring.py::test_an_instance_whose_python_is_too_old_says_so",
    "tests/job_steps/test_bring.py::test_closing_ends_a_job_with_all_that_it_has_started",
    "tests/job_steps/test_bring.py::test_what_is_said_when_the_agent_cannot_be_placed",
    "tests/job_steps/test_executor.py::test_a_cancelled_job_is_ended_and_leaves_nothing",
    "tests/job_steps/test_executor.py::test_a_job_is_started_once",
    "tests/job_steps/test_executor.py::test_a_job_that_the_policy_refuses_is_refused_before_there_is_an_instance",
    "tests/job_steps/test_executor.py::test_a_list_of_steps_runs_and_leaves_its_results",
    "tests/job_steps/test_executor.py::test_a_manager_that_does_not_ask_its_policy_is_refused_by_the_agent",
    "tests/job_steps/test_executor.py::test_a_step_that_fails_is_named",
    "tests/job_steps/test_executor.py::test_it_reattaches",
    "tests/job_steps/test_executor.py::test_settings_that_cannot_be_meant",
    "tests/taskscaler/test_doctor.py::test_an_unruly_plugin_ends_only_its_line[blocks the loop]",
    "tests/taskscaler/test_idling.py::test_nothing_is_lost_on_other_traces[dense]",
    "tests/taskscaler/test_reattaching.py::test_a_job_that_is_started_and_attached_to_at_once_is_a_job[asyncio-a_cancelled_job_is_ended_and_cleaned_up_after]",
    "tests/taskscaler/test_reattaching.py::test_a_job_that_is_started_and_attached_to_at_once_is_a_job[asyncio-artifacts_are_brought_back]",
    "tests/taskscaler/test_report.py::test_what_cannot_be_looked_back_on_is_told[: > ",
    "tests/taskscaler/test_simulation_traces.py::test_no_object_is_unfolded_that_is_too_large[[]",
    "tests/taskscaler_gitlab/test_jobs_in_containers.py::test_a_script_runs_in_the_job_s_image",
    "tests/taskscaler_gitlab/test_jobs_in_containers.py::test_files_come_and_go",
    "tests/taskscaler_gitlab/test_jobs_in_containers.py::test_what_is_not_allowed_is_not_run",
    "tests/taskscaler_gitlab/test_running_jobs.py::test_a_canceled_script_has_its_after_script",
    "tests/taskscaler_gitlab/test_running_jobs.py::test_a_connection_that_breaks_costs_a_job_nothing",
    "tests/taskscaler_gitlab/test_running_jobs.py::test_a_job_outlives_its_manager",
    "tests/taskscaler_gitlab/test_running_jobs.py::test_a_job_that_cannot_be_run",
    "tests/taskscaler_gitlab/test_running_jobs.py::test_a_script_runs_and_its_log_is_gitlabs",
    "tests/taskscaler_gitlab/test_running_jobs.py::test_clocks_that_differ_by_a_year",
    "tests/taskscaler_gitlab/test_running_jobs.py::test_the_runners_own_commands_surround_the_script",
    "tests/taskscaler_gitlab/test_running_jobs.py::test_variables_are_what_gitlab_says",
    "tests/taskscaler_gitlab/test_running_jobs.py::test_what_is_written_down_is_masked",
    "tests/taskscaler_gitlab/test_running_jobs_files.py::test_a_cache_is_there_for_the_next_job",
    "tests/taskscaler_gitlab/test_running_jobs_files.py::test_a_job_starts_with_what_another_left",
    "tests/taskscaler_gitlab/test_running_jobs_files.py::test_a_link_that_leads_out_is_no_way_out",
    "tests/taskscaler_gitlab/test_running_jobs_files.py::test_artifacts_are_sent_by_the_next_manager",
    "tests/taskscaler_gitlab/test_running_jobs_files.py::test_artifacts_of_failures_and_of_successes",
    "tests/taskscaler_gitlab/test_running_jobs_files.py::test_jobs_that_keep_one_cache_at_a_time_do_not_mix_it",
    "tests/taskscaler_gitlab/test_running_jobs_files.py::test_names_that_shells_stumble_over",
    "tests/taskscaler_gitlab/test_running_jobs_files.py::test_what_is_no_archive_is_refused",
    "tests/taskscaler_gitlab/test_running_jobs_files.py::test_what_is_outside_the_project_is_left_out",
    "tests/taskscaler_gitlab/test_sidecars.py::test_a_job_goes_on_when_the_runner_is_killed",
    "tests/taskscaler_gitlab/test_sidecars.py::test_a_job_that_gitlab_gives_to_others_is_ended",
    "tests/taskscaler_gitlab/test_sidecars.py::test_a_program_that_is_",
    "tests/taskscaler_gitlab/test_sidecars.py::test_a_sidecar_that_is_killed_fails_its_job_with_the_reason",
    "tests/taskscaler_gitlab/test_sidecars.py::test_an_independent_runner_is_a_sidecar",
    "tests/taskscaler_gitlab/test_sidecars.py::test_gitlab_cancels_a_job_that_runs",
    "tests/taskscaler_gitlab/test_sidecars.py::test_jobs_run_with_all_that_they_need",
    "tests/taskscaler_gitlab/test_sidecars_changed.py::test_a_sidecar_that_comes_by_a_tunnel_keeps_its_port",
    f"{STORIES_OF_SIDECARS}[whose sidecar claims]",
    "tests/taskscaler_gitlab/test_sidecars_lose_nothing.py::test_gitlab_is_away",
    "tests/taskscaler_gitlab/test_sources.py::test_a_project_is_cloned_and_then_fetched",
    "tests/taskscaler_gitlab/test_sources.py::test_an_instance_without_git_says_so",
    "tests/taskscaler_gitlab/test_sources.py::test_history_is_as_deep_as_the_job_wants",
    "tests/taskscaler_gitlab/test_sources.py::test_hooks_run_around_the_sources",
    "tests/taskscaler_gitlab/test_sources.py::test_strategies",
    "tests/taskscaler_gitlab/test_sources.py::test_the_token_is_seen_nowhere",
    "tests/taskscaler_gitlab/test_sources.py::test_what_a_job_is_of",
    "tests/taskscaler_gitlab/test_sources_left.py::test_damage_is_repaired[half an index]",
    "tests/taskscaler_gitlab/test_sources_left.py::test_damage_is_repaired[locks]",
    "tests/taskscaler_gitlab/test_sources_left.py::test_files_are_those_of_the_commit[replaced]",
    "tests/taskscaler_gitlab/test_sources_left.py::test_files_are_those_of_the_commit[unchanged]",
    "tests/taskscaler_gitlab/test_sources_left.py::test_what_was_left_does_not_run[a filter]",
    "tests/taskscaler_gitlab/test_sources_left.py::test_what_was_left_does_not_run[a link]",
    "tests/taskscaler_gitlab/test_sources_left.py::test_what_was_left_does_not_run[hooks]",
    "tests/taskscaler_gitlab/test_submodules.py::test_addresses_for_ssh_are_fetched_by_https",
    "tests/taskscaler_gitlab/test_submodules.py::test_submodules_come_as_the_job_wants",
    *(
        f"tests/taskscaler_gitlab/test_switching.py::{each}"
        for backend in ("asyncio", "trio")
        for each in (
            f"test_40_jobs_end_where_they_began_and_the_old_fleet_is_gone[{backend}-killed",
            f"test_it_is_aborted_at_every_step[{backend}-stopped]",
        )
    ),
    "tests/taskscaler_gitlab/test_traces.py::test_each_job_is_one_trace[asyncio-own]",
    "tests/taskscaler_gitlab/test_traces.py::test_each_job_is_one_trace[trio-own]",
)
"""What the suite has of it: one of each kind, the one that meets most."""


def is_in_part(item: pytest.Item) -> bool:
    """Whether the suite runs a part of it."""
    callspec = getattr(item, "callspec", None)
    is_parameter = callspec is not None and "full" in callspec.params  # of another meaning
    return "full" in getattr(item, "fixturenames", ()) and not is_parameter


def is_sampled_out(item: pytest.Item) -> bool:
    """Whether the suite has others of its kind in its place."""
    return item.nodeid.startswith(SAMPLED) and not item.nodeid.startswith(SAMPLES)
