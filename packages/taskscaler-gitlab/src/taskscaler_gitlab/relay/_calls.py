"""What of a sidecar's call goes on to GitLab, and of the answer comes back. Pure."""

from collections.abc import Mapping
from http import HTTPStatus

from gitlab_jobs import Outcome

_TO_GITLAB = ("Content-Type", "Content-Length", "Content-Range", "Accept", "User-Agent")
_TO_SIDECAR = (
    "Content-Type",
    "Content-Disposition",
    "Job-Status",
    "Range",
    "X-GitLab-Trace-Update-Interval",
    "Retry-After",
    "RateLimit-ResetTime",
)
_LONGEST_REASON = 128
_ASKED = (HTTPStatus.OK, HTTPStatus.ACCEPTED)

STATES = ("running", "success", "failed")
"""What a sidecar may say of its job; that it prepares it, we say ourselves."""


def to_gitlab(headers: Mapping[str, str], token: str, *, is_streamed: bool) -> dict[str, str]:
    """The headers that go on: nothing that is about the sidecar's connection, or about other tokens."""
    kept = {name: headers[name] for name in _TO_GITLAB if name in headers}
    if not is_streamed:
        kept.pop("Content-Length", None)
    return kept | {"JOB-TOKEN": token}


def to_sidecar(
    status: int, headers: Mapping[str, str], *, is_ending: bool, is_download: bool = False
) -> dict[str, str]:
    """The headers that come back; *is_ending*: somebody here wants the job to end."""
    names = (*_TO_SIDECAR, "Location", "Content-Length") if is_download else _TO_SIDECAR
    kept = {name: headers[name] for name in names if name in headers}
    if is_ending and status in _ASKED and kept.get("Job-Status", "running") == "running":
        kept["Job-Status"] = "canceling"
    return kept


def said_of_end(body: Mapping[str, object]) -> Outcome | None:
    """How a job ended, if that is what ``PUT jobs/:id`` is about."""
    state, reason, code = body.get("state"), body.get("failure_reason"), body.get("exit_code")
    if state not in ("success", "failed"):
        return None
    return Outcome(
        is_success=state == "success",
        failure_reason=reason[:_LONGEST_REASON] if isinstance(reason, str) and reason else None,
        exit_code=code if type(code) is int else None,
    )
