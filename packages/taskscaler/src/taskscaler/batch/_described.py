"""A batch and its jobs as data, for programs that ask where they stand."""

from taskscaler.batch._job_state import JobState
from taskscaler.batch._record import JobRecord
from taskscaler.batch._state import BatchState


def counts_of(state: BatchState) -> dict[str, int]:
    """Count jobs by their states; only those that there are."""
    return {each.value: number for each in JobState if (number := state.count(each))}


def record_as_data(record: JobRecord) -> dict[str, object]:
    """Describe a job: where it stands, and its last try."""
    last = record.last_attempt
    return {
        "name": record.name,
        "state": record.state.value,
        "why": record.why,
        "tries": len(record.attempts),
        "instance": None if last is None else last.instance,
        "exit_code": None if last is None else last.exit_code,
        "duration": None if last is None or last.ended is None else round(last.duration, 3),
        "cpu_time": None if last is None else last.cpu_time,
        "peak_memory": None if last is None else last.peak_memory,
        "disk_written": None if last is None else last.disk_written,
    }
