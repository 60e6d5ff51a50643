"""The way to a runner's GitLab: whom to trust there, and what to say of ourselves."""

import ssl
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from fleeting import ConfigError
from fleeting.errors import ConfigProblem, Mistake
from fleeting.plugins import one_line
from gitlab_jobs import GitLabJobsError, Unreachable
from gitlab_jobs.client import GitLabClient, info
from taskscaler_gitlab._settings import RunnerSettings
from taskscaler_gitlab.runner import features


def client_of(runner: RunnerSettings) -> GitLabClient:
    """Make a client of the runner's GitLab.

    Raises:
        ConfigError: Its certificates cannot be used.
    """
    agent = f"taskscaler-gitlab {version('taskscaler-gitlab')}"
    return GitLabClient(runner.url, tls=_trust(runner), user_agent=agent)


def about(runner: RunnerSettings) -> Mapping[str, Any]:
    """What the runner says about itself."""
    return info(
        *features(runner.kind), name="taskscaler-gitlab", executor=runner.executor, shell=runner.shell or "bash"
    )


def said(error: GitLabJobsError) -> str:
    """What went wrong with a call, with what to do in a ``config.toml`` about it, on one line."""
    text = one_line(str(error)).replace(_FOR_PROGRAMS, "name the certificate of its authority in tls-ca-file")
    hint = "; start it, or correct url" if isinstance(error, Unreachable) and ";" not in text else ""
    return f"{text}{hint}"


_FOR_PROGRAMS = "if it is the right one, pass a context that trusts its authority as tls"


def _trust(runner: RunnerSettings) -> ssl.SSLContext | bool:
    if not (runner.tls_ca_file or runner.tls_cert_file):
        return True
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    where = "tls-ca-file"
    try:
        if runner.tls_ca_file:
            context.load_verify_locations(cafile=runner.tls_ca_file)
        if runner.tls_cert_file:
            where = "tls-cert-file"
            context.load_cert_chain(runner.tls_cert_file, runner.tls_key_file)
    except (OSError, ssl.SSLError) as error:
        named = runner.tls_ca_file if where == "tls-ca-file" else runner.tls_cert_file
        why = error.reason if isinstance(error, ssl.SSLError) else error.strerror
        found = f"{named} cannot be used ({why or 'no certificate is in it'})"
        problem = ConfigProblem(
            path=f"runners.{where}", found=found, hint="name a file in PEM", mistake=Mistake.MISSING_FILE
        )
        raise ConfigError([problem]) from error
    return context
