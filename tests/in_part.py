"""Tests of which the suite has a part; ``nox -s full`` runs them in full: the same faults and assertions, more often.

They ask for the fixture ``full``, which says whether the whole length is wanted, as it is with ``--full``.
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
    f"{STORIES_OF_SIDECARS}[that is cancelled]",
    f"{STORIES_OF_SIDECARS}[that is placed again]",
    f"{STORIES_OF_SIDECARS}[that loses its sidecar]",
    f"{STORIES_OF_SIDECARS}[whose second service dies, too]",
)
"""What the suite has no part of, as ids begin; ``nox -s later`` runs it, and whoever names its files: what installs all
distributions elsewhere, and whole programs that meet others (browsers, servers, pipelines), of which the suite has the
quickstart and the parts; and the contract as the clouds' own SDKs keep it. They are a third of all work, and wait for
most of their time."""


def is_in_part(item: pytest.Item) -> bool:
    """Whether the suite runs a part of it."""
    callspec = getattr(item, "callspec", None)
    is_parameter = callspec is not None and "full" in callspec.params  # of another meaning
    return "full" in getattr(item, "fixturenames", ()) and not is_parameter
