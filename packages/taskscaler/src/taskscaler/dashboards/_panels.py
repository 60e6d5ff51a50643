"""What the dashboard shows: each panel answers one question. Data."""

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

Unit = Literal["short", "s", "ops", "percentunit", "h", "bytes", "Bps"]


class Query(NamedTuple):
    """What is drawn."""

    expression: str
    """PromQL; ``$__rate_interval`` and ``$job`` are Grafana's to fill in."""

    legend: str
    """What the lines are called; labels in double braces."""


class Panel(NamedTuple):
    """One picture."""

    title: str
    question: str
    """What it answers, and what to look for."""

    unit: Unit
    queries: Sequence[Query]
    stacked: bool = False


class Row(NamedTuple):
    """Panels on one subject."""

    title: str
    panels: Sequence[Panel]


_OURS: Final = '{job=~"$job"}'


def _rate(name: str, by: str, *, where: str = "", per: str = "rate") -> str:
    return f'sum by ({by}) ({per}({name}{{job=~"$job"{where}}}[$__rate_interval]))'


def _quantiles(name: str) -> Sequence[Query]:
    whole = _rate(f"{name}_bucket", "le")
    return [Query(f"histogram_quantile({q}, {whole})", words) for q, words in ((0.5, "median"), (0.95, "95 %"))]


def _quantiles_of(**names: str) -> Sequence[Query]:
    return [Query(q.expression, f"{what}, {q.legend}") for what, name in names.items() for q in _quantiles(name)]


ROWS: Final[Sequence[Row]] = (
    Row(
        "Do jobs get their slots?",
        (
            Panel(
                "Slots and waiting jobs",
                "What are slots used for, and does anybody wait? Pending above zero for long: see what limits growth.",
                "short",
                [Query(f"sum by (state) (fleeting_taskscaler_tasks{_OURS})", "{{state}}")],
                stacked=True,
            ),
            Panel(
                "Wait for a slot",
                "How long do jobs wait for a slot?",
                "s",
                _quantiles("taskscaler_queue_wait_seconds"),
            ),
            Panel(
                "What is done with slots",
                "How many leases begin and end, and which reservations are refused?",
                "ops",
                [Query(_rate("fleeting_taskscaler_task_operations_total", "operation") + " > 0", "{{operation}}")],
            ),
            Panel(
                "Jobs of batches",
                "How do jobs of batches end? Nothing here where there are no batches.",
                "ops",
                [Query(_rate("taskscaler_job_outcomes_total", "state"), "{{state}}")],
            ),
        ),
    ),
    Row(
        "Does the fleet follow the demand?",
        (
            Panel(
                "Instances",
                "How many instances are there, in which states, and how many are wanted and allowed?",
                "short",
                [
                    Query(f"sum by (state) (fleeting_provisioner_instances{_OURS})", "{{state}}"),
                    Query(f"sum (fleeting_taskscaler_desired_instances{_OURS})", "wanted"),
                    Query(f"sum (fleeting_provisioner_max_instances{_OURS} > 0)", "allowed"),
                ],
            ),
            Panel(
                "Instances by pool",
                "Which pool do they belong to?",
                "short",
                [Query('sum by (pool) (taskscaler_pool_instances{job=~"$job", state="running"})', "{{pool}}")],
                stacked=True,
            ),
            Panel(
                "What limits growth",
                "What keeps a pool from growing? Nothing here: nothing does.",
                "short",
                [Query(f"max by (pool, limit) (taskscaler_growth_limited{_OURS}) > 0", "{{pool}}: {{limit}}")],
            ),
            Panel(
                "Growing and shrinking",
                "How often does it change its size? Both at once, all the time: idle_time is too short.",
                "ops",
                [Query(_rate("fleeting_taskscaler_scale_operations_total", "operation"), "{{operation}}")],
            ),
        ),
    ),
    Row(
        "How quick is the cloud?",
        (
            Panel(
                "Until an instance takes jobs",
                "How long from a request until an instance takes jobs?",
                "s",
                _quantiles("fleeting_taskscaler_task_instance_readiness_time_seconds"),
            ),
            Panel(
                "Until an instance is seen, and runs",
                "Where does that time go: until the cloud shows the instance, or until it runs?",
                "s",
                _quantiles_of(
                    seen="fleeting_provisioner_instance_creation_time_seconds",
                    runs="fleeting_provisioner_instance_is_running_time_seconds",
                ),
            ),
            Panel(
                "Until an instance is gone",
                "How long do deletions take, which cost money meanwhile?",
                "s",
                _quantiles("fleeting_provisioner_instance_deletion_time_seconds"),
            ),
            Panel(
                "Life of instances",
                "How long do instances live? Shorter than it takes to start them: they are not worth it.",
                "s",
                _quantiles("fleeting_provisioner_instance_life_duration_seconds"),
            ),
        ),
    ),
    Row(
        "What goes wrong?",
        (
            Panel(
                "Calls that fail",
                "Which calls to the cloud and to instances fail, and how?",
                "ops",
                [Query(_rate("taskscaler_call_failures_total", "pool, call, error"), "{{pool}}: {{call}}, {{error}}")],
            ),
            Panel(
                "Instances lost, and announced to go",
                "What did the cloud take away?",
                "short",
                [
                    Query(
                        _rate("taskscaler_instances_lost_total", "cause", per="increase") + " > 0", "lost: {{cause}}"
                    ),
                    Query(_rate("taskscaler_notices_total", "kind", per="increase") + " > 0", "announced: {{kind}}"),
                ],
            ),
            Panel(
                "Jobs that lost their slots",
                "Which jobs were broken, and why?",
                "short",
                [Query(_rate("taskscaler_leases_lost_total", "cause", per="increase") + " > 0", "{{cause}}")],
            ),
            Panel(
                "Connections",
                "Do jobs reach their instances?",
                "ops",
                [Query(_rate("taskscaler_dials_total", "outcome"), "{{outcome}}")],
            ),
        ),
    ),
    Row(
        "What do jobs use?",
        (
            Panel(
                "CPUs in use by steps",
                "How many CPUs do steps keep busy, and which? Those that are not listed in `steps` are other.",
                "short",
                [Query(_rate("taskscaler_step_cpu_seconds_total", "step"), "{{step}}")],
                stacked=True,
            ),
            Panel(
                "Memory of jobs",
                "How much memory do jobs need, and how much may they have? Far apart: see tailor_memory.",
                "bytes",
                _quantiles_of(needed="taskscaler_job_peak_memory_bytes", limit="taskscaler_job_memory_limit_bytes"),
            ),
            Panel(
                "What sets memory limits",
                "Where do the limits of jobs in containers come from, and how many jobs are killed by them?",
                "short",
                [
                    Query(_rate("taskscaler_job_memory_limit_bytes_count", "by", per="increase"), "{{by}}"),
                    Query(
                        'sum (increase(taskscaler_memory_kills_total{job=~"$job"}[$__rate_interval]))', "ran out of it"
                    ),
                ],
            ),
            Panel(
                "Disks of steps",
                "Which steps read from disks, and write to them?",
                "Bps",
                [
                    Query(_rate(f"taskscaler_step_{what}_bytes_total", "step"), f"{what}: {{{{step}}}}")
                    for what in ("read", "written")
                ],
            ),
        ),
    ),
    Row(
        "What does it cost, and is the manager well?",
        (
            Panel(
                "Instance-hours in a day",
                "How many instance-hours, without suspended ones, do the last 24 hours come to? Times a price, a bill.",
                "h",
                [Query(f"sum by (pool) (increase(taskscaler_instance_seconds_total{_OURS}[1d])) / 3600", "{{pool}}")],
                stacked=True,
            ),
            Panel(
                "Cost of a day",
                "What did the last 24 hours cost? Nothing here: no price is known, see price_per_hour.",
                "short",
                [
                    Query(
                        f"sum by (pool, currency) (increase(taskscaler_cost_total{_OURS}[1d]))", "{{pool}} {{currency}}"
                    )
                ],
                stacked=True,
            ),
            Panel(
                "How much of it is used",
                "Which part of the slots do jobs hold? Low for long: keep less idle.",
                "percentunit",
                [
                    Query(
                        'sum (fleeting_taskscaler_tasks{job=~"$job", state="acquired"})'
                        ' / (sum (fleeting_taskscaler_tasks{job=~"$job", state!="pending"}) > 0)',
                        "in use",
                    )
                ],
            ),
            Panel(
                "State that is made durable",
                "How long do commits to the journal take?",
                "s",
                _quantiles("taskscaler_journal_commit_seconds"),
            ),
            Panel(
                "Age of the cloud's view",
                "How old is what is known of the cloud?",
                "s",
                [Query(f"max by (pool) (taskscaler_view_age_seconds{_OURS})", "{{pool}}")],
            ),
        ),
    ),
    Row(
        "GitLab's jobs",
        (
            Panel(
                "Jobs that run",
                "How many of GitLab's jobs run, in which stage? Nothing here without taskscaler-gitlab.",
                "short",
                [Query(f"sum by (executor_stage) (gitlab_runner_jobs{_OURS})", "{{executor_stage}}")],
                stacked=True,
            ),
            Panel(
                "Wait in GitLab's queue",
                "How long did GitLab's jobs wait before they were handed out?",
                "s",
                _quantiles("gitlab_runner_job_queue_duration_seconds"),
            ),
            Panel(
                "Jobs that fail",
                "How many jobs fail, and for which of GitLab's reasons?",
                "ops",
                [Query(_rate("gitlab_runner_failed_jobs_total", "failure_reason"), "{{failure_reason}}")],
            ),
            Panel(
                "Answers of GitLab",
                "What does GitLab answer?",
                "ops",
                [
                    Query(
                        _rate("gitlab_runner_api_request_statuses_total", "endpoint, status"),
                        "{{endpoint}}: {{status}}",
                    )
                ],
            ),
        ),
    ),
)
