"""A client of GitLab's job protocol, on asyncio and trio: for runners of your own.

`GitLabClient` makes single calls, `Runner` asks for jobs at the right times, and `reporting` looks after one job: its
log, its life sign, its cancellation, its end.
"""

from gitlab_jobs._client import Asked, GitLabClient, Registered, info
from gitlab_jobs._passing import Passing
from gitlab_jobs._reporting import Reporting, reporting
from gitlab_jobs._runner import Runner

__all__ = ["Asked", "GitLabClient", "Passing", "Registered", "Reporting", "Runner", "info", "reporting"]
