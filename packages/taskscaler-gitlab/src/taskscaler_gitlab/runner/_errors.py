"""What is wrong with a job itself, or with what is known of it: it fails, and the runner goes on."""


class JobInvalid(Exception):
    """A job cannot run as it is described.

    The message is for the job's log. `reason` is the failure that GitLab learns, as GitLab Runner names it.
    """

    def __init__(self, message: str, *, reason: str = "runner_configuration_error") -> None:
        """Take what is wrong, and the reason for the failure."""
        super().__init__(message)
        self.reason = reason


class RecordUnreadable(Exception):
    """What was written down about a job is damaged, or by a later release: it cannot be resumed.

    What the job has on its instance is unknown then, so that is not to be used again. The message, for the operator,
    names the file.
    """
