"""The door between threads and the event loop, which nothing gets stuck in.

A thread that is interrupted while it waits (Ctrl-C) has what it asked for cancelled, and goes on only when that has
come to its end: nothing is left running that nobody waits for.
"""

from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import CancelledError, Future, wait
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from typing import Generic, TypeVar, TypeVarTuple

import anyio
from anyio.from_thread import BlockingPortal
from attrs import define, field

from taskscaler._errors import TaskscalerError

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_ENDED = "the scaler has ended"


@define(eq=False)
class Door:
    """Carries out in the event loop what threads ask for."""

    _portal: BlockingPortal
    _closed: bool = field(default=False, init=False)

    def do(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """Call a function that does not wait."""
        self._check()
        return self._portal.call(function, *args)

    def call(self, function: Callable[[*Ts], Awaitable[T]], *args: *Ts, undo: Callable[[T], object] | None = None) -> T:
        """Call a function and wait for it.

        Args:
            function: What to call.
            args: Its arguments.
            undo: Called with what it has returned, should this thread be interrupted before it gets that.
        """
        scope = self.do(anyio.CancelScope)
        task = self._portal.start_task_soon(_within, scope, function, *args)
        try:
            return task.result()
        except CancelledError:
            raise TaskscalerError(_ENDED) from None
        except BaseException as error:
            if not (task.done() and task.exception() is error):  # it has met this thread, not the call
                self._portal.start_task_soon(scope.cancel)
                wait([task])
                if undo is not None and not task.cancelled() and task.exception() is None:
                    undo(task.result())
            raise

    def start(self, function: Callable[[*Ts], Awaitable[object]], *args: *Ts) -> None:
        """Have a function run that nobody waits for; it deals with its errors itself, and ends with the scaler."""
        self._check()
        self._portal.start_task_soon(function, *args)

    @contextmanager
    def held(self, manager: AbstractAsyncContextManager[T]) -> Iterator[T]:
        """Enter an asynchronous context, and leave it after the body, whose errors it does not see."""
        stay: _Stay[T] = self.do(_Stay)
        task = self._portal.start_task_soon(stay.run, manager)
        try:
            yield stay.entered.result()
        finally:
            with suppress(RuntimeError):  # the door was closed meanwhile, which has ended it
                self._portal.call(stay.leave)
            wait([task])
        if not task.cancelled():
            task.result()

    def close(self) -> None:
        """End what is still under way; nothing goes through any more."""
        self._closed = True
        self._portal.call(self._portal.stop, True)

    def _check(self) -> None:
        if self._closed:
            raise TaskscalerError(_ENDED)


class _Stay(Generic[T]):
    """One task that enters a context, stays, and leaves it: that must not be done by different ones."""

    def __init__(self) -> None:
        self.entered: Future[T] = Future()
        self._left = anyio.Event()
        self._scope = anyio.CancelScope()

    async def run(self, manager: AbstractAsyncContextManager[T]) -> None:
        """Stay until `leave`."""
        try:
            with self._scope:
                async with manager as value:
                    self.entered.set_result(value)
                    await self._left.wait()
        except Exception as error:
            if self.entered.done():
                raise
            self.entered.set_exception(error)
        except BaseException:
            if not self.entered.done():
                self.entered.set_exception(TaskscalerError(_ENDED))
            raise

    def leave(self) -> None:
        """Leave, or enter no further."""
        self._left.set()
        if not self.entered.done():
            self._scope.cancel()


async def _within(scope: anyio.CancelScope, function: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
    with scope:
        return await function(*args)
    raise TaskscalerError("the call was interrupted")
