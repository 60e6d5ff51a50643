"""One job of a batch."""

from attrs import frozen

from taskscaler.executors import JobSpec


@frozen(kw_only=True)
class Job:
    """What to run, and how."""

    spec: JobSpec
    executor: str = "instance"
    """Name of the executor that runs it."""

    retries: int = 2
    """How often it is tried again when its instance was lost; not counted is what the cloud took as announced. A job
    that fails by itself is not."""

    expected_duration: float | None = None
    """Seconds it is expected to take, so that it is not begun where it could not end."""

    @property
    def name(self) -> str:
        """Its name, unique in the batch."""
        return self.spec.name
