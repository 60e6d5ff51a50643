"""Every metric of ours: its name, kind and labels, and the question that it answers. Data; imports nothing dear.

Names that begin with ``fleeting_`` are those that GitLab's dashboards query, with exactly their kinds and labels. What
GitLab has no name for begins with ``taskscaler_``. Each label has few values, all known beforehand or written in the
configuration: nothing that a job or a cloud says ever becomes one.
"""

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

Kind = Literal["gauge", "counter", "histogram"]


class Described(NamedTuple):
    """One metric."""

    name: str
    """As in queries; of a counter, it ends in ``_total``."""

    kind: Kind
    labels: tuple[str, ...]
    question: str
    """What it answers."""

    @property
    def family(self) -> str:
        """The name as client libraries have it."""
        return self.name.removesuffix("_total")

    @property
    def series(self) -> str:
        """The name of a series that is there if the metric is."""
        return f"{self.name}_count" if self.kind == "histogram" else self.name


def _gauge(name: str, question: str, *labels: str) -> Described:
    return Described(name, "gauge", labels, question)


def _counter(name: str, question: str, *labels: str) -> Described:
    return Described(f"{name}_total", "counter", labels, question)


def _histogram(name: str, question: str, *labels: str, unit: str = "seconds") -> Described:
    return Described(f"{name}_{unit}", "histogram", labels, question)


_PROVISIONER: Final = "fleeting_provisioner"
_TASKS: Final = "fleeting_taskscaler"
_OURS: Final = "taskscaler"

GITLABS: Final = (
    _gauge(f"{_PROVISIONER}_instances", "How many instances are there, and in which states?", "state"),
    _gauge(f"{_PROVISIONER}_max_instances", "How many may there be? 0: any number."),
    _counter(f"{_PROVISIONER}_missed_updates", "How often did the cloud not show an instance that should be there?"),
    _counter(
        f"{_PROVISIONER}_instance_operations",
        "How many instances were created, deleted, suspended, resumed or withdrawn?",
        "operation",
    ),
    _counter(
        f"{_PROVISIONER}_internal_operations",
        "How often were plugins called, and how many of these calls failed?",
        "operation",
    ),
    _histogram(f"{_PROVISIONER}_instance_creation_time", "How long from a request until the cloud shows the instance?"),
    _histogram(f"{_PROVISIONER}_instance_is_running_time", "How long from a request until the instance runs?"),
    _histogram(f"{_PROVISIONER}_instance_deletion_time", "How long until an instance that is deleted is gone?"),
    _histogram(f"{_PROVISIONER}_instance_life_duration", "How long do instances live?"),
    _gauge(f"{_TASKS}_tasks", "How many slots are in which state, and how many jobs wait (pending)?", "state"),
    _gauge(f"{_TASKS}_max_tasks_per_instance", "How many jobs may an instance run at once?"),
    _gauge(f"{_TASKS}_max_use_count_per_instance", "How many jobs may it run in its life? 0: any number."),
    _gauge(f"{_TASKS}_desired_instances", "How many instances does the last decision want?"),
    _counter(f"{_TASKS}_task_operations", "What is done with slots, how often, and what is refused?", "operation"),
    _histogram(f"{_TASKS}_task_instance_readiness_time", "How long from a request until the instance takes jobs?"),
    _counter(f"{_TASKS}_scale_operations", "How often does the fleet grow and shrink?", "operation"),
)
"""Those that GitLab's dashboards know."""

OURS: Final = (
    _histogram(f"{_OURS}_queue_wait", "How long do jobs wait for a slot?"),
    _gauge(
        f"{_OURS}_oldest_wait_seconds", "For how long has the first in the queue waited for a slot? 0: nobody waits."
    ),
    _gauge(f"{_OURS}_promised_reservations", "How many reservations have no slot kept for them yet?"),
    _gauge(f"{_OURS}_handing_out", "Are slots handed out? 0: it drains, or its journal or its group is in trouble."),
    _gauge(f"{_OURS}_pool_instances", "How many instances does each pool have, and in which states?", "pool", "state"),
    _gauge(f"{_OURS}_pool_max_instances", "How many may each pool have? 0: any number.", "pool"),
    _counter(
        f"{_OURS}_instance_seconds",
        "For how long were instances there and not suspended, all together? Times a price, what do they cost?",
        "pool",
    ),
    _gauge(f"{_OURS}_instances_wanted", "How many more instances does demand call for than were asked for?", "pool"),
    _gauge(f"{_OURS}_growth_limited", "What keeps a pool from growing?", "pool", "limit"),
    _gauge(f"{_OURS}_held_instances", "How many instances does an operator hold?", "pool", "hold"),
    _counter(f"{_OURS}_notices", "How many instances did the cloud announce to take away?", "pool", "kind"),
    _counter(f"{_OURS}_instances_lost", "How many instances were lost, and why?", "pool", "cause"),
    _counter(f"{_OURS}_leases_lost", "How many jobs lost their slots, and why?", "cause"),
    _counter(
        f"{_OURS}_call_failures", "Which calls to the cloud and to instances fail, and how?", "pool", "call", "error"
    ),
    _gauge(
        f"{_OURS}_oldest_deletion_seconds",
        "For how long has the oldest deletion been under way? 0: there is none.",
        "pool",
    ),
    _gauge(f"{_OURS}_view_age_seconds", "How old is what is known of the cloud?", "pool"),
    _gauge(f"{_OURS}_update_interval_seconds", "How often is the cloud looked at, at the least?", "pool"),
    _gauge(f"{_OURS}_group_disowned", "Is the group somebody else's, so that nothing may be changed there?", "pool"),
    _counter(f"{_OURS}_dials", "How often do jobs connect to their instances, and what comes of it?", "outcome"),
    _histogram(f"{_OURS}_dial", "How long does it take to connect?"),
    _histogram(f"{_OURS}_journal_commit", "How long does it take to make state durable?"),
    _counter(f"{_OURS}_journal_records", "How much is written to the journal?"),
    _counter(f"{_OURS}_journal_failures", "How often could the journal not be written?"),
    _gauge(f"{_OURS}_journal_failing", "Is state not being kept right now?"),
    _gauge(f"{_OURS}_build_info", "Which release is this?", "version"),
)
"""What GitLab has no name for."""

USES: Final = (
    _counter(f"{_OURS}_job_cpu_seconds", "How much CPU time have jobs used?"),
    _counter(f"{_OURS}_job_written_bytes", "How much have jobs written to disks?"),
    _histogram(f"{_OURS}_job_peak_memory", "How much memory do jobs need?", unit="bytes"),
    _histogram(f"{_OURS}_job_memory_limit", "How much memory may jobs have, and what sets that?", "by", unit="bytes"),
    _counter(f"{_OURS}_memory_kills", "How many jobs, or processes of theirs, were killed for lack of memory?"),
    _counter(f"{_OURS}_steps", "How many steps of jobs ended, and how?", "step", "state"),
    _counter(f"{_OURS}_step_seconds", "How long did steps take, all together?", "step"),
    _counter(f"{_OURS}_step_cpu_seconds", "How much CPU time have steps used?", "step"),
    _histogram(f"{_OURS}_step_peak_memory", "How much memory do steps need?", "step", unit="bytes"),
    _counter(f"{_OURS}_step_read_bytes", "How much have steps read from disks?", "step"),
    _counter(f"{_OURS}_step_written_bytes", "How much have steps written to disks?", "step"),
)
"""Of what jobs have used, and their steps, as far as that is known: of batches, and of GitLab's jobs."""

BATCHES: Final = (
    _gauge(f"{_OURS}_jobs", "How many jobs of batches that are not over are in which state?", "state"),
    _counter(f"{_OURS}_job_outcomes", "How many jobs of batches ended, and how?", "state"),
    _gauge(f"{_OURS}_batches", "How many batches are not over?"),
)
"""Of batches, where there are any: of `taskscaler run`, or submitted to a daemon."""

COSTS: Final = (
    _counter(f"{_OURS}_cost", "What have the instances cost, where their price is known?", "pool", "currency"),
)
"""Of `taskscaler run` and of daemons, whose files have the prices."""

ALL: Final[Mapping[str, Described]] = {each.name: each for each in (*GITLABS, *OURS, *USES, *BATCHES, *COSTS)}
"""All of them, by name."""
