"""The same jobs on our runner, and on the real gitlab-runner where there is one."""

import re
from pathlib import Path

import pytest

from gitlab_jobs.testing import FakeGitLab
from tests.gitlab_jobs.serving import served
from tests.peers.ours import our_runner
from tests.peers.pipeline import PIPELINE, Cancel, Operator, Planned, played, sections_of, text_of, unstamped
from tests.peers.real import RealRunner

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(400)]

COMPARED = [each for each in PIPELINE if each.name != "large"]
"""All but the one that is only large."""

OTHERWISE = {
    "standard error": "the shell executor reads standard output and error apart, and mixes them up",
    "bytes": "the same bytes, but not in the same pieces",
    "killed": "Go has no exit code for it, and bash says that it was killed where it is not the shell that says it",
    "absent command": "the shell executor's own shell makes 1 of 127, and the script has another name",
    "timeout": "bash says what was terminated",
    "cancelled script": "the same, and so many ticks as there was time for",
    "cancelled after": "it may be stopped in mid line",
    "environment": "compared by itself",
}
"""Jobs whose own lines are not the same, and why."""

OURS_ONLY = {"CI_JOB_TOKEN", "TASKSCALER_INSTANCE", "TASKSCALER_SLOT"}
"""Variables: the first is GitLab's to give."""

THEIRS_ONLY = {"CONFIG_FILE"}
"""Variables, beside those of feature flags."""

WHERE = re.compile("DIR$|CI_CONCURRENT|REVISION|SHORT_TOKEN|VERSION|GITLAB_ENV|HOME|OF_FILE|PWD|PATH|_FILE$")
"""Variables that say which runner it is, and where."""


@pytest.fixture
def anyio_backend() -> str:
    """One is enough: what differs is programs of their own."""
    return "asyncio"


def fake(here: Path) -> FakeGitLab:
    """A GitLab with a directory of its own."""
    here.mkdir()
    return FakeGitLab(here)


async def on_ours(here: Path) -> Operator:
    """Run all on our runner."""
    gitlab = fake(here / "ours")
    async with served(gitlab) as url, our_runner(here / "runner", url, gitlab.runner_token):
        return await played(gitlab, COMPARED)


async def on_the_real_one(real: RealRunner, here: Path) -> Operator:
    """Run all on the real runner."""
    gitlab = fake(here / "theirs")
    async with served(gitlab) as url, real.running(url, gitlab.runner_token):
        return await played(gitlab, COMPARED)


async def test_jobs_of_every_kind(tmp_path: Path) -> None:
    """Each ends on our runner as it is to."""
    operator = await on_ours(tmp_path)
    assert {each.name: found for each in COMPARED if (found := operator.differences(each))} == {}


@pytest.mark.real_runner
async def test_our_logs_beside_the_real_runners(tmp_path: Path) -> None:
    """What a job prints, its sections and what it leaves are the same, but for what is named here."""
    (tmp_path / "real").mkdir()
    real = RealRunner(tmp_path / "real")
    ours = await on_ours(tmp_path)
    theirs = await on_the_real_one(real, tmp_path)
    is_recent = real.version >= (17,)  # older ones show fewer sections, and set fewer variables
    for each in COMPARED:
        if each.cancel and not (real.is_graceful and (real.claims or each.cancel is not Cancel.UNCLAIMED)):
            continue  # older ones learn it later, or otherwise
        assert ours.artifacts(each.name) == theirs.artifacts(each.name)
        assert script_of(log_of(ours, each)) == script_of(log_of(theirs, each)) or each.name in OTHERWISE
        if is_recent and not each.cancel and each.name != "lost dependency":  # which we miss before there is a section
            assert sections(log_of(ours, each)) == sections(log_of(theirs, each)), each.name
    assert differences(variables(ours), variables(theirs)) == {} or not is_recent


def log_of(operator: Operator, planned: Planned) -> bytes:
    """What GitLab has of a job's log."""
    return bytes(operator.stored(planned.name).trace)


def script_of(log: bytes) -> list[str]:
    """What a job's own scripts print."""
    text = b"".join(re.findall(rb"section_start:\d+:step_.*?(?=section_end)", unstamped(log), re.DOTALL))
    return text_of(text).splitlines()[2:]


def sections(log: bytes) -> list[tuple[str, str]]:
    """The sections: those in which nothing is done are not ours, and we clean up before we upload."""
    return sorted(set(sections_of(log)) - {(edge, "archive_cache") for edge in ("start", "end")})


def variables(operator: Operator) -> dict[str, str]:
    """What a job sees."""
    lines = text_of(bytes(operator.stored("environment").trace)).splitlines()
    pairs = [line.partition("=") for line in lines[lines.index("$ env | sort") + 1 :]]
    return {name: value for name, equals, value in pairs if equals}


def differences(ours: dict[str, str], theirs: dict[str, str]) -> dict[str, tuple[str | None, str | None]]:
    """Variables that are not the same, and need to be."""
    given = {name for name in {*ours, *theirs} if not name.startswith("FF_") and not WHERE.search(name)}
    given -= (OURS_ONLY - {*theirs}) | (THEIRS_ONLY - {*ours})
    return {name: (ours.get(name), theirs.get(name)) for name in given if ours.get(name) != theirs.get(name)}
