"""Containers by Docker's command: each with an agent in it, whose input and output are the command's.

The command, not the engine's socket: it finds the engine as its users have set it up (contexts, `DOCKER_HOST`), and
logs in at registries with what it keeps and by its helpers; Podman has the same. When it ends, or the agent that has
started it is killed, the engine closes the input of the agent in the container, which ends then, and the container with
it. What is left nevertheless is found by a label.
"""

import os
import re
import secrets
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

import anyio
from anyio import to_thread
from anyio.abc import ByteReceiveStream, ByteSendStream, Process
from anyio.streams.buffered import BufferedByteReceiveStream
from attrs import define, field

from job_steps._delegation import MAX_AROUND, MAX_MESSAGE, Child, Message, decoded, encoded
from job_steps._errors import NotLoaded, StepFailed
from job_steps._git import MAX_SIZE
from job_steps._groups import beside
from job_steps._limits import NO_LIMITS, Limits
from job_steps._process import run_command
from job_steps._references import ImageReference
from job_steps._removing import remove_tree
from job_steps._sizes import in_units

LABEL: Final = "job-steps.job"
"""Of each container; its value is the mark of the job."""

PULL_TIMEOUT: Final = 1800.0
"""Seconds for an image to be pulled."""

COPY_TIMEOUT: Final = 300.0
"""Seconds for the files of an image to be copied."""

COMMAND_TIMEOUT: Final = 60.0
"""Seconds for what Docker does at once."""

REMOVE_TIMEOUT: Final = 30.0
"""Seconds for containers to be removed; what is there then is removed when the job is closed."""

END_TIMEOUT: Final = 5.0
"""Seconds between closing the input of an agent in a container, and removing that: its commands have 2 to end."""

AGENTS_MEMORY: Final = 64 << 20
"""Bytes of memory that an agent in a container may have beside its command: it has some 35 MiB."""

AGENT: Final = "/.job-steps/agent.pyz"
"""Where it is in containers."""

PYTHONS: Final = (
    "python3",
    *(f"python3.{minor}" for minor in range(19, 9, -1)),
    "python",
    "/usr/libexec/platform-python",
)
"""What is looked for there, in this order."""

_NO_PYTHON: Final = 93
"""The exit status of a container without."""

_START: Final = f"""
found=
for each; do
    python=$(command -v "$each") || continue
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && exec "$python" -I {AGENT} inside
    found="$found${{found:+, }}$("$python" -V 2>&1)"
done
echo "$found" >&2
exit {_NO_PYTHON}
"""

_IMAGE: Final = re.compile(r"^sha256:(?P<id>[0-9a-f]{1,64}) (?P<size>[0-9]{1,18})$", re.MULTILINE)
_CONTAINER: Final = re.compile(r"^[0-9a-f]{64}$", re.MULTILINE)
"""An id: in between, the command may warn of something, and of a long list there is the end alone."""

_ROUNDS: Final = 100
"""In how many pieces containers that are left are removed: each has a hundred."""

_HEARD: Final = 8 << 10
"""Bytes that are kept of what the command says on its standard error, the last ones."""

_REFUSED, _NOT_STARTED, _KILLED = 125, (126, 127), 137
"""How Docker's command ends if the engine refuses, if there is no such program in the image, and if that was killed."""


@define
class Docker:
    """Makes containers for the steps of one job, on this host's engine."""

    agent: Path
    """The zipapp, here."""
    mark: str
    """Of the job."""
    work_dir: str
    """The job's directory, which containers have at the same place, and begin in."""
    env: Mapping[str, str] = field(factory=lambda: dict(os.environ), repr=False)
    """Of Docker's command."""
    note: Path | None = None
    """A file that is made before the first container is: whoever cleans up sees that there may be some."""
    _keeps_memory: bool | None = field(init=False, default=None)
    """Whether the engine can limit memory; None: nobody has asked it yet."""

    async def files_of(self, image: ImageReference, directory: Path) -> Path:
        """See `Containers.files_of`: they are copied out of a container that is never started."""
        await have_image(image, self.env)
        code, said = await _docker("image", "inspect", "--format", "{{.Id}} {{.Size}}", str(image), env=self.env)
        found = _IMAGE.search(said)
        if code or not found:
            raise NotLoaded(f"the image {image} cannot be looked at: {_last(said)}")
        if int(found["size"]) > MAX_SIZE:
            raise NotLoaded(f"{image} has {found['size']} bytes of files; at most {MAX_SIZE} are fetched")
        place = directory / found["id"]
        if not await to_thread.run_sync(place.is_dir):
            await self._copy(image, f"sha256:{found['id']}", directory, place)
        return place

    async def _copy(self, image: ImageReference, id_: str, directory: Path, place: Path) -> None:
        """Copy the files of an image into place, all at once: of the one that was looked at, whatever its name is now.

        Some engines count an image packed, which may be a thousandth of its files: those are counted before.
        """
        await self._note()
        base = await to_thread.run_sync(_new_directory, directory)
        name = f"job-steps-{secrets.token_hex(8)}"
        try:
            label = f"{LABEL}={self.mark}"
            too_big = f"{image} has more than {MAX_SIZE} bytes of files; it is not fetched"
            make = ("create", "--pull", "never", "--name", name, "--label", label, id_, "none")
            count, copy = (("cp", f"{name}:/.", target) for target in ("-", str(base)))
            for command, most in ((make, 0), (count, MAX_SIZE), (copy, 0)):
                code, said = await _docker(*command, env=self.env, timeout=COPY_TIMEOUT, most=most, too_much=too_big)
                if code:
                    raise NotLoaded(f"the files of the image {image} cannot be fetched: {_last(said)}")
            await to_thread.run_sync(_put, base, place)
        finally:
            with anyio.CancelScope(shield=True):
                await _removed((name,), self.env)
                await to_thread.run_sync(remove_tree, base)

    async def _note(self) -> None:
        try:
            if self.note:
                await to_thread.run_sync(partial(self.note.touch, mode=0o600))
        except OSError as error:  # a disk is full; or the job has removed what is there
            raise StepFailed(f"that there is a container cannot be written down: {error.strerror or error}") from error

    @asynccontextmanager
    async def open(
        self,
        image: ImageReference,
        path: tuple[str, ...],  # noqa: ARG002  (those who ask others need it)
        *,
        root: str = "",
        limits: Limits = NO_LIMITS,
    ) -> AsyncIterator[Child]:
        """See `Containers.open`."""
        await have_image(image, self.env)
        if limits.memory is not None:
            await self._see_that_memory_is_kept()
        await self._note()
        name = f"job-steps-{secrets.token_hex(8)}"
        command = self._command(name, image, root, limits)
        async with await _started(command, self.env) as process, beside() as tasks:
            child = _Child.behind(process, image, limits)
            tasks.start_soon(child.listen)
            try:
                yield child
            finally:
                with anyio.CancelScope(shield=True):
                    if not await child.end():
                        await _removed((name,), self.env)
                        await child.abandon()

    async def _see_that_memory_is_kept(self) -> None:
        """Ask the engine whether it can: one that cannot only warns, and makes a container without the limit."""
        if self._keeps_memory is None:
            code, said = await _docker("info", "--format", "{{.MemoryLimit}}", env=self.env)
            if code:
                raise StepFailed(f"the engine does not say whether it can limit memory: {_last(said)}")
            self._keeps_memory = _last(said) == "true"
        if not self._keeps_memory:
            raise StepFailed(
                "the limit `memory` cannot be kept in a container here, so it is not started: this engine cannot limit"
                " memory, for which its host needs control groups with the controller `memory`"
            )

    def _command(self, name: str, image: ImageReference, root: str, limits: Limits) -> list[str]:
        """What makes a container, and is its input and output."""
        mounts = [f"type=bind,{_field('source', str(self.agent))},target={AGENT},readonly"]
        mounts.append(f"type=bind,{_field('source', self.work_dir)},{_field('target', self.work_dir)}")
        if root not in ("", "/") and not f"{root}/".startswith(f"{self.work_dir}/"):
            mounts.append(f"type=bind,{_field('source', root)},{_field('target', root)},readonly")
        return [
            *("docker", "run", "--rm", "--init", "--interactive", "--pull", "never"),
            *("--name", name, "--label", f"{LABEL}={self.mark}"),
            *("--log-driver", "none"),  # what agents say to each other has secrets in it
            *("--user", f"{os.getuid()}:{os.getgid()}", "--workdir", self.work_dir),
            *(part for each in mounts for part in ("--mount", each)),
            *_limiting(limits),
            *("--entrypoint", "/bin/sh", str(image), "-c", _START, "sh", *PYTHONS),
        ]


def _limiting(limits: Limits) -> list[str]:
    """What has the engine keep limits: the agent keeps those of single commands, in what is left for it besides."""
    given: list[str] = []
    if limits.memory is not None:
        size = str(limits.memory + AGENTS_MEMORY)
        given += ["--memory", size, "--memory-swap", size]
    if limits.network is not None:
        given += ["--network", limits.network]
    return given


async def remove_containers(mark: str) -> None:
    """Remove what is left of a job's containers; nothing, if there is no engine any more that would have some."""
    env = dict(os.environ)
    listing = ("ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={LABEL}={mark}")
    with suppress(StepFailed):
        for _ in range(_ROUNDS):
            code, said = await _docker(*listing, env=env)
            names = _CONTAINER.findall(said) if code == 0 else ()
            if not names or not await _removed(names, env):
                break


async def have_image(image: ImageReference, env: Mapping[str, str]) -> None:
    """See that the engine has an image, which is pulled if it is not there.

    Raises:
        StepFailed: There is no engine.
        NotLoaded: The image is not to be had.
    """
    code, said = await _docker("image", "inspect", "--format", "{{.Id}}", str(image), env=env)
    if code == 0:
        return
    if "no such image" not in said.lower():
        raise StepFailed(f"Docker's command cannot be used for the container of {image}: {_last(said)}")
    code, said = await _docker("pull", "--quiet", str(image), env=env, timeout=PULL_TIMEOUT)
    if code:
        raise NotLoaded(f"the image {image} is not here, and cannot be pulled: {_last(said)}")


@define
class _Child:
    """An agent in a container, behind Docker's command."""

    process: Process
    image: ImageReference
    limits: Limits
    _stdin: ByteSendStream
    _input: BufferedByteReceiveStream
    _errors: ByteReceiveStream
    _said: bytes = field(init=False, default=b"")
    _heard: anyio.Event = field(init=False, factory=anyio.Event)

    @staticmethod
    def behind(process: Process, image: ImageReference, limits: Limits) -> "_Child":
        """Speak to the one that a command is connected with."""
        if not (process.stdin and process.stdout and process.stderr):
            raise RuntimeError("a process without pipes")
        return _Child(process, image, limits, process.stdin, BufferedByteReceiveStream(process.stdout), process.stderr)

    async def listen(self) -> None:
        """Keep the end of what the command says besides."""
        try:
            async for data in self._errors:
                self._said = (self._said + data)[-_HEARD:]
        finally:
            self._heard.set()

    async def send(self, message: Message) -> None:
        """See `Child.send`."""
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            await self._stdin.send(encoded(message))

    async def receive(self) -> Message:
        """See `Child.receive`."""
        try:
            return decoded(await self._input.receive_until(b"\n", MAX_MESSAGE + MAX_AROUND))
        except anyio.DelimiterNotFound:
            raise StepFailed(f"the agent in the container says more than {MAX_MESSAGE >> 20} MiB at once") from None
        except (anyio.IncompleteRead, anyio.EndOfStream, anyio.BrokenResourceError):
            raise await self._why() from None

    async def end(self) -> bool:
        """Have it end, and give it some time for that; returns whether it has, and so its container is gone."""
        with anyio.move_on_after(END_TIMEOUT):
            with suppress(anyio.BrokenResourceError, OSError):
                await self._stdin.aclose()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._drain)
                await self.process.wait()
                tasks.cancel_scope.cancel()
            return self.process.returncode == 0
        return False

    async def abandon(self) -> None:
        """Kill the command if it goes on though its container should be gone: the engine does not answer it."""
        with anyio.move_on_after(END_TIMEOUT):
            await self.process.wait()
        if self.process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
            await self.process.wait()

    async def _drain(self) -> None:
        """Let it say what it still says: it would wait for that."""
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            while True:
                await self._input.receive()

    async def _why(self) -> StepFailed:
        """Find out why there is nobody any more."""
        with anyio.move_on_after(COMMAND_TIMEOUT):
            await self.process.wait()
            await self._heard.wait()
        code, said = self.process.returncode, self._said.decode(errors="replace")
        if code == _NO_PYTHON:
            found = _last(said)
            there = f"it has {found}" if found else "it has none"
            return StepFailed(f"the image {self.image} has no Python 3.10 or later, which its steps need; {there}")
        if code in _NOT_STARTED and "/bin/sh" in said:
            return StepFailed(
                f"the image {self.image} has no /bin/sh, which its steps need beside Python 3.10 or later"
            )
        if code == _REFUSED:
            return StepFailed(f"the container of {self.image} cannot be made: {_last(said)}")
        how = "its output was closed" if code is None else f"exit status {code}"
        if code == _KILLED and self.limits.memory is not None:
            most = in_units(self.limits.memory)
            how += f": it was killed; it may have needed more memory than its limit `memory` allows, which is {most}"
        why = f": {last}" if (last := _last(said)) else ""
        return StepFailed(f"the container of {self.image} ended before its steps had ({how}){why}")


async def _started(command: Sequence[str], env: Mapping[str, str]) -> Process:
    """Start Docker's command."""
    try:
        return await anyio.open_process(command, env=env, start_new_session=True)
    except OSError as error:
        raise _without_docker(error) from error


async def _docker(
    *arguments: str, env: Mapping[str, str], timeout: float = COMMAND_TIMEOUT, most: int = 0, too_much: str = ""
) -> tuple[int, str]:
    """Run Docker's command; returns how it ended, and the end of what it said.

    Raises:
        StepFailed: There is no such command, or it takes too long.
        NotLoaded: It says more than *most* bytes, if that is not 0; *too_much* is why that is no good.
    """
    said, size = b"", 0

    async def keep(data: bytes) -> None:
        nonlocal said, size
        said, size = (said + data)[-_HEARD:], size + len(data)
        if 0 < most < size:
            raise NotLoaded(too_much)

    try:
        with anyio.fail_after(timeout):
            ended = await run_command(["docker", *arguments], cwd="/", env=env, sink=keep)
    except TimeoutError:
        raise StepFailed(f"`docker {arguments[0]}` has taken longer than {timeout:.0f} seconds") from None
    except NotLoaded:
        raise
    except StepFailed as error:
        raise _without_docker(error) from error
    return ended.code, said.decode(errors="replace")


async def _removed(names: Sequence[str], env: Mapping[str, str]) -> bool:
    """Remove containers; returns whether the engine has said that they are gone."""
    with suppress(StepFailed):  # without an engine, there is no container either
        code, _ = await _docker("rm", "--force", "--volumes", *names, env=env, timeout=REMOVE_TIMEOUT)
        return code == 0
    return False


def _new_directory(directory: Path) -> Path:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return Path(mkdtemp(prefix="fetch-", dir=directory))


def _put(files: Path, place: Path) -> None:
    """Move a directory to where it is looked for; another run may have been faster."""
    files.chmod(0o700)  # it has got the mode of the image's root
    try:
        files.rename(place)
    except OSError:
        if not place.is_dir():
            raise


def _without_docker(error: Exception) -> StepFailed:
    return StepFailed(f"steps in containers need Docker's command `docker` here, with an engine behind it: {error}")


def _last(said: str) -> str:
    """The last line that says something, without what Docker says in general."""
    lines = [line.strip() for line in said.splitlines() if line.strip() and "--help'" not in line]
    return lines[-1].removeprefix("docker: ").removeprefix("Error response from daemon: ")[:300] if lines else ""


def _field(name: str, value: str) -> str:
    """Write a field of `--mount`, which is a line of CSV."""
    text = f"{name}={value}"
    return '"{}"'.format(text.replace('"', '""')) if any(each in text for each in ',"\n') else text
