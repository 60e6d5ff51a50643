"""Repositories and servers that mean no good: what they say of files, what they never end, and who hears of a login."""

import base64
import os
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.abc import ByteStream, SocketAttribute
from anyio.streams.buffered import BufferedByteReceiveStream

from job_steps import Status
from job_steps._git import Repositories
from job_steps._process import Ended
from job_steps._references import GitReference
from job_steps._results import Resources
from tests.job_steps.running import ENV, Project
from tests.job_steps.test_git import Repository, says

pytestmark = pytest.mark.anyio

FUNCTION = says("one")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """Return a repository that has no commit yet."""
    (tmp_path / "repository").mkdir()
    found = Repository(tmp_path / "repository")
    found.git("init", "--quiet", "--initial-branch=main")
    return found


def configured(settings: Mapping[str, str]) -> dict[str, str]:
    """Give git settings, as whoever runs steps may have them."""
    env = {"GIT_CONFIG_COUNT": str(len(settings))}
    for number, (key, value) in enumerate(settings.items()):
        env |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return env


async def test_a_file_is_what_the_commit_has_byte_by_byte(project: Project, repository: Repository) -> None:
    """A repository could make it fifty times bigger than it was counted, or have programs run that are set up here."""
    (repository.directory / ".gitattributes").write_text(
        "* ident\n*.txt text eol=crlf working-tree-encoding=UTF-32\n*.bin filter=here\n"
    )
    files = {"a": b"$Id$\n" * 100, "b.bin": b"x\n", "name\u0085, 1 2 3": b"\n"}
    for name, data in files.items():
        (repository.directory / name).write_bytes(data)
    hooks = project.directory / "hooks"
    hooks.mkdir()
    for name in ("post-checkout", "post-index-change", "reference-transaction"):
        (hooks / name).write_text(f"#!/bin/sh\ntouch {project.directory}/ran\n")
        (hooks / name).chmod(0o755)
    repository.commit(steps=FUNCTION)
    (repository.directory / "c.txt").write_bytes(b"\n" * 100)  # an encoding that it does not have when it is added
    blob = repository.git("hash-object", "-w", "--no-filters", "c.txt")
    repository.git("update-index", "--add", "--cacheinfo", f"100644,{blob},c.txt")
    repository.git("commit", "--quiet", "--message", "x")
    here = {
        "core.autocrlf": "true",
        "core.hooksPath": str(hooks),
        "core.quotePath": "false",
        "filter.here.smudge": f"touch {project.directory}/ran; cat",
        "submodule.recurse": "true",
    }
    cache = project.directory / "cache"
    result = await project.run(f"- {{name: a, func: '{repository.url}@main'}}\n", env=configured(here), cache=cache)
    assert result.error is None
    (found,) = cache.glob("*/*/")
    assert {name: (found / name).read_bytes() for name in files} == files
    assert (found / "c.txt").read_bytes() == b"\n" * 100
    assert not (project.directory / "ran").exists()


async def test_a_link_beside_a_function_does_not_lead_to_what_nobody_has_allowed(
    project: Project, repository: Repository
) -> None:
    """A repository that is allowed is so with what it has, not with what it points at."""
    (repository.directory / "steps").mkdir()
    (repository.directory / "steps" / "away").symlink_to(project.directory / "echo")
    (repository.directory / "steps" / "near").symlink_to("../f")
    call = "spec:\n---\nrun: [{{name: in, func: ./{}}}]\n"
    repository.commit(steps__a=call.format("../away"), steps__b=call.format("../near"), f=FUNCTION)
    result = await project.run(f"- {{name: a, func: '{repository.url}/-/b@main'}}\n")
    assert result.error is None
    result = await project.run(f"- {{name: a, func: '{repository.url}/-/a@main'}}\n")
    assert str(result.error).endswith("steps/away/func.yml` leads out of where the function comes from")


async def test_a_tree_that_leads_out_of_its_directory_is_not_written(project: Project, repository: Repository) -> None:
    """Nor one that has a directory for git itself."""
    repository.commit(steps=FUNCTION)
    blob = repository.git("hash-object", "-w", "steps/func.yml")
    cache = project.directory / "cache"
    for name in ("..", ".git"):
        inner = tree(repository, [("100644", "escaped", blob)])
        commit = repository.git("commit-tree", "-m", "x", tree(repository, [("40000", name, inner)]))
        repository.git("update-ref", f"refs/heads/b{len(name)}", commit)
        result = await project.run(f"- {{name: a, func: '{repository.url}@b{len(name)}'}}\n", cache=cache)
        assert f"error: invalid path '{name}/escaped'" in str(result.error)
    assert list(cache.rglob("escaped")) == []


def tree(repository: Repository, entries: Sequence[tuple[str, str, str]]) -> str:
    """Write a tree as git itself would not; returns its name."""
    data = b"".join(f"{mode} {name}\0".encode() + bytes.fromhex(each) for mode, name, each in entries)
    command = ["git", "-C", str(repository.directory), "hash-object", "-w", "-t", "tree", "--stdin", "--literally"]
    return subprocess.run(command, input=data, check=True, capture_output=True).stdout.decode().strip()


async def test_a_small_tree_of_ten_billion_files_is_refused(
    project: Project, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten names for one tree, ten times inside one another."""
    monkeypatch.setattr("job_steps._git._MAX_OUTPUT", 1_000_000)
    repository.commit(steps=FUNCTION)
    inner = repository.git("rev-parse", "HEAD^{tree}")
    for _ in range(10):
        inner = tree(repository, [("40000", f"d{number}", inner) for number in range(10)])
    repository.git("update-ref", "refs/heads/bomb", repository.git("commit-tree", "-m", "x", inner))
    result = await project.run(f"- {{name: a, func: '{repository.url}@bomb'}}\n")
    assert "git says more than 1000000 bytes about" in str(result.error)


async def test_what_is_too_big_to_be_fetched_is_called_so(
    project: Project, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Git itself says that a program of its has died."""
    monkeypatch.setattr("job_steps._git.MAX_SIZE", 200_000)
    for count, size in ((1, 400_000), (150, 4_000)):  # few files are unpacked when they come, many stay packed
        for number in range(count):
            (repository.directory / f"random{number}").write_bytes(os.urandom(size))
        repository.commit(steps=FUNCTION)
        result = await project.run(f"- {{name: a, func: '{repository.url}@main'}}\n")
        assert "has more than 200000 bytes, packed or in one file; it is not fetched" in str(result.error)
        repository.git("rm", "--quiet", "random*")


async def test_a_server_that_dribbles_costs_what_it_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Sixteen megabytes, 64 bytes at a time: each was added to the sum of all before it, which took hours."""

    async def dribble(*_: object, sink: Callable[[bytes], Awaitable[None]], **__: object) -> Ended:
        for _number in range(1 << 18):
            await sink(b"x" * 63 + b"\n")
        return Ended(1, Resources())

    monkeypatch.setattr("job_steps._git.run_command", dribble)
    with pytest.raises(Exception, match="cannot be fetched; git ended with exit status 1: xxxxxxxxxxxxxxx"):
        await Repositories(tmp_path, ENV).fetch(GitReference("https://host/x", "main"))


# --- what logs in -------------------------------------------------------------------------------------------


@asynccontextmanager
async def git_over_http(repository: Repository, user: str, password: str) -> AsyncIterator[tuple[str, list[str]]]:
    """Serve a repository to who logs in; gives where, and which programs here had the password in their arguments."""
    seen: list[str] = []
    wanted = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()

    async def answer(stream: ByteStream) -> None:
        async with stream:
            reading = BufferedByteReceiveStream(stream)
            head = (await reading.receive_until(b"\r\n\r\n", 65536)).decode().split("\r\n")
            method, target, _ = head[0].split(" ")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
            body = await reading.receive_exactly(int(headers.get("content-length", 0)))
            seen.extend(arguments_with(password))
            if headers.get("authorization") != wanted:
                refused = "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic realm=x\r\nContent-Length: 0\r\n"
                await stream.send(f"{refused}Connection: close\r\n\r\n".encode())
                return
            path, _, query = target.partition("?")
            env = {
                "PATH": ENV["PATH"],
                "GIT_PROJECT_ROOT": str(repository.directory.parent),
                "GIT_HTTP_EXPORT_ALL": "1",
                "GIT_PROTOCOL": headers.get("git-protocol", ""),
                "REQUEST_METHOD": method,
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "CONTENT_TYPE": headers.get("content-type", ""),
                "HTTP_CONTENT_ENCODING": headers.get("content-encoding", ""),
            }
            done = await anyio.run_process(["git", "http-backend"], input=body, env=env)
            await stream.send(b"HTTP/1.1 200 OK\r\nConnection: close\r\n" + done.stdout)

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, answer)
        yield f"127.0.0.1:{listener.extra(SocketAttribute.local_port)}/{repository.directory.name}", seen
        tasks.cancel_scope.cancel()


def arguments_with(text: str) -> list[str]:
    """Look for a text where everybody on this host can: in the arguments of programs."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = path.read_bytes().decode(errors="replace")
        except OSError:  # it has just ended
            continue
        if text in arguments:
            found.append(arguments)
    return found


async def test_a_login_in_an_address_is_in_no_arguments(project: Project, repository: Repository) -> None:
    """And in no log, no result, no file; and what keeps logins here keeps none of a job's."""
    commit = repository.commit(steps=FUNCTION)
    user, password, kept = "me@example.com", "p@ss/w%rd 'Zq7$HOME", project.directory / "kept"
    keep = {"credential.helper": f"store --file={kept}"}
    cache = project.directory / "cache"
    async with git_over_http(repository, user, password) as (place, seen):
        login = "me%40example.com:p%40ss%2Fw%25rd%20%27Zq7%24HOME"
        text = f"- {{name: a, func: 'http://LOGIN@{place}@REV'}}\n"
        for rev in ("main", commit):
            call = text.replace("LOGIN", login).replace("REV", rev)
            result = await project.run(call, env=configured(keep), cache=cache)
            assert result.error is None
            assert project.lines[-1] == "one"
            assert "Zq7" not in f"{result}{project.log.decode()}"
        call = text.replace("LOGIN", "me:wrongZq7").replace("REV", commit)
        result = await project.run(call, env=configured(keep), cache=project.directory)
        assert result.status is Status.FAILURE
        assert f"http://{place}/-/steps@{commit} cannot be fetched; git ended with exit status 128: " in str(result)
        assert "wrongZq7" not in str(result)
    assert seen == []
    assert not kept.exists()


@pytest.mark.parametrize("scheme", ["", "https://", "ssh://"])
async def test_a_revision_that_is_missing_makes_no_password_public(project: Project, scheme: str) -> None:
    """The address up to the `@` of its login looked like one, the rest like its revision; git was asked about that."""
    variables = "{name: a, func: '${{ env.WHERE }}'}"
    for address in ("me:p4ssw0rd@host.invalid/group/name", "me:p4ss/w0rd@host.invalid/group/name"):
        result = await project.run(f"- {variables}\n", env={"WHERE": f"{scheme}{address}"})
        assert "is not a reference to a function; expected" in str(result.error)
        if "p4ssw0rd" in address:
            assert "p4ssw0rd" not in f"{result.error}{project.log.decode()}"
            assert "host.invalid/group/name" in str(result.error)
