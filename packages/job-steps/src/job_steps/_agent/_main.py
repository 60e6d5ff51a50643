"""The agent's commands: `serve`, which a manager starts, and `run`, which runs one request and ends."""

import argparse
import json
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

import anyio
from attrs import evolve

from job_steps._agent._leftovers import end_leftovers
from job_steps._agent._running import Rules, prepare, remove_left_containers, run
from job_steps._breakpoints import Decision
from job_steps._errors import JobStepsError
from job_steps._messages import Job, RunMessage, RunState, VariableMessage
from job_steps._printable import printable

IDLE_TIME: Final = 3600.0
"""Seconds without a job that runs and without anybody connected, after which an agent ends."""

MACHINES_POLICY: Final = Path("/etc/job-steps/policy.json")
"""Rules that every agent of a machine applies, whatever managers say: part of its image."""

REFUSED: Final = 2
"""The exit status of a request that was not carried out."""

OTHER_LISTENS: Final = 75
"""That of an agent whose directory another one has: sysexits' for trying again later."""

_LONGEST_FILE: Final = 64 << 20  # bytes


def main(arguments: Sequence[str], zipapp: str = "") -> int:  # noqa: PLR0911  (one for each command and error)
    """Do what the command line says; returns the exit status.

    Args:
        arguments: The command line.
        zipapp: The file that this comes from; empty if it does not come from one.
    """
    parser = argparse.ArgumentParser(prog="agent.pyz", description="Run steps on this machine.")
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="answer managers at a socket, until there is nothing to do any more")
    serve.add_argument("directory", type=Path, help="where jobs and the socket are kept")
    serve.add_argument("--policy", help="a file with rules, in JSON, that every job has to obey; -: standard input")
    serve.add_argument("--idle-time", type=float, default=IDLE_TIME, help="seconds without work, then it ends")
    one = commands.add_parser("run", help="run one request, with its log on standard output")
    one.add_argument("request", type=Path, help="a file with the request, in JSON")
    one.add_argument("--policy", help="a file with rules, in JSON, that it has to obey; -: standard input")
    one.add_argument("--environment", type=Path, help="a file with more environment for the job's steps, in JSON")
    one.add_argument("--results", type=Path, help="a file for the tree of results, in JSON")
    _add_attach(commands.add_parser("attach", help="look at jobs of this host that are held at breakpoints"))
    commands.add_parser("check", help="do nothing: what the first call of all takes long for, is done then")
    commands.add_parser("inside", help="run one step in a container, for the agent outside of it")
    given = parser.parse_args(arguments)
    if given.command == "check":
        return 0
    try:
        if given.command == "attach":
            return _attach(given)
        if given.command == "inside":
            return _inside()
        policy = None if given.policy is None else _read(Path("/dev/stdin" if given.policy == "-" else given.policy))
        rules = Rules.of(_policies(given.policy, policy), Path(zipapp) if zipapp else None)
        if given.command == "serve":
            return anyio.run(_serve, given.directory.absolute(), rules, policy or b"", given.idle_time)
        return anyio.run(_run, _with(_request(given.request), given.environment), rules, given.results)
    except (OSError, ValueError) as error:
        _complain(_said(error))
        return REFUSED
    except JobStepsError as failed:
        _complain(str(failed))
        return REFUSED
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _add_attach(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", nargs="?", default="", help="its name, or how that begins; else the one that is held")
    parser.add_argument("--socket", action="append", default=[], help="where an agent listens; else all are asked")
    parser.add_argument("--list", action="store_true", help="list the jobs that are held, and do nothing else")
    parser.add_argument("--json", action="store_true", help="list them as JSON")
    parser.add_argument("--break", action="append", default=[], dest="breaks", help="add a breakpoint: STEP[:WHEN]")
    decision = parser.add_mutually_exclusive_group()
    for one in Decision:
        said = f"{one.value} the job, without a prompt"
        decision.add_argument(f"--{one.value}", action="store_const", const=one, dest="decision", help=said)


def _attach(given: argparse.Namespace) -> int:
    from job_steps._attach import Wish, attach

    wish = Wish(
        job=given.job,
        sockets=tuple(given.socket),
        breakpoints=tuple(given.breaks),
        decision=given.decision,
        lists=given.list or given.json,
        as_json=given.json,
    )
    return anyio.run(attach, wish, Path(sys.argv[0]).absolute().parent.parent)


def _inside() -> int:
    """Be the agent in a container; nothing but it writes to what is the standard output."""
    from job_steps._agent._inside import serve_one

    output = os.dup(1)
    os.dup2(2, 1)
    return anyio.run(serve_one, 0, output)


def _complain(said: str) -> None:
    sys.stderr.write(f"agent.pyz: {printable(said)}\n")


def _said(error: OSError | ValueError) -> str:
    return f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)


async def _serve(directory: Path, rules: Rules, policy: bytes, idle_time: float) -> int:
    """Serve until nobody has wanted anything for a while, or somebody ends it."""
    from job_steps._agent._directory import Lock, remove_old_versions, write_whole
    from job_steps._agent._job import now
    from job_steps._agent._listening import listen, socket_path
    from job_steps._agent._service import Service
    from job_steps._cgroups import make_way

    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    jobs = _make(directory)
    lock = Lock(directory)
    if not lock.take():
        _complain(f"another agent has {directory}")
        return OTHER_LISTENS
    make_way()
    if policy:
        with suppress(OSError):  # a full disk: then nobody can start it again who does not know the policy
            write_whole(directory / "policy", policy)
    path = socket_path(directory)

    def ready() -> None:
        with suppress(OSError):  # a full disk, or a job: those who know the socket get there all the same
            write_whole(directory / "process", f"{os.getpid()}\n".encode())
            write_whole(directory / "socket", os.fsencode(path))
        with suppress(OSError):  # nobody keeps it any more
            sys.stdout.write(f"listening {path}\n")
            sys.stdout.flush()

    async with anyio.create_task_group() as connections, anyio.create_task_group() as running:
        service = Service(jobs, running, rules)
        idle_since = anyio.current_time()

        def is_over(connected: int) -> bool:
            nonlocal idle_since
            if connected or service.running:
                idle_since = anyio.current_time()
            return anyio.current_time() - idle_since >= idle_time

        async with anyio.create_task_group() as listening:
            listening.start_soon(_end_on_signals, listening.cancel_scope)
            await service.take_over()
            tidy = partial(anyio.to_thread.run_sync, remove_old_versions, directory, now().timestamp())
            listening.start_soon(partial(tidy, abandon_on_cancel=True))
            await listen(
                path,
                service.serve,
                connections=connections,
                take=lock.take,
                ready=ready,
                is_over=is_over,
            )
            listening.cancel_scope.cancel()
        connections.cancel_scope.cancel()  # and what runs
    return 0


def _make(directory: Path) -> Path:
    """Make an agent's directory, for its user alone, and in it that of its jobs."""
    jobs = directory / "jobs"
    jobs.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.chmod(0o700)
    return jobs


async def _end_on_signals(scope: anyio.CancelScope) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            scope.cancel()


async def _run(asked: RunMessage, rules: Rules, results: Path | None) -> int:
    """Run one request; the exit status is that of the step that failed."""
    import secrets
    from tempfile import TemporaryDirectory, gettempdir

    from job_steps._agent._alone import attachable
    from job_steps._agent._growing import GrowingFile
    from job_steps._cgroups import make_way

    make_way()
    prepared = await prepare(asked, rules)
    mark = secrets.token_hex(16)
    note = Path(gettempdir(), f"job-steps-{mark}")
    output = sys.stdout.buffer

    async def log(data: bytes) -> None:
        await anyio.to_thread.run_sync(_write, output, data)

    outcome = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_end_on_signals, tasks.cancel_scope)
        growing = GrowingFile(results)
        try:
            async with (
                attachable(asked.id or "job", is_allowed=rules.allow_breakpoints) as holding,
                anyio.create_task_group() as beside,
            ):
                beside.start_soon(growing.save_while_it_grows)
                with TemporaryDirectory(prefix="job-steps-") as files:
                    outcome = await run(
                        prepared,
                        mark=mark,
                        files=Path(files),
                        note=note,
                        log=log,
                        on_result=growing.grow,
                        holding=holding,
                    )
                beside.cancel_scope.cancel()
        finally:
            end_leftovers(mark)
            with anyio.CancelScope(shield=True):
                await remove_left_containers(mark, note)
            growing.save()
        tasks.cancel_scope.cancel()
    if outcome is None:
        return 128 + signal.SIGTERM
    if outcome.message:  # who reads the log of a job knows no agent
        sys.stderr.write(f"error: {printable(outcome.message)}\n")
    failed = outcome.result.failed() if outcome.result else None
    return 0 if outcome.state is RunState.SUCCESS else (failed and failed.exit_code) or 1


def _write(output: BinaryIO, data: bytes) -> None:
    output.write(data)
    output.flush()


def _request(path: Path) -> RunMessage:
    """Read a request from a file.

    Raises:
        OSError: There is none.
        ValueError: It cannot be read.
    """
    asked = _json(path)
    kinds: Mapping[str, type | tuple[type, ...]] = {
        "id": str,
        "work_dir": str,
        "build_dir": str,
        "env": dict,
        "variables": list,
        "steps": str,
        "time_limit": (int, float, type(None)),
        "breakpoints": list,
        "breakpoint_timeout": (int, float),
    }
    for key, value in asked.items():
        if key not in kinds or not isinstance(value, kinds[key]):
            raise ValueError(f"{path}: {key}: not of a request, or not of the type that it has there")
    variables = [_variable(path, one) for one in asked.get("variables", ())]
    env = asked.get("env", {})
    breakpoints = asked.get("breakpoints", ())
    for key, values in (("env", env.values()), ("breakpoints", breakpoints)):
        if not all(isinstance(value, str) for value in values):
            raise ValueError(f"{path}: {key}: expected strings")
    return RunMessage(
        id=asked.get("id", ""),
        work_dir=asked.get("work_dir", ""),
        env=env,
        job=Job(build_dir=asked.get("build_dir", ""), variables=variables),
        steps=asked.get("steps", ""),
        time_limit=float(asked.get("time_limit") or 0),
        breakpoints=breakpoints,
        breakpoint_timeout=float(asked.get("breakpoint_timeout", 0)),
    )


def _with(asked: RunMessage, environment: Path | None) -> RunMessage:
    """Add to the environment of a request what is in a file.

    Raises:
        OSError: There is no such file.
        ValueError: It cannot be read.
    """
    if environment is None:
        return asked
    more = _json(environment)
    if not all(isinstance(value, str) for value in more.values()):
        raise ValueError(f"{environment}: expected strings")
    return evolve(asked, env={**more, **asked.env})


def _variable(path: Path, one: object) -> VariableMessage:
    kinds = {"key": str, "value": str, "file": bool, "masked": bool}
    if not isinstance(one, dict) or not all(isinstance(value, kinds.get(key, ())) for key, value in one.items()):
        raise ValueError(f"{path}: variables: expected objects with key, value, file and masked")
    return VariableMessage(**one)


def _policies(name: str | None, policy: bytes | None) -> Sequence[Mapping[str, Any]]:
    """The machine's, if it has one, and the one that was given, which is called so."""
    found = [] if policy is None else [_parsed(policy, str(name))]
    return [_json(MACHINES_POLICY), *found] if MACHINES_POLICY.exists() else found


def _json(path: Path) -> Mapping[str, Any]:
    return _parsed(_read(path), str(path))


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(_LONGEST_FILE + 1)
    if len(data) > _LONGEST_FILE:
        raise ValueError(f"{path}: more than {_LONGEST_FILE >> 20} MiB")
    return data


def _parsed(data: bytes, name: str) -> Mapping[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name}: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{name}: expected an object")
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
