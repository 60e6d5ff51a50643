"""The contract of a connection that runs detached commands, as checks beside those of `_connector_checks`.

They apply where a connection is a `RunsDetached`. What one leaves on the instance is an empty directory for commands.
"""

import shlex
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from secrets import token_hex
from typing import Protocol

import anyio

from fleeting._errors import ConnectError, NameTaken, NameUnknown
from fleeting._protocols import Connection, Detached, RunsDetached, StartsAttached
from fleeting._types import Completed
from fleeting.connectors import Collector
from fleeting.testing._connector_checks import ALL_ARGUMENTS, DialInstance, directory_on, expect, expect_ended
from fleeting.testing._harness import Violation

DetachedCheck = Callable[[DialInstance], Awaitable[None]]

WAIT = "i=0; until [ -e {0} ]; do i=$((i+1)); [ $i -lt 400 ] || exit 1; sleep 0.05; done"
"""Shell text that waits for a file, within a bound."""


class _Detaching(Connection, RunsDetached, Protocol):
    """A connection that has the capability."""


async def check_output_and_outcome_are_kept(dial: DialInstance) -> None:
    """Both outputs, together, and the exit status or the signal are there for all who ask, from any byte on."""
    async with _detaching(dial) as connection, _named(connection) as name:
        await connection.start(name, "echo out; echo err >&2; exit 3")
        for offset, wanted in ((0, b"out\nerr\n"), (0, b"out\nerr\n"), (5, b"rr\n"), (8, b"")):
            completed = await _attached(connection, name, offset)
            expect("attach passes the output on from the offset, and returns", completed, (wanted, 3, None))
    async with _detaching(dial) as connection, _named(connection) as name:
        await connection.start(name, "kill -KILL $$")
        expect("the signal is reported", await _attached(connection, name), (b"", None, "SIGKILL"))


async def check_it_outlives_its_connection(dial: DialInstance) -> None:
    """A command goes on when whoever started it is gone, and another connection joins it while it runs."""
    async with _detaching(dial) as connection, directory_on(connection) as directory, _named(connection) as name:
        async with _detaching(dial) as first:
            await first.start(name, f"echo begun; {WAIT.format(f'{directory}/go')}; echo done")
            with anyio.CancelScope() as scope:

                async def leave(_: bytes) -> None:
                    scope.cancel()

                await first.attach(name, output=leave)
        heard = b""

        async def hear(chunk: bytes) -> None:
            nonlocal heard
            heard += chunk
            if heard == b"begun\n":
                await connection.run(["touch", f"{directory}/go"], check=True)

        completed = await connection.attach(name, output=hear)
        expect("it goes on, and output is heard while it runs", (heard, completed.ok), (b"begun\ndone\n", True))


async def check_a_name_is_used_once(dial: DialInstance) -> None:
    """Of all who start a command of one name one succeeds, and that runs once; the others learn of it."""
    outcomes = []
    async with _detaching(dial) as connection, directory_on(connection) as directory, _named(connection) as name:

        async def start() -> None:
            try:
                await connection.start(name, f"echo once >> {directory}/ran")
            except NameTaken:
                outcomes.append("taken")
            else:
                outcomes.append("started")

        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(start)
        await _attached(connection, name)
        await start()
        expect("one start of a name succeeds", sorted(outcomes), ["started", *["taken"] * 4])
        ran = await connection.run(["cat", f"{directory}/ran"])
        expect("a command that is started runs once", ran.stdout, b"once\n")


async def check_input_environment_and_directory(dial: DialInstance) -> None:
    """They are as `run` has them, and arrive before the command begins; no shell touches a list."""
    everything = bytes(range(256)) * 64
    async with _detaching(dial) as connection, _named(connection) as name:
        await connection.start(name, "cat", stdin=everything)
        expect("stdin is fed, and bytes pass unchanged", await _attached(connection, name), (everything, 0, None))
    async with _detaching(dial) as connection, _named(connection) as name:
        await connection.start(name, 'cat; echo "$A|$B|${PATH:+path}"; pwd', env={"A": "a 'b'\n", "B": ""}, cwd="/usr")
        wanted = (b"a 'b'\n||path\n/usr\n", 0, None)
        expect("env is added, and cwd obeyed", await _attached(connection, name), wanted)
    async with _detaching(dial) as connection, _named(connection) as name:
        await connection.start(name, "umask")
        ran = await connection.run("umask")
        expect("so is what it allows others", await _attached(connection, name), (ran.stdout, 0, None))
    arguments = ["$HOME", "a b", "*", "'", '"', "\\", "new\nline", ""]
    async with _detaching(dial) as connection, _named(connection) as name:
        await connection.start(name, ["printf", "%s|", *arguments])
        printed = "".join(f"{argument}|" for argument in arguments).encode()
        expect("no shell touches a list", await _attached(connection, name), (printed, 0, None))
    async with _detaching(dial) as connection, _named(connection) as name:
        await connection.start(name, ["no-such-program"])
        expect("what is not there exits with 127", (await _attached(connection, name))[1], 127)


async def check_no_signal_is_ignored(dial: DialInstance) -> None:
    """A command finds all signals as one does that is run, and can be interrupted."""
    async with _detaching(dial) as connection, _named(connection) as name:
        await connection.start(name, "kill -INT $$; echo ignored")
        output, status, signal = await _attached(connection, name)
        expect("SIGINT ends it", output, b"")
        expect("then it has not succeeded", (status, signal) != (0, None), True)


async def check_several_may_be_attached(dial: DialInstance) -> None:
    """Whoever is attached gets all of the output and the outcome, whoever else is attached at the same time."""
    async with _detaching(dial) as connection, directory_on(connection) as directory, _named(connection) as name:
        await connection.start(name, f"echo begun; {WAIT.format(f'{directory}/go')}; echo done; exit 6")
        heard, ends = [b"", b""], []

        async def attach(which: int) -> None:
            async def hear(chunk: bytes) -> None:
                is_first = not heard[which]
                heard[which] += chunk
                if is_first and which == 0:
                    tasks.start_soon(attach, 1)
                elif is_first:
                    await connection.run(["touch", f"{directory}/go"], check=True)

            ends.append((await connection.attach(name, output=hear)).exit_status)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(attach, 0)
        expect("both hear all of it", heard, [b"begun\ndone\n"] * 2)
        expect("both learn of its end", ends, [6, 6])


async def check_secrets_are_nobodys_argument(dial: DialInstance) -> None:
    """Neither the environment nor the input of a detached command is among any process's arguments."""
    look = f'read -r B; case "{ALL_ARGUMENTS}" in *"$A"* | *"$B"*) echo shown;; *) echo "hidden ${{#A}} ${{#B}}";; esac'
    async with _detaching(dial) as connection, _named(connection) as name:
        await connection.start(name, look, env={"A": token_hex(16)}, stdin=token_hex(16).encode() + b"\n")
        expect("no process has them", await _attached(connection, name), (b"hidden 32 32\n", 0, None))


async def check_output_is_kept_up_to_a_limit(dial: DialInstance) -> None:
    """A command that writes more than is kept goes on, and what was not kept is counted."""
    async with _detaching(dial) as connection, _named(connection) as name:
        await connection.start(name, "head -c 200000 /dev/zero | tr '\\0' x; exit 5", keep=1024)
        output = Collector("the output")
        completed = await connection.attach(name, output=output)
        expect("what is more than the limit is cut", (len(output.data), completed.exit_status), (1024, 5))
        expect("the bytes that were cut are counted", completed.cut, 200000 - 1024)


async def check_starting_attached_reports_the_start_first(dial: DialInstance) -> None:
    """A command that is started and attached to at once is reported as started, once, before its output.

    One whose name is taken is reported as that, and not as started.
    """
    async with _detaching(dial) as connection, _named(connection) as name:
        if not isinstance(connection, StartsAttached):
            return
        heard = list[bytes]()

        async def hear(chunk: bytes) -> None:
            heard.append(chunk)

        async def start() -> Completed:
            return await connection.start_attached(
                name,
                'read -r B; echo "$A $B"; echo err >&2; exit 3',
                stdin=b"b\n",
                env={"A": "a"},
                started=lambda: heard.append(b"started "),
                output=hear,
            )

        completed = await start()
        expect("the start comes before the output", b"".join(heard), b"started a b\nerr\n")
        expect("then comes the end", (completed.exit_status, completed.signal), (3, None))
        heard.clear()
        try:
            await start()
        except NameTaken:
            expect("what was not started is not reported so", heard, [])
        else:
            raise Violation("a name is used once", "it was started again")
        expect("all of it is kept", await _attached(connection, name), (b"a b\nerr\n", 3, None))


async def check_what_was_started_attached_goes_on(dial: DialInstance) -> None:
    """A command that was started and attached to at once goes on when that is cancelled, and is joined from there."""
    async with _detaching(dial) as connection, directory_on(connection) as directory, _named(connection) as name:
        if not isinstance(connection, StartsAttached):
            return
        with anyio.CancelScope() as scope:

            async def leave(_: bytes) -> None:
                scope.cancel()

            command = f"echo begun; {WAIT.format(f'{directory}/go')}; echo done"
            await connection.start_attached(name, command, started=lambda: None, output=leave)
        await connection.run(["touch", f"{directory}/go"], check=True)
        expect("it goes on", await _attached(connection, name, len("begun\n")), (b"done\n", 0, None))


async def check_killing_ends_the_process_tree(dial: DialInstance) -> None:
    """When `kill` returns the command and its children are gone, those that ignore SIGTERM too; it may be repeated."""
    async with _detaching(dial) as connection, _named(connection) as name:
        deaf = "echo $$; trap '' TERM; while :; do sleep 0.05; done"
        await connection.start(name, f"{shlex.join(['sh', '-c', deaf])} & {deaf}")
        heard = await _heard(connection, name, lines=2)
        await connection.kill(name)
        await expect_ended(connection, heard.split())
        await connection.kill(name)
        _, status, signal = await _attached(connection, name)
        expect("a command that was killed reports the signal", (status, signal), (None, "SIGKILL"))
    async with _detaching(dial) as connection, _named(connection) as name:
        await connection.start(name, f"{shlex.join(['sh', '-c', deaf])} >/dev/null 2>&1 & echo $!; exec sleep 1000")
        heard = await _heard(connection, name, lines=1)
        await connection.kill(name)
        await expect_ended(connection, heard.split())


async def check_commands_are_listed_until_they_are_forgotten(dial: DialInstance) -> None:
    """All that were started are listed with how they are; one that runs cannot be forgotten."""
    async with _detaching(dial) as connection, _named(connection) as name, _named(connection) as other:
        await connection.start(name, "exec sleep 1000")
        await connection.start(other, "exit 4")
        await _attached(connection, other)
        listed = {each.name: each for each in await connection.list_detached()}
        expect("one that runs is listed so", listed.get(name), Detached(name=name))
        expect("so is how one has ended", listed.get(other), Detached(name=other, completed=Completed(exit_status=4)))
        try:
            await connection.forget(name)
        except ConnectError:
            await connection.kill(name)
        else:
            raise Violation("a command that runs cannot be forgotten", "it was")
        await connection.forget(name)
        await connection.forget(name)
        names = {each.name for each in await connection.list_detached()}
        expect("what was forgotten is not listed", (name in names, other in names), (False, True))


async def check_unknown_and_impossible_names_are_refused(dial: DialInstance) -> None:
    """What was never started is `NameUnknown`; what cannot be a name is an error, and nothing is run."""
    async with _detaching(dial) as connection:
        for act in (connection.kill, lambda name: _attached(connection, name)):
            try:
                await act(token_hex(8))
            except NameUnknown:
                continue
            raise Violation("a name that was never started is NameUnknown", "nothing was raised")
        for impossible in ("", ".", "..", "a/b", "-a", "a b", "a\n", "x" * 200):
            try:
                await connection.start(impossible, "true")
            except ConnectError:
                continue
            raise Violation(f"{impossible!r} is refused as a name", "nothing was raised")


async def _attached(connection: RunsDetached, name: str, offset: int = 0) -> tuple[bytes, int | None, str | None]:
    """The output of a command from a byte on, its exit status and its signal."""
    output = Collector("the output")
    completed = await connection.attach(name, offset=offset, output=output)
    return bytes(output.data), completed.exit_status, completed.signal


async def _heard(connection: RunsDetached, name: str, *, lines: int) -> bytes:
    """What a command says first."""
    heard = b""
    with anyio.CancelScope() as scope:

        async def hear(chunk: bytes) -> None:
            nonlocal heard
            heard += chunk
            if heard.count(b"\n") == lines:
                scope.cancel()

        await connection.attach(name, output=hear)
    return heard


@asynccontextmanager
async def _detaching(dial: DialInstance) -> AsyncIterator[_Detaching]:
    """Connect to an instance whose connections have the capability."""
    async with dial() as connection:
        if not isinstance(connection, RunsDetached):
            raise Violation("the connection is a RunsDetached", f"it is {connection!r:.200}")
        yield connection


@asynccontextmanager
async def _named(connection: RunsDetached) -> AsyncIterator[str]:
    """A name that nobody has used; whatever was started under it is removed."""
    name = f"check-{token_hex(8)}"
    try:
        yield name
    finally:
        with anyio.move_on_after(10, shield=True):
            try:
                await connection.kill(name)
            except NameUnknown:
                return
            await connection.forget(name)


DETACHED_CHECKS: tuple[DetachedCheck, ...] = (
    check_output_and_outcome_are_kept,
    check_input_environment_and_directory,
    check_no_signal_is_ignored,
    check_secrets_are_nobodys_argument,
    check_it_outlives_its_connection,
    check_several_may_be_attached,
    check_a_name_is_used_once,
    check_starting_attached_reports_the_start_first,
    check_what_was_started_attached_goes_on,
    check_output_is_kept_up_to_a_limit,
    check_killing_ends_the_process_tree,
    check_commands_are_listed_until_they_are_forgotten,
    check_unknown_and_impossible_names_are_refused,
)
"""Every check, in the order in which the capability is best made to pass them."""
