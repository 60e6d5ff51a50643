"""Functions from repositories: which commit that is, what is fetched of it, and what is refused."""

import os
import subprocess
from pathlib import Path

import anyio
import pytest
from anyio.abc import ByteStream, SocketAttribute
from attrs import frozen

from job_steps import Origin, Status, Step
from tests.job_steps.running import ENV, Project

pytestmark = pytest.mark.anyio


@frozen
class Repository:
    """A repository on this machine."""

    directory: Path

    @property
    def url(self) -> str:
        """Where steps find it."""
        return f"file://{self.directory}"

    def git(self, *arguments: str) -> str:
        """Run git in it; returns what it prints."""
        env = {
            "PATH": os.environ["PATH"],
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            **{f"GIT_{who}_{what}": "x@y" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
        }
        command = ["git", "-C", str(self.directory), *arguments]
        return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout.strip()

    def commit(self, **files: str) -> str:
        """Write files (`a__b` is `a/b/func.yml`), and commit them; returns the commit."""
        for name, text in files.items():
            path = self.directory / name.replace("__", "/") / "func.yml"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "x")
        return self.git("rev-parse", "HEAD")


def says(text: str) -> str:
    """Write a function that prints a text, and where it is."""
    return f"spec:\n---\nexec: {{command: [echo, {text}]}}\n"


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """Return a repository with three commits: `v1` is the first, `v2` the second, `main` the third."""
    directory = tmp_path / "repository"
    directory.mkdir()
    found = Repository(directory)
    found.git("init", "--quiet", "--initial-branch=main")
    found.commit(steps=says("one"))
    found.git("tag", "v1")
    found.commit(steps=says("two"))
    found.git("tag", "--annotate", "--message", "x", "v2")
    found.git("branch", "other/branch")
    found.commit(steps=says("three"), f=says("f"), steps__g=says("g"))
    return found


async def test_a_revision_is_a_tag_a_branch_or_a_commit(project: Project, repository: Repository) -> None:
    """Annotated tags too; a commit may be older than all of them, and short if one of them is at it."""
    first, tip = repository.git("rev-parse", "v1", "main").split()
    repository.commit(steps=says("four"))
    second = repository.git("rev-parse", "v2^{}")
    repository.git("tag", "--delete", "v1")
    revisions = ["v2", "main", "other/branch", first, tip, second, second[:10]]
    steps = "".join(f"- {{name: s{n}, func: '{repository.url}@{rev}'}}\n" for n, rev in enumerate(revisions))
    result = await project.run(steps)
    assert result.error is None
    assert [line for line in project.lines if "Running" not in line] == [
        "two", "four", "two", "one", "three", "two", "two",
    ]  # fmt: skip
    assert result.steps[0].reference == f"{repository.url}/-/steps@v2"


async def test_a_directory_and_a_file_of_it(project: Project, repository: Repository) -> None:
    """Below `steps` in one text; anywhere with the keys. The history and git's own files do not come along."""
    listing = "spec:\n---\nexec: {command: [ls, -A, '${{ func_dir }}/..']}\n"
    repository.commit(list=listing)
    text = f"""
- {{name: a, func: '{repository.url}/-/g@main'}}
- {{name: b, func: '{repository.url}/-/g/func.yml@main'}}
- {{name: c, func: {{git: {{url: '{repository.url}', rev: main, dir: f}}}}}}
- {{name: d, func: {{git: {{url: '{repository.url}', rev: main, dir: list}}}}}}
"""
    result = await project.run(text)
    assert result.error is None
    assert [line for line in project.lines if "Running" not in line] == ["g", "g", "f", "f", "list", "steps"]


async def test_a_commit_is_fetched_once(project: Project, repository: Repository, tmp_path: Path) -> None:
    """For all runs that share a directory: it needs the server no more, which branches do."""
    commit = repository.git("rev-parse", "main")
    pinned = f"- {{name: a, func: '{repository.url}@{commit}'}}\n"
    cache = tmp_path / "cache"
    assert (await project.run(pinned, cache=cache)).status is Status.SUCCESS
    repository.directory.rename(tmp_path / "away")
    assert (await project.run(pinned, cache=cache)).status is Status.SUCCESS
    result = await project.run(f"- {{name: a, func: '{repository.url}@main'}}\n", cache=cache)
    assert result.error
    assert "cannot be fetched; git ended with exit status 128: fatal:" in result.error
    assert [path.name for path in cache.iterdir() if path.name.startswith("fetch-")] == []
    assert cache.stat().st_mode & 0o077 == 0


async def test_where_steps_come_from_is_known(project: Project, repository: Repository) -> None:
    """A path inside the repository is of the repository, at its commit; one that leaves it is of this machine."""
    outside = project.directory / "echo"
    inner = f"run:\n  - {{name: in, func: ../f}}\n  - {{name: out, func: {outside}, inputs: {{message: m}}}}\n"
    commit = repository.commit(nest=f"spec:\n---\n{inner}", f="spec:\n---\nrun: [{name: x, script: 'true'}]\n")
    asked: list[tuple[str, str, str]] = []

    def admit(_step: Step, path: tuple[str, ...], origin: Origin) -> None:
        asked.append(("/".join(path), origin.kind, origin.name))

    text = f"- {{name: a, func: {{git: {{url: '{repository.url}', rev: main, dir: nest}}}}}}\n"
    result = await project.run(text, admit=admit)
    assert result.error is None
    name = f"{repository.url}@{commit}"
    assert asked == [("a", "job", ""), ("a/in", "git", name), ("a/in/x", "git", name), ("a/out", "git", name)]


@pytest.mark.parametrize(
    ("rev", "error"),
    [
        ("v9", "has no tag and no branch `v9`"),
        ("0123456789abcdef", "has no tag and no branch `0123456789abcdef`; a commit needs all of its digits"),
        ("0" * 40, "cannot be fetched; git ended with exit status"),
        ("--upload-pack=touch bad", "`--upload-pack=touch bad` cannot be a revision; expected a commit, a branch or a"),
        ("main..v1", "`main..v1` cannot be a revision"),
        ("main:f", "`main:f` cannot be a revision"),
        ("x" * 300, "cannot be a revision"),
    ],
)
async def test_a_revision_that_is_not_there(project: Project, repository: Repository, rev: str, error: str) -> None:
    """Nothing that only looks like a revision gets to git."""
    result = await project.run(f"- {{name: a, func: {{git: {{url: '{repository.url}', rev: '{rev}'}}}}}}\n")
    assert result.status is Status.FAILURE
    assert result.error
    assert error in result.error
    assert not (project.directory / "bad").exists()


@pytest.mark.parametrize(
    "url", ["ext::sh -c touch% bad", "--upload-pack=x", "git://127.0.0.1:1/x", "http://me:secret@127.0.0.1:1/x"]
)
async def test_an_address_that_leads_nowhere(project: Project, url: str) -> None:
    """No helper is run, no option is taken from it, and no error has the login in it."""
    result = await project.run(f"- {{name: a, func: {{git: {{url: '{url}', rev: main}}}}}}\n")
    assert result.status is Status.FAILURE
    assert result.error
    assert "cannot be fetched; git ended with exit status 128: fatal:" in result.error
    assert "secret" not in str(result)
    assert not (project.directory / "bad").exists()


async def test_a_link_does_not_lead_out_of_a_repository(project: Project, repository: Repository) -> None:
    """Neither the function's file nor its directory may be somewhere else."""
    (repository.directory / "linked").mkdir()
    (repository.directory / "linked" / "func.yml").symlink_to(project.directory / "echo" / "func.yml")
    (repository.directory / "other").symlink_to(project.directory / "echo")
    repository.commit()
    for name in ("linked", "other"):
        text = f"- {{name: a, func: {{git: {{url: '{repository.url}', rev: main, dir: {name}}}}}}}\n"
        result = await project.run(text)
        assert result.error
        assert result.error.endswith("leads out of where the function comes from")


async def test_a_repository_that_is_too_big_is_refused(
    project: Project, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its files are written; packed, they may be a thousand times smaller."""
    monkeypatch.setattr("job_steps._git.MAX_SIZE", 10_000)
    (repository.directory / "zeros").write_bytes(bytes(20_000))
    repository.commit()
    result = await project.run(f"- {{name: a, func: '{repository.url}@main'}}\n")
    assert result.error
    assert "bytes of files; at most 10000 are fetched" in result.error


async def test_a_branch_that_is_called_like_a_commit_is_none(project: Project, repository: Repository) -> None:
    """A version of 64 digits is one of a repository with SHA-256: git took it for the name of a branch before."""
    name = "a" * 64
    repository.git("branch", name)
    result = await project.run(f"- {{name: a, func: '{repository.url}@{name}'}}\n")
    assert result.status is Status.FAILURE
    assert "cannot be fetched" in str(result.error)


async def test_a_job_does_not_say_where_git_gets_what_a_policy_allows(
    project: Project, repository: Repository, tmp_path: Path
) -> None:
    """Nor which git that is, if whoever runs the steps has an environment of their own."""
    evil = Repository(tmp_path / "evil")
    evil.directory.mkdir()
    evil.git("init", "--quiet", "--initial-branch=main")
    evil.commit(steps=says("evil"))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "git").symlink_to("/bin/false")
    instead = {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{evil.url}.insteadOf",
        "GIT_CONFIG_VALUE_0": repository.url,
    }
    for env in (instead, {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}):
        project.log.clear()
        result = await project.run(f"- {{name: a, func: '{repository.url}@v1'}}\n", env=env, own_env=ENV)
        assert result.error is None
        assert project.lines[-1] == "one"


@pytest.mark.parametrize(("path", "asked"), [("moved", ["moved", "moved.git"]), ("moved.git", ["moved.git"])])
async def test_a_server_cannot_send_git_elsewhere(project: Project, path: str, asked: list[str]) -> None:
    """What a policy has looked at is the address: another one, with `.git` behind it, is the only one that is tried."""
    found = []

    async def answer(stream: ByteStream) -> None:
        async with stream:
            request = await stream.receive()
            found.append(request.split(b"/info/refs", 1)[0].decode().removeprefix("GET /"))
            lines = ["HTTP/1.1 302 Found", "Location: /other/info/refs", "Content-Length: 0", "Connection: close"]
            await stream.send("\r\n".join([*lines, "", ""]).encode())

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, answer)
        port = listener.extra(SocketAttribute.local_port)
        result = await project.run(f"- {{name: a, func: 'http://127.0.0.1:{port}/{path}@v1'}}\n")
        tasks.cancel_scope.cancel()
    assert found == asked
    assert "redirects to another address; write the one that it has now" in str(result.error)
