"""Every error of the package, one class per thing a caller would do differently.

GitLabJobsError
├── PayloadInvalid     a job's description cannot be understood: report it as failed, if it has an id and a token
├── FileInvalid        correct the file of jobs
├── NotKept            a file that was fetched cannot be kept: make room for it
├── Unreachable        GitLab did not answer: try again later
└── Refused            GitLab said no: check the address, the token, the request
"""


class GitLabJobsError(Exception):
    """Base class of everything that this package raises on purpose."""


class PayloadInvalid(GitLabJobsError):
    """A job's description is not what the protocol says.

    GitLab believes that the job runs: who has `job_id` and `token` can report it as failed at once, instead of leaving
    it to GitLab's time-out.
    """

    def __init__(self, message: str, *, job_id: int | None = None, token: str | None = None) -> None:
        """Take what is wrong, and what of the description could be read all the same."""
        super().__init__(message)
        self.job_id = job_id
        self.token = token


class FileInvalid(GitLabJobsError):
    """A file of jobs cannot be used as it is."""


class NotKept(GitLabJobsError):
    """What GitLab sent cannot be written to the disk."""


class Unreachable(GitLabJobsError):
    """GitLab did not answer, or not within the time that there was."""


class Refused(GitLabJobsError):
    """GitLab answered, and the answer is not what the call was for."""

    def __init__(self, message: str, *, status: int) -> None:
        """Take what GitLab said, and its status."""
        super().__init__(message)
        self.status = status
