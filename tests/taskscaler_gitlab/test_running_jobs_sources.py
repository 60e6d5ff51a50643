"""GitLab's jobs with sources, from a job's payload to its script, with a real repository."""

import base64
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from anyio import to_thread
from attrs import evolve

from gitlab_jobs import Hook, Job, JobInfo, Variable
from taskscaler_gitlab import CustomBuildDir
from tests.taskscaler_gitlab.desks import Desk, desk_on, script
from tests.taskscaler_gitlab.projects import Project, Server

pytestmark = pytest.mark.anyio


@pytest.fixture
async def desk(tmp_path: Path, server: Server) -> AsyncIterator[Desk]:
    """A GitLab and an instance; the GitLab's own git is the server."""
    (tmp_path / "desk").mkdir()
    async with desk_on(tmp_path / "desk") as made:
        yield evolve(made, settings=evolve(made.settings, clone_url=server.url))


def of(project: Project, sha: str, *lines: str, **variables: str) -> Job:
    """A job of a project, with a script."""
    wanted = project.job(sha, depth=20, **variables)
    info = JobInfo(name="a job", project_id=7, project_full_path=project.path)
    return evolve(
        script(*lines), git_info=wanted.git_info, variables=wanted.variables, job_info=info, allow_git_fetch=True
    )


async def run(desk: Desk, server: Server, job: Job) -> tuple[str, str]:
    """Run a job; returns its state and its log."""
    taken = await desk.take(job)
    server.allow(taken.token)
    await desk.carry_out(taken)
    ended = await desk.gitlab.ended(taken.id)
    return ended.state.value, desk.log(ended)


async def test_a_script_has_its_sources(desk: Desk, server: Server, project: Project, tmp_path: Path) -> None:
    """Cloned by the first job and fetched by the second, with hooks around, and the token nowhere to be seen."""
    sha = await to_thread.run_sync(project.commit, {"a": "one"})
    secret = Variable(key="SECRET", value="s3cret-value", masked=True)
    hooks = (Hook(name="post_get_sources_script", script=("echo hook $(cat a)",)),)
    job = of(
        project, sha, "echo script $(cat a) $SECRET", "git fetch -q origin main && echo fetched", "env | grep TOKEN"
    )
    job = evolve(job, hooks=hooks, variables=(*job.variables, secret))
    with server.watching() as seen:
        state, log = await run(desk, server, job)
        assert state == "success", log
        assert [
            each for each in ("hook one", "script one [MASKED]", "fetched", "CI_JOB_TOKEN=[MASKED]") if each not in log
        ] == []
        later = await to_thread.run_sync(project.commit, {"a": "two"})
        job = of(project, later, "echo script $(cat a)", "ls", GIT_SUBMODULE_STRATEGY="recursive")
        state, log = await run(desk, server, job)
        assert (state, "script two" in log) == ("success", True), log
        processes = seen.read_bytes()
    tokens = [token.encode() for token in (server.root / "tokens").read_text().splitlines()]
    left = [place for place in (tmp_path / "desk" / "group").rglob("*") if place.is_file() and not place.is_symlink()]
    assert left
    assert [str(place) for place in left if any(token in place.read_bytes() for token in tokens)] == []
    assert not any(token in processes for token in tokens)
    assert not any(token.decode() in log for token in tokens)


async def test_git_that_prints_its_headers_shows_no_token(desk: Desk, server: Server, project: Project) -> None:
    """The form that HTTP has it in is hidden as well."""
    sha = await to_thread.run_sync(project.commit, {"a": "one"})
    job = of(project, sha, "git fetch -q", GIT_TRACE_CURL="1", GIT_TRACE_REDACT="0", GIT_TRACE_CURL_NO_DATA="1")
    state, log = await run(desk, server, job)
    assert state == "success", log
    assert "authorization: basic [masked]" in log.lower()
    token = (server.root / "tokens").read_text().splitlines()[-1]
    assert base64.b64encode(f"gitlab-ci-token:{token}".encode()).decode() not in log


async def test_without_sources_the_script_does_not_run(desk: Desk, server: Server, project: Project) -> None:
    """A commit that is not there fails the job, after as many attempts as it wants, and says what git said."""
    await to_thread.run_sync(project.commit, {"a": "one"})
    state, log = await run(desk, server, of(project, "0" * 40, "echo the script", GET_SOURCES_ATTEMPTS="2"))
    assert state == "failed"
    assert log.count("Checking out 00000000 as detached HEAD (ref is main)...") == 2
    assert "Deleting tracked and untracked files..." in log
    assert "the script" not in log


async def test_what_is_wrong_with_a_job_is_in_its_log(desk: Desk, server: Server, project: Project) -> None:
    """In one line, with secrets hidden."""
    sha = await to_thread.run_sync(project.commit, {"a": "one"})
    job = of(project, sha, "true", GIT_STRATEGY="$SECRET", GIT_SUBMODULE_STRATEGY="some")
    secret = Variable(key="SECRET", value="s3cret-value", masked=True)
    state, log = await run(desk, server, evolve(job, variables=(*job.variables, secret)))
    assert state == "failed"
    assert "GIT_SUBMODULE_STRATEGY: expected none, normal or recursive, found 'some'" in log
    job = of(project, sha, "true", GIT_STRATEGY="$SECRET")
    state, log = await run(
        desk, server, evolve(job, variables=(*job.variables, secret, Variable(key="A;B", value="x")))
    )
    assert state == "success", log
    assert "GIT_STRATEGY: expected one of clone, fetch, none, empty, found '[MASKED]'; fetch is used instead" in log
    assert "variable 'A;B': not exported" in log


async def test_a_directory_of_the_jobs_choice(desk: Desk, server: Server, project: Project) -> None:
    """The script is in it, unless the runner lets nobody choose one: then a line in the log says so."""
    sha = await to_thread.run_sync(project.commit, {"a": "one"})
    job = of(project, sha, "pwd; cat a", GIT_CLONE_PATH="$CI_BUILDS_DIR/chosen-$CI_CONCURRENT_ID")
    state, log = await run(desk, server, job)
    assert (state, "/chosen-0\none" in log.replace("\r", "")) == ("success", True), log
    strict = evolve(desk.settings, custom_build_dir=CustomBuildDir(enabled=False))
    state, log = await run(evolve(desk, settings=strict), server, job)
    assert (state, "GIT_CLONE_PATH: this runner does not let jobs choose a directory" in log) == ("failed", True), log
