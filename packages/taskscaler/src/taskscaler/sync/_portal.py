"""The portal between threads and the event loop, which nothing gets stuck in.

A thread that is interrupted while it waits (Ctrl-C) has what it asked for cancelled, and goes on only when that has
come to its end: nothing is left running that nobody waits for.
"""

from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, wait
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
class Portal:
    """Carries out in the event loop what threads ask for."""

    _blocking: BlockingPortal
    _closed: bool = field(default=False, init=False)

    def do(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """Call a function that does not wait."""
        self._check()
        return self._blocking.call(function, *args)

    def call(self, function: Callable[[*Ts], Awaitable[T]], *args: *Ts, undo: Callable[[T], object] | None = None) -> T:
        """Call a function and wait for it.

        Args:
            function: What to call.
            args: Its arguments.
            undo: Called with what it has returned, should this thread be interrupted before it gets that.
        """
        self._check()
        call: _Call[T] = _Call()
        try:
            self._blocking.start_task_soon(call.run, function, *args)
            return call.outcome.result()
        except BaseException as error:
            if not call.raised(error) and self._blocking.call(call.give_up):
                wait([call.outcome])
                if undo is not None and call.outcome.exception() is None:
                    undo(call.outcome.result())
            raise

    def start(self, function: Callable[[*Ts], Awaitable[object]], *args: *Ts) -> None:
        """Have a function run that nobody waits for; it deals with its errors itself, and ends with the scaler."""
        self._check()
        self._blocking.start_task_soon(function, *args)

    @contextmanager
    def held(self, manager: AbstractAsyncContextManager[T]) -> Iterator[T]:
        """Enter an asynchronous context, and leave it after the body, whose errors it does not see."""
        stay: _Stay[T] = self.do(_Stay)
        try:
            self._blocking.start_task_soon(stay.run, manager)
            yield stay.entered.result()
        finally:
            with suppress(RuntimeError):  # the portal was closed meanwhile, which has ended it
                if self._blocking.call(stay.leave):
                    wait([stay.left])
        stay.left.result()

    def close(self) -> None:
        """End what is still under way; nothing goes through any more."""
        self._closed = True
        self._blocking.call(self._blocking.stop, True)

    def _check(self) -> None:
        if self._closed:
            raise TaskscalerError(_ENDED)


class _Call(Generic[T]):
    """A call on its way. Whoever waits for it may be interrupted at any moment, also before it is in the event loop."""

    def __init__(self) -> None:
        self.outcome: Future[T] = Future()
        self._scope: anyio.CancelScope | None = None
        self._given_up = False

    async def run(self, function: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> None:
        """Make the call, unless nobody waits for it any more."""
        if self._given_up:
            return
        try:
            with anyio.CancelScope() as self._scope:
                self.outcome.set_result(await function(*args))
            if not self.outcome.done():
                self.outcome.set_exception(TaskscalerError("the call was interrupted"))
        except Exception as error:  # noqa: BLE001  (it is for the thread that waits)
            self.outcome.set_exception(error)
        except BaseException:
            self.outcome.set_exception(TaskscalerError(_ENDED))
            raise

    def give_up(self) -> bool:
        """Cancel it; says whether it had begun, and so comes to an end."""
        self._given_up = True
        if self._scope is not None:
            self._scope.cancel()
        return self._scope is not None

    def raised(self, error: BaseException) -> bool:
        """Whether the error is the call's own, not one that has met the thread that waits."""
        return self.outcome.done() and self.outcome.exception() is error


class _Stay(Generic[T]):
    """One task that enters a context, stays, and leaves it: that must not be done by different ones."""

    def __init__(self) -> None:
        self.entered: Future[T] = Future()
        self.left: Future[None] = Future()
        """Done once the context was left, with the error of that if there was one."""

        self._leaving = anyio.Event()
        self._scope = anyio.CancelScope()
        self._begun = False

    async def run(self, manager: AbstractAsyncContextManager[T]) -> None:
        """Stay until `leave`."""
        if self._leaving.is_set():
            return
        self._begun = True
        try:
            with self._scope:
                async with manager as value:
                    self.entered.set_result(value)
                    await self._leaving.wait()
        except Exception as error:  # noqa: BLE001  (it is for the thread that waits)
            (self.left if self.entered.done() else self.entered).set_exception(error)
        except BaseException:
            if not self.entered.done():
                self.entered.set_exception(TaskscalerError(_ENDED))
            raise
        finally:
            if not self.left.done():
                self.left.set_result(None)

    def leave(self) -> bool:
        """Leave, or enter no further; says whether there was anything begun that comes to an end."""
        self._leaving.set()
        if not self.entered.done():
            self._scope.cancel()
        return self._begun
