"""What is wrong with a job itself: it fails with one line in its log, and the runner goes on."""


class JobInvalid(Exception):
    """A job cannot run as it is described.

    The message is for the job's log. `reason` is the failure that GitLab learns, as GitLab Runner names it.
    """

    def __init__(self, message: str, *, reason: str = "runner_configuration_error") -> None:
        """Take what is wrong, and the reason for the failure."""
        super().__init__(message)
        self.reason = reason
