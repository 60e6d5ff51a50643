"""Alerts: what somebody should be woken or told for, and what to do then. Data, and the rules made of it."""

import json
from collections.abc import Iterator, Sequence
from typing import Final, Literal, NamedTuple


class Alert(NamedTuple):
    """One alert."""

    name: str
    expression: str
    lasts: str
    """For how long that has to be so, as Prometheus writes durations."""

    severity: Literal["critical", "warning", "info"]
    summary: str
    """What is wrong; may have labels."""

    remedy: str
    """What to do."""


ALERTS: Final[Sequence[Alert]] = (
    Alert(
        "TaskscalerAbsent",
        "absent(fleeting_taskscaler_tasks)",
        "5m",
        "critical",
        "No fleet is being scraped",
        "See whether taskscaler runs, and whether Prometheus reaches its --metrics address.",
    ),
    Alert(
        "TaskscalerJournalFailing",
        "taskscaler_journal_failing == 1",
        "1m",
        "critical",
        "The state of the fleet cannot be written, so no slot is handed out",
        "See the log for journal_failed: the disk is full or read-only.",
    ),
    Alert(
        "TaskscalerGroupDisowned",
        "taskscaler_group_disowned == 1",
        "2m",
        "critical",
        "The group of pool {{ $labels.pool }} is managed by somebody else",
        "See taskscaler explain for who has it; only one manager may have a group.",
    ),
    Alert(
        "TaskscalerNotHandingOut",
        "taskscaler_handing_out == 0",
        "15m",
        "warning",
        "No slots are handed out",
        "It is draining, or in the trouble that taskscaler explain names.",
    ),
    Alert(
        "TaskscalerJobsWait",
        "taskscaler_oldest_wait_seconds > 900",
        "1m",
        "warning",
        "A job has waited for a slot for more than a quarter of an hour",
        "taskscaler explain says why: a ceiling, the cloud, or held instances.",
    ),
    Alert(
        "TaskscalerAtCeiling",
        'taskscaler_growth_limited{limit=~"max_instances|max_instances_over_all|group_size"} == 1',
        "15m",
        "warning",
        "Pool {{ $labels.pool }} needs more instances than {{ $labels.limit }} allows",
        "Raise the limit, or let jobs wait.",
    ),
    Alert(
        "TaskscalerCloudRefuses",
        'taskscaler_growth_limited{limit=~"backoff|blocked"} == 1',
        "10m",
        "warning",
        "Pool {{ $labels.pool }} cannot grow: its cloud gives no instances",
        "taskscaler explain has the cloud's words; add a pool elsewhere if it has no capacity.",
    ),
    Alert(
        "TaskscalerViewStale",
        "taskscaler_view_age_seconds - taskscaler_update_interval_seconds > 600",
        "1m",
        "warning",
        "The cloud's view of pool {{ $labels.pool }} is ten minutes overdue",
        "See the log for update_failed: credentials, or the cloud's API.",
    ),
    Alert(
        "TaskscalerInstancesNotReady",
        'increase(fleeting_provisioner_internal_operations_total{operation="prepare_failure"}[15m]) > 5',
        "0s",
        "warning",
        "Instances start and do not become ready",
        "See the log for prepare_failed: the image, the login, or instance_ready_command.",
    ),
    Alert(
        "TaskscalerInstancesLost",
        'sum by (job, instance, pool) (increase(taskscaler_instances_lost_total{cause!="killed"}[15m])) > 3',
        "0s",
        "warning",
        "Pool {{ $labels.pool }} loses instances that are in use",
        "See the causes on the dashboard: preemption, failing heartbeats, or somebody who deletes them.",
    ),
    Alert(
        "TaskscalerDeletionsStuck",
        "taskscaler_oldest_deletion_seconds > 3600",
        "1m",
        "warning",
        "Pool {{ $labels.pool }} has instances that are not deleted, and cost money",
        "See the log for decrease_failed, and the cloud's console.",
    ),
    Alert(
        "TaskscalerInstancesRetained",
        'taskscaler_held_instances{hold="retain"} > 0',
        "1d",
        "info",
        "Pool {{ $labels.pool }} has instances that somebody retained a day ago",
        "taskscaler retain --undo lets them go.",
    ),
    Alert(
        "TaskscalerJobsFail",
        'sum by (job, instance) (increase(taskscaler_job_outcomes_total{state=~"failed|timed_out|lost"}[15m]))'
        " / (sum by (job, instance) (increase(taskscaler_job_outcomes_total[15m])) > 0) > 0.5",
        "5m",
        "warning",
        "More than half of the jobs of batches fail",
        "taskscaler logs shows what they print.",
    ),
    Alert(
        "TaskscalerGitlabRefuses",
        'sum by (job, instance, endpoint) (increase(gitlab_runner_api_request_statuses_total{status=~"401|403"}[15m]))'
        " > 5",
        "0s",
        "warning",
        "GitLab refuses calls of the runner ({{ $labels.endpoint }})",
        "See whether the runner's token ended or was revoked.",
    ),
)
"""In the order in which they matter."""


def alert_rules(alerts: Sequence[Alert] = ALERTS) -> str:
    """Write the rules as Prometheus reads them, in YAML."""
    return "\n".join(["groups:", "  - name: taskscaler", "    rules:", *_lines(alerts), ""])


def _lines(alerts: Sequence[Alert]) -> Iterator[str]:
    for alert in alerts:
        yield f"      - alert: {alert.name}"
        yield f"        expr: {_quoted(alert.expression)}"
        yield f"        for: {alert.lasts}"
        yield f"        labels: {{severity: {alert.severity}}}"
        yield "        annotations:"
        yield f"          summary: {_quoted(alert.summary)}"
        yield f"          description: {_quoted(alert.remedy)}"


def _quoted(text: str) -> str:
    """Write a string: what JSON has is YAML."""
    return json.dumps(text, ensure_ascii=False)
