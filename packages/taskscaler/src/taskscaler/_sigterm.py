"""Scripts that are ended by SIGTERM, as service managers and CI systems do it, and leave nothing all the same."""

import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, NoReturn, Self

import anyio

if TYPE_CHECKING:  # importing anyio.abc costs more than all that a bare import needs of anyio
    from anyio.abc import TaskStatus

STATUS = 128 + signal.SIGTERM
"""What a process exits with after the signal, by the convention of shells."""


class ExitOnSigterm:
    """See `exit_on_sigterm`; entered once, in either way."""

    def __init__(self) -> None:
        """Change nothing yet."""
        self._sync: AbstractContextManager[None] | None = None
        self._async: AbstractAsyncContextManager[None] | None = None

    def __enter__(self) -> Self:
        """Have the signal raise `SystemExit` in the main thread, which has to be this one."""
        self._sync = _raising()
        self._sync.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Handle the signal as before."""
        return self._sync.__exit__(kind, error, trace) if self._sync else None

    async def __aenter__(self) -> Self:
        """Have the signal cancel the block. Raises as `anyio.open_signal_receiver` outside of the main thread."""
        self._async = _cancelling()
        await self._async.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Handle the signal as before; if it has come, exit."""
        return await self._async.__aexit__(kind, error, trace) if self._async else None


def exit_on_sigterm() -> ExitOnSigterm:
    """Leave a block in good order when the process gets SIGTERM, then exit with status 143.

    Without it, Python ends at once: a scaler deletes no instance. Enter it before the scaler, with the same statement::

        with exit_on_sigterm(), Taskscaler(pool) as scaler:  # of taskscaler.sync
            ...

        async with exit_on_sigterm(), Taskscaler(pool) as scaler:
            ...

    The first is as if Ctrl-C was pressed: what the main thread waits for is ended. The second cancels the block.
    Further signals change nothing, so that the instances can be deleted. It has to be entered in the main thread.
    """
    return ExitOnSigterm()


@contextmanager
def _raising() -> Iterator[None]:
    def leave(_number: int, _frame: FrameType | None) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise SystemExit(STATUS)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)  # None: not set by Python


@asynccontextmanager
async def _cancelling() -> AsyncIterator[None]:
    came = False
    failure: Exception | None = None
    watching, body = anyio.CancelScope(shield=True), anyio.CancelScope()

    async def watch(*, task_status: "TaskStatus[None]") -> None:
        nonlocal came
        with watching, anyio.open_signal_receiver(signal.SIGTERM) as signals:
            task_status.started()
            async for _ in signals:
                came = True
                body.cancel()

    async with anyio.create_task_group() as tasks:
        await tasks.start(watch)
        try:
            with body:
                yield
        except Exception as error:  # noqa: BLE001  (raised below: the group would wrap it)
            failure = error
        finally:
            watching.cancel()
    if came:
        raise SystemExit(STATUS) from failure
    if failure is not None:
        raise failure
