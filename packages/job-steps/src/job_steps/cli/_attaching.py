"""What ``job-steps attach`` does: here, or by the agent of another host."""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import anyio

from job_steps._attach import Wish, attach
from job_steps._breakpoints import Decision
from job_steps._errors import JobStepsError

_THERE: Final = """\
agent=$(ls -t "$HOME"/.job-steps/*/agent.pyz 2>/dev/null | head -n 1)
[ -n "$agent" ] || { echo "error: there is no agent in ~/.job-steps of this host" >&2; exit 2; }
read -r python < "${agent%/*}/python" && exec "$python" -I "$agent" attach "$@"
"""
"""Run the newest agent of a host, which finds all others."""


def attach_here(
    job: str, *, lists: bool, as_json: bool, breaks: Sequence[str], decision: str | None, sockets: Sequence[str]
) -> int:
    """Attach to a job of this host; returns the exit status."""
    wish = Wish(
        job=job,
        sockets=tuple(sockets),
        breakpoints=tuple(breaks),
        decision=Decision(decision) if decision else None,
        lists=lists or as_json,
        as_json=as_json,
    )
    return anyio.run(attach, wish, Path.home() / ".job-steps")


def attach_via(
    via: str,
    job: str,
    *,
    lists: bool,
    as_json: bool,
    breaks: Sequence[str],
    decision: str | None,
    sockets: Sequence[str],
) -> int:
    """Become a command that attaches on another host; returns only if there is none."""
    try:
        command = shlex.split(via)
    except ValueError as error:
        raise JobStepsError(f"--via {via}: {error}") from error
    if not command:
        raise JobStepsError("--via is empty; expected a command such as 'ssh -t HOST'")
    given = [*(["--list"] if lists else []), *(["--json"] if as_json else [])]
    given += [f"--break={each}" for each in breaks] + [f"--socket={each}" for each in sockets]
    given += [*([f"--{decision}"] if decision else []), *([job] if job else [])]
    line = shlex.join(["/bin/sh", "-c", _THERE, "sh", *given])
    try:
        os.execvp(command[0], [*command, line])  # noqa: S606  (no shell but that of the other host)
    except OSError as error:
        raise JobStepsError(f"--via {via}: {error.strerror}") from error
