"""What jobs in containers log in to registries with."""

import json
from base64 import b64encode

import pytest

from gitlab_jobs import Credential, Job, Variable
from taskscaler_gitlab import RunnerSettings
from taskscaler_gitlab.runner._containers import docker_options
from taskscaler_gitlab.runner._errors import JobInvalid
from taskscaler_gitlab.runner._logins import Login, logins_of
from taskscaler_gitlab.runner._plan import Leg
from taskscaler_gitlab.runner._surroundings import container_of, surroundings_of
from taskscaler_gitlab.runner._variables import environment_of
from tests.taskscaler_gitlab.desks import script


def auths(**more: object) -> str:
    """A file of Docker's, with a login for a registry."""
    login = {"auth": b64encode(b"user:a-long:password").decode()}
    return json.dumps({"auths": {"registry.example.com:5000": login, **more}, "credsStore": "evil"})


JOB = Job(
    id=1,
    token="t",
    credentials=(
        Credential(type="registry", url="registry.example.com:5000", username="gitlab", password="x"),
        Credential(type="registry", url="gitlab.example.com", username="gitlab", password="y"),
    ),
)


def test_the_jobs_own_logins_count_first() -> None:
    """Before GitLab's, and beside them."""
    assert logins_of(JOB, auths()) == {
        "registry.example.com:5000": Login("user", "a-long:password"),
        "gitlab.example.com": Login("gitlab", "y"),
    }
    assert logins_of(JOB, " ")["registry.example.com:5000"].username == "gitlab"


@pytest.mark.parametrize(
    ("name", "host"),
    [
        ("https://index.docker.io/v1/", "docker.io"),
        ("docker.io", "docker.io"),
        ("https://r.example.com/v2/", "r.example.com"),
    ],
)
def test_registries_have_many_names(name: str, host: str) -> None:
    """Docker's own file has addresses, and one registry several."""
    found = logins_of(Job(id=1, token="t"), json.dumps({"auths": {name: {"username": "u", "password": "p"}}}))
    assert found == {host: Login("u", "p")}


@pytest.mark.parametrize(
    "text",
    [
        "secret", "[]", "null", '{"auths": []}', '{"auths": {"a": "secret"}}', '{"auths": {"a": {"auth": "secret!"}}}',
        '{"auths": {"a": {"auth": 1}}}', '{"auths": {"a": {"auth": "/w=="}}}', '{"a":' * 100_000,
    ],
)  # fmt: skip
def test_what_is_no_such_file_is_one_line(text: str) -> None:
    """It says what was expected, and nothing of what was found."""
    with pytest.raises(JobInvalid, match="DOCKER_AUTH_CONFIG: expected JSON such as") as caught:
        logins_of(JOB, text)
    assert "secret" not in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_container_gets_them_and_no_log_shows_them() -> None:
    """From the variable to what the executor is asked for; its passwords are masked."""
    job = script("true", variables=(Variable(key="DOCKER_AUTH_CONFIG", value=auths(), raw=True),))
    settings = RunnerSettings(url="https://gitlab.example.com", token="glrt-0123456789", executor="docker")
    around = surroundings_of(job, settings, instance="i-1", slot=0, home="", architecture="")
    environment = environment_of(job, settings, around.place)
    assert "a-long:password" in environment.phrases
    options = docker_options(container_of(job, settings, environment, around, Leg.ALL))
    registries = options.registries  # type: ignore[attr-defined]
    assert registries["registry.example.com:5000"].password == "a-long:password"
    assert "a-long" not in repr(options)
