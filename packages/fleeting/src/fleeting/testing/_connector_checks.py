"""The contract of a connector, as checks that anybody's connections can be put through.

Each check is a function that takes a way to dial one instance, and returns or raises `Violation`. The instance is a
POSIX host with the usual tools; all that is known of it is learnt by commands, so it may be anywhere. What a check
leaves there is an empty directory below the one for temporary files.
"""

import shlex
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from functools import partial
from secrets import token_hex

import anyio
from anyio.lowlevel import cancel_shielded_checkpoint, checkpoint

from fleeting._errors import CommandFailed, ConnectError, Unreachable, Unsupported
from fleeting._protocols import Connection
from fleeting._types import Completed
from fleeting.testing._harness import Violation

DialInstance = Callable[[], AbstractAsyncContextManager[Connection]]
"""Dials the instance; called for every connection that a check needs."""

MakeDial = Callable[[], AbstractAsyncContextManager[DialInstance]]
"""Sets up an instance for one check, and clears it away after that."""

ConnectorCheck = Callable[[DialInstance], Awaitable[None]]

AHEAD_AT_MOST = 16 << 20
"""Bytes that may be under way between a command and a sink that takes nothing."""

_MIB = 1 << 20

_STEADY = 3
"""How often what has stopped growing is the same."""

LOOKS = 20
"""How often it is looked whether a process has ended before it counts as still there."""


def expect(clause: str, seen: object, wanted: object) -> None:
    """Raise `Violation` unless what was seen is what was wanted."""
    if seen != wanted:
        raise Violation(clause, f"{seen!r:.300}, not {wanted!r:.300}")


async def check_outputs_and_status_are_reported(dial: DialInstance) -> None:
    """Without sinks the result has both outputs, each by itself, and the exit status."""
    async with dial() as connection:
        completed = await connection.run("echo out; echo err >&2; exit 3")
    wanted = Completed(exit_status=3, stdout=b"out\n", stderr=b"err\n")
    expect("the result has stdout, stderr and exit_status", completed, wanted)


async def check_the_signal_is_reported(dial: DialInstance) -> None:
    """A command that was ended by a signal has that in place of an exit status."""
    async with dial() as connection:
        completed = await connection.run("kill -KILL $$")
    expect("exit_status is None and signal its name", (completed.exit_status, completed.signal), (None, "SIGKILL"))


async def check_no_shell_touches_a_list(dial: DialInstance) -> None:
    """A program with its arguments gets them as they are, whatever they are; a string is a shell's command line."""
    arguments = ["$HOME", "a b", "*", "'", '"', "\\", "!", "new\nline", ""]
    async with dial() as connection:
        listed = await connection.run(["printf", "%s|", *arguments])
        line = await connection.run("printf '%s|' a\\ b $((1 + 1))")
    expect("no shell touches a list", listed.stdout.decode(), "".join(f"{argument}|" for argument in arguments))
    expect("a string is a shell command line", line.stdout, b"a b|2|")


async def check_bytes_pass_unchanged(dial: DialInstance) -> None:
    """Neither input nor output need be UTF-8, or text at all."""
    everything = bytes(range(256)) * 64
    async with dial() as connection:
        expect("stdin and stdout are bytes", (await connection.run("cat", stdin=everything)).stdout, everything)
        expect("stderr is bytes", (await connection.run("cat >&2", stdin=everything)).stderr, everything)


async def check_input_is_fed_as_it_is_read(dial: DialInstance) -> None:
    """Much input goes through, unread input is no error, and where there is none the command meets the end at once."""
    data = bytes(range(256)) * 16384
    async with dial() as connection:
        expect("all of stdin is fed", (await connection.run("cat", stdin=data)).stdout, data)
        for leave_it in ("exec true", "exec <&-; sleep 0.3"):  # one that ends at once, and one that outlives its input
            expect("input may stay unread", (await connection.run(leave_it, stdin=data)).ok, True)
        expect("without stdin there is nothing to read", (await connection.run("cat")).stdout, b"")
        expect("what arrives in chunks is fed", (await connection.run("head -n 3", stdin=_Lines())).stdout, b"y\n" * 3)


async def check_unread_input_is_closed(dial: DialInstance) -> None:
    """A generator of input is closed before `run` returns, even if the command did not read it to its end."""
    is_open = True

    async def lines() -> AsyncGenerator[bytes, None]:
        nonlocal is_open
        try:
            while True:
                await cancel_shielded_checkpoint()  # a cancellation in here would close it, whoever reads it
                yield b"y\n"
        finally:
            is_open = False

    async with dial() as connection, aclosing(lines()) as endless:
        await connection.run("head -n 3", stdin=endless)
        expect("a generator that is not read to its end is closed", is_open, False)


async def check_environment_and_directory(dial: DialInstance) -> None:
    """Variables are added to the instance's own environment; the command starts where it should."""
    async with dial() as connection:
        completed = await connection.run('echo "$A|$B|${PATH:+path}"; pwd', env={"A": "a 'b'", "B": ""}, cwd="/usr")
    expect("env is added, and cwd obeyed", completed.stdout.decode(), "a 'b'||path\n/usr\n")


ALL_ARGUMENTS = "$(cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '; { ps -A -o args= || ps -o args; } 2>/dev/null)"
"""A shell's word for the arguments of every process; some images have no ``ps``, and some hosts no ``/proc``."""


async def check_the_environment_is_nobodys_argument(dial: DialInstance) -> None:
    """All users of an instance can read the arguments of every process; variables are where secrets are put."""
    look = f'case "{ALL_ARGUMENTS}" in *"$A"*) echo shown;; *) echo "hidden ${{#A}}";; esac'
    async with dial() as connection:
        for command in (look, ["/bin/sh", "-c", look]):
            completed = await connection.run(command, env={"A": token_hex(16)})
            expect("no process has a variable among its arguments", completed.stdout.decode().strip(), "hidden 32")


async def check_what_cannot_be_started_exits_with_127(dial: DialInstance) -> None:
    """A program or a directory that is not there is the command's failure, as in a shell, and no error."""
    async with dial() as connection:
        for command in ("no-such-program", ["no-such-program"]):
            expect("it exits with 127", (await connection.run(command)).exit_status, 127)
        expect("so it does in no directory", (await connection.run(["true"], cwd="/no/such")).exit_status, 127)


async def check_check_raises_for_a_failure_only(dial: DialInstance) -> None:
    """With `check`, a status other than 0 is `CommandFailed`, which has the result."""
    clause = "check=True raises CommandFailed, with the result, unless the command exits with 0"
    async with dial() as connection:
        await connection.run("true", check=True)
        try:
            await connection.run("echo why >&2; exit 4", check=True)
        except CommandFailed as failure:
            expect(clause, (failure.completed.exit_status, failure.completed.stderr), (4, b"why\n"))
        else:
            raise Violation(clause, "nothing was raised")


async def check_output_is_heard_while_the_command_runs(dial: DialInstance) -> None:
    """A sink gets output at once, while others use the connection; the result has no copy of it."""
    async with dial() as connection, directory_on(connection) as directory:
        heard = b""

        async def answer(chunk: bytes) -> None:
            nonlocal heard
            heard += chunk
            if heard == b"ready\n":
                await connection.run(["touch", f"{directory}/go"], check=True)

        wait = f"i=0; until [ -e {directory}/go ]; do i=$((i+1)); [ $i -lt 200 ] || exit 1; sleep 0.05; done"
        completed = await connection.run(f"echo ready; {wait}; rm {directory}/go; echo set", stdout=answer)
    expect("a sink gets all output, as it arrives", (heard, completed.stdout), (b"ready\nset\n", b""))


async def check_a_slow_sink_holds_the_command_up(dial: DialInstance) -> None:
    """Awaiting the sink is the back-pressure: what is under way is bounded, and nothing is lost."""
    async with dial() as connection, directory_on(connection) as directory, anyio.create_task_group() as tasks:
        taken, full, go_on = 0, anyio.Event(), anyio.Event()

        async def slow(chunk: bytes) -> None:
            nonlocal taken
            full.set()
            await go_on.wait()
            taken += len(chunk)

        async def produce() -> None:
            write = f"dd if=/dev/zero bs={_MIB} count=1 2>/dev/null; echo $i > {directory}/written"
            await connection.run(f"i=0; while [ $i -lt 48 ]; do i=$((i+1)); {write}; done", stdout=slow)

        tasks.start_soon(produce)
        await full.wait()
        ahead = await _settled(connection, f"cat {directory}/written || echo 0")
        if ahead * _MIB > AHEAD_AT_MOST:
            raise Violation("a sink that accepts nothing stops the command", f"it wrote {ahead} MiB meanwhile")
        go_on.set()
    expect("a slow sink gets everything", taken, 48 * _MIB)


async def check_collecting_has_a_limit(dial: DialInstance) -> None:
    """More than 16 MiB without a sink is a `ConnectError`, and the connection is none the worse."""
    async with dial() as connection:
        sixteen = await connection.run(f"head -c {16 * _MIB} /dev/zero")
        expect("16 MiB are collected", len(sixteen.stdout), 16 * _MIB)
        try:
            await connection.run(["head", "-c", str(64 * _MIB), "/dev/zero"])  # who collects all of it comes to an end
        except ConnectError:
            expect("the connection lives on", (await connection.run("true")).ok, True)
        else:
            raise Violation("more than 16 MiB of output raises ConnectError", "nothing was raised")


async def check_a_failing_sink_ends_the_command(dial: DialInstance) -> None:
    """What a sink raises comes out as it is, after the command was ended."""
    async with dial() as connection:
        heard = b""

        async def fail(chunk: bytes) -> None:
            nonlocal heard
            heard += chunk
            raise LookupError("full")

        try:
            await connection.run("echo $$; exec sleep 1000", stdout=fail, stdin=b"some")
        except LookupError:
            await expect_ended(connection, heard.split())
        except ExceptionGroup as group:
            raise Violation("what a sink raises is raised unchanged", f"it came in {group!r}") from group


async def check_cancelling_ends_the_process_tree_first(dial: DialInstance) -> None:
    """When the cancellation comes out the command and its children are gone, those that ignore SIGTERM too."""
    async with dial() as connection:
        heard, two = b"", anyio.Event()

        async def hear(chunk: bytes) -> None:
            nonlocal heard
            heard += chunk
            if heard.count(b"\n") == 2:  # noqa: PLR2004  (parent and child)
                two.set()

        async with anyio.create_task_group() as tasks:

            async def cancel() -> None:
                await two.wait()
                tasks.cancel_scope.cancel()

            tasks.start_soon(cancel)
            deaf = ["sh", "-c", "trap '' TERM; echo $$; while :; do sleep 0.05; done"]
            await connection.run(f"{shlex.join(deaf)} & echo $$; wait", stdout=hear)
        await expect_ended(connection, heard.split())


async def check_commands_run_side_by_side(dial: DialInstance) -> None:
    """One connection carries many commands at once, each with its own outcome."""
    async with dial() as connection:
        seen: dict[int, Completed] = {}

        async def run(number: int) -> None:
            seen[number] = await connection.run(f"echo {number}; exit {number}")

        async with anyio.create_task_group() as tasks:
            for number in range(30):
                tasks.start_soon(run, number)
    wanted = {number: Completed(exit_status=number, stdout=b"%d\n" % number) for number in range(30)}
    expect("every command has its own outcome", seen, wanted)


async def check_tunnels_lead_somewhere_or_are_unsupported(dial: DialInstance) -> None:
    """Where nobody listens that is `Unreachable`; a protocol without tunnels says `Unsupported`."""
    async with dial() as connection:
        for opens in (partial(connection.open_unix, "/no/such/socket"), partial(connection.open_tcp, "127.0.0.1", 1)):
            try:
                await opens()
            except (Unreachable, Unsupported):
                continue
            raise Violation("a tunnel to nowhere raises Unreachable or Unsupported", "a stream was opened")


async def check_the_end_is_reported(dial: DialInstance) -> None:
    """Leaving the context closes the connection: who waits for that learns why, and commands are `Unreachable`."""
    reasons: list[str] = []
    async with anyio.create_task_group() as tasks, dial() as connection:

        async def wait() -> None:
            reasons.append(await connection.wait_closed())

        tasks.start_soon(wait)
        tasks.start_soon(wait)
        expect("an open connection is not closed", ((await connection.run("true")).ok, reasons), (True, []))
    expect(
        "wait_closed returns why, in words, to everybody who waits", [bool(reason) for reason in reasons], [True, True]
    )
    try:
        await connection.run("true")
    except Unreachable:
        return
    raise Violation("a command on a closed connection raises Unreachable", "the command ran")


async def check_users_do_not_disturb_each_other(dial: DialInstance) -> None:
    """Two who dial the same instance may share what they like, but one who leaves takes nothing from the other."""
    async with dial() as kept:
        async with dial() as left:
            expect("both can be used", (await left.run("echo a")).stdout + (await kept.run("echo b")).stdout, b"a\nb\n")
        expect("one outlives the other", (await kept.run("true")).ok, True)


class _Lines:
    """A source that has no end."""

    def __aiter__(self) -> "_Lines":
        return self

    async def __anext__(self) -> bytes:
        await checkpoint()
        return b"y\n"


_STATE = (
    "if [ -d /proc/self ];"
    " then read -r stat </proc/{pid}/stat && stat=${{stat##*) }} && echo ${{stat%% *}};"
    " else ps -o stat= -p {pid}; fi 2>/dev/null || :"
)
"""Prints the state of a process, if there is one. Some images have no ``ps``, and that of busybox has no ``-p``."""


async def expect_ended(connection: Connection, pids: Sequence[bytes]) -> None:
    """Ask the instance; a zombie, whose parent has not looked yet, has ended.

    What was killed is shown until a busy instance gives it its last turn: hence several looks, which nothing outlives
    that was not.
    """
    for pid in (each.decode() for each in pids):
        state = b""
        for _ in range(LOOKS):
            state = (await connection.run(_STATE.format(pid=pid))).stdout.strip()
            if not state or state.startswith(b"Z"):
                break
        else:
            await connection.run(f"kill -KILL {pid} || :")  # it would run until the instance is gone
            raise Violation("the command's processes are ended first", f"{pid} still exists, in state {state.decode()}")


async def _settled(connection: Connection, command: str) -> int:
    """The number that a command on the instance prints, once it no longer grows: a busy one may rest for a while."""
    before, same = -1, 0
    while same < _STEADY:
        now = int((await connection.run(f"sleep 0.3; {command} 2>/dev/null")).stdout)
        before, same = now, same + 1 if now == before else 0
    return before


@asynccontextmanager
async def directory_on(connection: Connection) -> AsyncIterator[str]:
    """A new directory on the instance."""
    made = await connection.run(["mktemp", "-d"], check=True)
    directory = made.stdout.decode().strip()
    try:
        yield directory
    finally:
        with anyio.move_on_after(5, shield=True):
            await connection.run(["rm", "-rf", directory])


CONNECTOR_CHECKS: tuple[ConnectorCheck, ...] = (
    check_outputs_and_status_are_reported,
    check_the_signal_is_reported,
    check_no_shell_touches_a_list,
    check_bytes_pass_unchanged,
    check_input_is_fed_as_it_is_read,
    check_unread_input_is_closed,
    check_environment_and_directory,
    check_the_environment_is_nobodys_argument,
    check_what_cannot_be_started_exits_with_127,
    check_check_raises_for_a_failure_only,
    check_output_is_heard_while_the_command_runs,
    check_a_slow_sink_holds_the_command_up,
    check_collecting_has_a_limit,
    check_a_failing_sink_ends_the_command,
    check_cancelling_ends_the_process_tree_first,
    check_commands_run_side_by_side,
    check_tunnels_lead_somewhere_or_are_unsupported,
    check_the_end_is_reported,
    check_users_do_not_disturb_each_other,
)
"""Every check, in the order in which a new connector is best made to pass them."""
