"""What the driver of the custom executor makes of what gitlab-runner says, and what it does about a slot: pure."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fleeting.errors import WrongArguments
from taskscaler.cli.job_slot import Standing
from taskscaler_gitlab.custom._contract import (
    Codes,
    JobsMistake,
    called_for,
    choose,
    codes_of,
    configuration,
    ending,
    fleets_of,
    shell_for,
)
from taskscaler_gitlab.custom._moves import Move, Part, decide, why_not

ENV = {"CUSTOM_ENV_CI_JOB_ID": "17", "JOB_RESPONSE_FILE": "/tmp/response.json"}  # noqa: S108  (a name)
RESPONSE = b'{"id": 17, "token": "glcbt-secret", "variables": []}'
JOBS_OWN = st.dictionaries(st.text(max_size=20).map(lambda name: f"CUSTOM_ENV_{name}"), st.text(max_size=20))
"""Variables that whoever writes a job may write."""


# --- the slot --------------------------------------------------------------------------------------------

AFTER: dict[Move, Standing] = {
    Move.ACQUIRE: Standing.HELD,
    Move.TAKE_UP: Standing.USED,
    Move.WORK: Standing.USED,
    Move.GIVE_BACK: Standing.NONE,
}
LEFT = {Standing.HELD: Standing.KEPT, Standing.USED: Standing.KEPT}
"""Once the process has done its part."""

KILLED = {Standing.HELD: Standing.GOING, Standing.USED: Standing.KEPT}
"""Once it was killed."""

BY_ITSELF = {Standing.GOING: Standing.NONE, Standing.KEPT: Standing.NONE}
"""What the daemon does once it has noticed, or the slot's time is over."""


class AJob(RuleBasedStateMachine):
    """What is called, killed or lost in whatever order: a script runs in a kept slot only, and no slot stays."""

    def __init__(self) -> None:
        """Nothing was called yet."""
        super().__init__()
        self.standing, self.is_running = Standing.NONE, False

    @rule(part=st.sampled_from(Part))
    def is_called_for(self, part: Part) -> None:
        """A process begins, and does what it decides."""
        move = decide(part, self.standing)
        match move:
            case Move.ACQUIRE:
                assert self.standing in {Standing.NONE, Standing.GOING}  # whose key the daemon refuses until it is gone
            case Move.WORK:
                assert (self.standing, self.is_running) == (Standing.KEPT, False)
            case Move.REFUSE:
                assert "; " in why_not(part, self.standing)
            case Move.NOTHING:
                assert self.standing is not Standing.KEPT
        if move in AFTER:
            self.standing, self.is_running = AFTER[move], move is not Move.GIVE_BACK

    @rule()
    def is_lost(self) -> None:
        """The instance is gone."""
        self.standing, self.is_running = Standing.NONE, False

    @rule()
    def is_over(self) -> None:
        """The process has done its part."""
        if self.is_running:
            self.standing, self.is_running = LEFT[self.standing], False

    @rule()
    def is_killed(self) -> None:
        """The process was."""
        if self.is_running:
            self.standing, self.is_running = KILLED[self.standing], False

    @rule()
    def is_left_alone(self) -> None:
        """For long enough that the daemon does what it does by itself."""
        if not self.is_running:
            self.standing = BY_ITSELF.get(self.standing, self.standing)

    @invariant()
    def goes_back(self) -> None:
        """Also if everything is killed now, and nobody calls the cleanup."""
        left = KILLED[self.standing] if self.is_running else self.standing
        assert BY_ITSELF.get(left, left) is Standing.NONE


TestAJob = AJob.TestCase


# --- what gitlab-runner wants to hear --------------------------------------------------------------------


@given(status=st.integers(0, 255), build=st.integers(1, 255), wants=st.booleans())
def test_what_a_script_ends_with_is_never_our_failure(status: int, build: int, wants: bool) -> None:  # noqa: FBT001
    """It is a success, or the job's failure, with the script's own status where that is wanted."""
    codes = Codes(build=build, system=build % 255 + 1, file=Path("code") if wants else None)
    code, said = ending(status, codes)
    assert code == (build if status else 0)
    assert said == (str(status) if status and wants else None)


@pytest.mark.parametrize(
    ("env", "codes"),
    [
        ({}, (1, 2)),
        ({"BUILD_FAILURE_EXIT_CODE": "3", "SYSTEM_FAILURE_EXIT_CODE": "4"}, (3, 4)),
        ({"BUILD_FAILURE_EXIT_CODE": "0", "SYSTEM_FAILURE_EXIT_CODE": "256"}, (1, 2)),
        ({"BUILD_FAILURE_EXIT_CODE": "", "SYSTEM_FAILURE_EXIT_CODE": "-1"}, (1, 2)),
        ({"CUSTOM_ENV_BUILD_FAILURE_EXIT_CODE": "0"}, (1, 2)),
    ],
)
def test_the_exit_statuses_are_gitlab_runners(env: dict[str, str], codes: tuple[int, int]) -> None:
    """As it names them; what cannot be one is not taken for one."""
    found = codes_of(env)
    assert (found.build, found.system) == codes


# --- which job, which fleet ------------------------------------------------------------------------------


@given(own=JOBS_OWN)
def test_no_variable_of_a_job_makes_it_another(own: dict[str, str]) -> None:
    """Its slot is its own, or it is refused as the job's mistake."""
    try:
        found = called_for({**ENV, **own}, RESPONSE)
    except JobsMistake:
        assert own["CUSTOM_ENV_CI_JOB_ID"] != "17"
    else:
        assert found.key == called_for(ENV, RESPONSE).key
        assert "secret" not in f"{found} {found.key}"


def test_a_job_need_not_say_its_number() -> None:
    """The file has it."""
    assert called_for({"JOB_RESPONSE_FILE": "/x"}, RESPONSE).id == 17


def test_jobs_of_two_gitlabs_have_two_slots() -> None:
    """Both may have a job of this number; GitLab gives each a token of its own."""
    other = called_for(ENV, b'{"id": 17, "token": "another"}')
    assert other.key != called_for(ENV, RESPONSE).key
    assert other.key.startswith("gitlab-17-")


@pytest.mark.parametrize(
    "response", [b"", b"[]", b'{"id": "17", "token": "x"}', b'{"id": 17}', b'{"id": 0, "token": "x"}']
)
def test_a_file_without_a_job_is_refused(response: bytes) -> None:
    """Nobody knows then whose slot it would be."""
    with pytest.raises(WrongArguments, match=r"has no job of GitLab's"):
        called_for(ENV, response)


@given(own=JOBS_OWN, socket=st.sampled_from((None, "/own.sock")), number=st.integers(0, 2))
def test_a_job_gets_no_socket_that_the_operator_has_not_named(
    own: dict[str, str], socket: str | None, number: int
) -> None:
    """Whatever its variables say."""
    fleets = {name: f"/{name}.sock" for name in ("small", "gpu")[:number]}
    try:
        found = choose({**ENV, **own}, fleets, socket)
    except JobsMistake:
        assert own["CUSTOM_ENV_TASKSCALER_FLEET"]
    else:
        assert found in {socket, *fleets.values()} | ({None} if socket is None and not fleets else set())


def test_a_job_chooses_among_the_fleets_that_are_offered() -> None:
    """By name; without a choice it gets the socket, or else the first."""
    fleets = fleets_of(("small=/run/small.sock", "gpu=/run/gpu=1.sock"))
    assert fleets == {"small": "/run/small.sock", "gpu": "/run/gpu=1.sock"}
    chosen = {"CUSTOM_ENV_TASKSCALER_FLEET": "gpu"}
    assert choose(chosen, fleets, None) == "/run/gpu=1.sock"
    assert choose({}, fleets, None) == "/run/small.sock"
    assert choose({"CUSTOM_ENV_TASKSCALER_FLEET": ""}, fleets, "/run/other.sock") == "/run/other.sock"
    with pytest.raises(JobsMistake, match=r"asks for the fleet 'gpus' in TASKSCALER_FLEET.*; did you mean 'gpu'\?"):
        choose({"CUSTOM_ENV_TASKSCALER_FLEET": "gpus"}, fleets, None)
    with pytest.raises(JobsMistake, match=r"offers no choice; remove the variable"):
        choose(chosen, {}, "/run/other.sock")


@pytest.mark.parametrize("wrong", ["gpu", "=x", "gpu=", "a b=x", "gpu=x gpu=y"])
def test_a_fleet_that_is_not_one_is_refused(wrong: str) -> None:
    """And what was expected is said."""
    given_ = tuple(wrong.split(" ")) if wrong.count("=") > 1 else (wrong,)
    with pytest.raises(WrongArguments, match=r"--fleet: .*NAME=SOCKET|--fleet: two are called 'gpu'"):
        fleets_of(given_)


def test_what_jobs_share_is_said_to_be_shared() -> None:
    """Slots of one instance have the same directories, and the calls that follow learn where the fleet is."""
    said = configuration(socket=Path("/s"), builds_dir="/b", cache_dir="/c", shell="bash", version="1")  # noqa: S604  (no subprocess's)
    assert said["builds_dir_is_shared"] is True
    assert said["job_env"] == {"TASKSCALER_SOCKET": "/s", "TASKSCALER_SHELL": "bash"}


@pytest.mark.parametrize(
    ("script", "shell"),
    [
        (b"#!/usr/bin/env bash\n\ntrap exit 1 TERM\n", "bash"),
        (b"#!/usr/bin/env sh\n\n", "sh"),
        (b"#!/bin/bash\n", "bash"),
    ],
)
def test_a_script_says_what_runs_it(script: bytes, shell: str) -> None:
    """In its first line, as gitlab-runner writes it."""
    assert shell_for(script) == shell


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (b"#!/usr/bin/env pwsh\n", "the script is for 'pwsh'; set shell = \"bash\""),
        (b"$ErrorActionPreference = 1\n", "does not say which shell it is for; set shell"),
        (b"", "does not say which shell"),
        (b"#!/usr/bin/env \xff\x1b[31m\n", "the script is for "),
    ],
)
def test_a_script_that_nothing_runs_is_refused(script: bytes, why: str) -> None:
    """With what to set."""
    with pytest.raises(WrongArguments, match=r"set shell") as caught:
        shell_for(script)
    assert why in str(caught.value)
    assert str(caught.value).isprintable()
