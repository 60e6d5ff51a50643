"""What ``gitlab-jobs fake`` does."""

import os
import signal
import socket
from collections.abc import Mapping
from pathlib import Path

import anyio
import click
from anycorn import Config, serve
from anyio.abc import TaskGroup, TaskStatus

from gitlab_jobs._errors import FileInvalid
from gitlab_jobs._jobsfile import Planned, read_jobs
from gitlab_jobs._payload import ArtifactsFile, Dependency
from gitlab_jobs._server import State
from gitlab_jobs.testing import FakeGitLab

MAX_TOKEN = 255
_LOOPBACK = {"127.0.0.1", "::1", "localhost"}
_ACKNOWLEDGE_EVERY = 1.0
_PATIENCE = 10.0  # seconds without a request, after which a user may wonder


def serve_jobs(path: Path, bind: str, token: str | None, output: Path, *, allow_remote: bool) -> int:
    """Hand out the jobs of a file until all have ended; returns the exit status."""
    planned = read_jobs(path)
    if token is not None and not (token.isascii() and token.isprintable() and 0 < len(token) <= MAX_TOKEN):
        raise FileInvalid(f"--token: expected up to {MAX_TOKEN} printable ASCII characters")
    listener = _listen(bind, allow_remote=allow_remote)
    with listener:
        output.mkdir(mode=0o700, parents=True, exist_ok=True)
        desk = _Desk(planned, output, token)
        return anyio.run(desk.run, listener)


def _listen(bind: str, *, allow_remote: bool) -> socket.socket:
    host, _, port = bind.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isascii() or not port.isdigit() or int(port) >= 1 << 16:
        raise FileInvalid(f"--bind: expected HOST:PORT, found {bind!r}")
    if host not in _LOOPBACK and not allow_remote:
        raise FileInvalid(f"--bind: {host} can be reached by other machines, without TLS; --allow-remote allows it")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, int(port)), family=family)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        raise FileInvalid(f"--bind: {bind}: {reason}; port 0 is any that is free") from None
    listener.setblocking(False)
    return listener


class _Desk:
    """A GitLab, and what its user sees of it."""

    def __init__(self, planned: list[Planned], output: Path, token: str | None) -> None:
        self._gitlab = FakeGitLab(output, logs_on_disk=True)
        if token is not None:
            self._gitlab.server.add_runner(token)
        self._token = token or self._gitlab.runner_token
        self._output = output
        self._jobs = {self._gitlab.enqueue(each.job, is_ready=not each.needs): each for each in planned}
        self._numbers = {each.name: number for number, each in self._jobs.items()}
        self._shown: dict[int, State] = {}

    async def run(self, listener: socket.socket) -> int:
        """Serve until every job has ended."""
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        config = Config()
        config.bind = [f"fd://{os.dup(listener.fileno())}"]
        config.errorlog = config.accesslog = None
        config.graceful_timeout = 1.0
        over, status = anyio.Event(), 130
        async with anyio.create_task_group() as server:
            server.start_soon(lambda: serve(self._gitlab.application(), config, shutdown_trigger=over.wait))  # type: ignore[arg-type]
            async with anyio.create_task_group() as tasks:
                await tasks.start(_interrupted, tasks.cancel_scope)
                click.echo(f"url    http://{shown}:{port}\ntoken  {self._token}")
                click.echo(f"output {self._output}\njobs   {len(self._jobs)}")
                tasks.start_soon(self._keep_time)
                tasks.start_soon(self._remind)
                await self._watch(tasks)
                status = self._summary()
                tasks.cancel_scope.cancel()
            over.set()
        return status

    async def _watch(self, tasks: TaskGroup) -> None:
        """Show what happens, and let jobs go whose needs are met."""
        while True:
            changed = self._gitlab.next_change()
            for number in self._jobs:
                self._release(number)
                self._show(number, tasks)
            if all(self._state(number).is_final for number in self._jobs):
                return
            await changed.wait()

    def _state(self, number: int) -> State:
        return self._gitlab.server.latest(number).state

    def _release(self, number: int) -> None:
        server, needs = self._gitlab.server, [self._numbers[name] for name in self._jobs[number].needs]
        states = {self._state(each) for each in needs}
        if server.jobs[number].state is not State.CREATED or not all(each.is_final for each in states):
            return
        if states <= {State.SUCCESS}:
            server.release(number, tuple(map(self._dependency, needs)))
        else:
            server.jobs[number].become(State.SKIPPED)
        self._gitlab.notify()

    def _dependency(self, number: int) -> Dependency:
        stored = self._gitlab.server.latest(number)
        left = self._gitlab.artifacts.get(stored.job.id, ())
        archives = [each.path for each in left if each.artifact_type == "archive"]
        name, size = ("artifacts.zip", archives[-1].stat().st_size) if archives else ("", 0)
        file = ArtifactsFile(filename=name, size=size)
        return Dependency(id=stored.job.id, token=stored.job.token, name=self._jobs[number].name, artifacts_file=file)

    def _show(self, number: int, tasks: TaskGroup) -> None:
        stored, planned = self._gitlab.server.latest(number), self._jobs[number]
        if stored.state is self._shown.get(number):
            return
        self._shown[number] = stored.state
        reason = f" ({stored.failure_reason})" if stored.failure_reason else ""
        click.echo(f"{stored.job.id:>4}  {stored.state.value:<9} {planned.name}{reason}")
        if stored.state is State.RUNNING and planned.cancel_after is not None:
            tasks.start_soon(self._cancel, stored.job.id, planned.cancel_after)

    async def _cancel(self, number: int, seconds: float) -> None:
        await anyio.sleep(seconds)
        self._gitlab.cancel(number)

    async def _keep_time(self) -> None:
        """Jobs that nobody acknowledges go to somebody else also while nobody asks."""
        while True:
            await anyio.sleep(_ACKNOWLEDGE_EVERY)
            if any(each.acknowledge_by is not None for each in self._gitlab.server.jobs.values()):
                self._gitlab.server.tick(anyio.current_time())
                self._gitlab.notify()

    async def _remind(self) -> None:
        """Say what seems to be missing, once, if no job is handed out."""
        await anyio.sleep(_PATIENCE)
        if any(each.has_runner for each in self._gitlab.server.jobs.values()):
            return
        if self._gitlab.refused:
            click.echo("a runner asks for jobs with another token than the one above")
        elif not self._gitlab.calls["request"]:
            click.echo("no runner has asked for a job so far; start one with this url and token")

    def _summary(self) -> int:
        wrong: Mapping[int, State] = {
            number: self._state(number)
            for number, planned in self._jobs.items()
            if self._state(number).value != planned.expect
        }
        click.echo(f"{len(self._jobs) - len(wrong)} of {len(self._jobs)} jobs ended as expected")
        for number, state in wrong.items():
            planned = self._jobs[number]
            log = self._output / f"{self._gitlab.server.latest(number).job.id}.log"
            click.echo(f"{planned.name}: expected {planned.expect}, found {state.value}; see {log}")
        return 1 if wrong else 0


async def _interrupted(scope: anyio.CancelScope, *, task_status: TaskStatus[None]) -> None:
    """Ctrl-C and SIGTERM end it without a traceback."""
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            scope.cancel()
            return
