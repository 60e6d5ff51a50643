"""What a job logs in to registries with: GitLab's logins, and those that its variable DOCKER_AUTH_CONFIG has: pure.

The variable is a file of Docker's, ``config.json``, of which only the logins themselves are read: the programs that
other keys name would run on the manager.
"""

import json
from base64 import b64decode
from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

from gitlab_jobs import Job
from taskscaler_gitlab.runner._errors import JobInvalid

AUTH_CONFIG = "DOCKER_AUTH_CONFIG"

_DOCKER_HUB = "docker.io"
_HUBS = frozenset({"index.docker.io", "registry-1.docker.io", "registry.hub.docker.com", "hub.docker.com"})


@frozen
class Login:
    """A user of a registry."""

    username: str
    password: str = field(repr=False)


def logins_of(job: Job, auth_config: str) -> dict[str, Login]:
    """What a job logs in with, by the registries' hosts; the variable's logins count before GitLab's.

    Raises:
        JobInvalid: The variable is not what it should be; says nothing of what is in it.
    """
    found = {
        each.url: Login(each.username, each.password)
        for each in job.credentials
        if each.type == "registry" and each.url and each.username
    }
    return found | read_auth_config(auth_config)


def read_auth_config(text: str) -> dict[str, Login]:
    """Read the variable; empty if it is.

    Raises:
        JobInvalid: See `logins_of`.
    """
    if not text.strip():
        return {}
    try:
        auths: Any = json.loads(text).get("auths", {})
        logins = {_host(name): _login(entry) for name, entry in auths.items()}
    except (ValueError, AttributeError, TypeError, RecursionError):
        raise JobInvalid(
            f'{AUTH_CONFIG}: expected JSON such as {{"auths": {{"registry.example.com": {{"auth": "…"}}}}}}, with'
            " `user:password` as Base64, found something else"
        ) from None
    return {host: login for host, login in logins.items() if login.username}


def _host(name: str) -> str:
    host = name.partition("://")[2] or name
    host = host.partition("/")[0]
    return _DOCKER_HUB if host in _HUBS else host


def _login(entry: Mapping[str, str]) -> Login:
    username, _, password = b64decode(entry.get("auth") or "", validate=True).decode().partition(":")
    return Login(str(entry.get("username") or username), str(entry.get("password") or password))
