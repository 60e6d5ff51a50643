"""One command in its shell: its input, its outputs on the way to their sinks, its end."""

from contextlib import suppress

import anyio
from attrs import define

from fleeting._errors import Unreachable
from fleeting._protocols import Source
from fleeting.connectors._base import Invocation
from fleeting.connectors._stdin import arriving, reading
from fleeting.connectors.winrm._calls import Calls
from fleeting.connectors.winrm._faults import BUSY, Fault, OperationTimeout

PIECE = 96 << 10
"""Bytes of input in one request: in base64, and with what goes around it, less than the 150 KiB that all take."""

BUSY_PAUSE = 0.2
"""Seconds before input is offered again that the host was too busy to take."""

EMPTY_PAUSE = 0.05
"""Seconds before a host is asked again that has answered at once with nothing."""


@define(eq=False)
class Running:
    """A command that was started."""

    _calls: Calls
    _shell: str
    _command: str

    async def attend(self, invocation: Invocation) -> int:
        """See it through; returns its exit status, and raises what a sink or the source raises.

        Raises:
            Unreachable: Nobody knows whether it ended.
        """
        if not invocation.stdin:
            await self._send(b"", end=True)
            return await self._pump(invocation)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._feed, invocation.stdin)
                status = await self._pump(invocation)
                tasks.cancel_scope.cancel()
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        return status

    async def _pump(self, invocation: Invocation) -> int:
        """Hand the outputs on as they come, and ask for more when they were taken."""
        while True:
            with suppress(OperationTimeout):
                out, err, status, is_over = await self._receive()
                if out:
                    await invocation.stdout(out)
                if err:
                    await invocation.stderr(err)
                if is_over:
                    return status
                if not (out or err):
                    await anyio.sleep(EMPTY_PAUSE)

    async def _receive(self) -> tuple[bytes, bytes, int, bool]:
        try:
            return await self._calls(lambda protocol: protocol.get_command_output_raw(self._shell, self._command))
        except Fault as fault:
            raise Unreachable(f"{self._calls.host} lost a command: {fault.reason}") from fault
        except Unreachable as error:
            raise Unreachable(f"{error}; it is unknown whether the command has ended") from error

    async def _feed(self, stdin: Source) -> None:
        """Send the input, as fast as it is taken, for as long as it is."""
        async with reading(arriving(stdin)) as chunks:
            async for chunk in chunks:
                for start in range(0, len(chunk), PIECE):
                    if not await self._send(chunk[start : start + PIECE]):
                        return
        await self._send(b"", end=True)

    async def _send(self, data: bytes, *, end: bool = False) -> bool:
        """Send input; False if the command takes none any more.

        A host that could not hand it over in time goes on trying, and says that it is busy until it has.
        """
        while True:
            try:
                await self._calls(
                    lambda protocol: protocol.send_command_input(self._shell, self._command, data, end=end)
                )
            except OperationTimeout:
                return True
            except Fault as fault:
                if fault.code != BUSY:
                    return False
            except Unreachable as error:
                raise Unreachable(f"{error}; it is unknown whether the command has ended") from error
            else:
                return True
            await anyio.sleep(BUSY_PAUSE)
