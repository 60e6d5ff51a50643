"""An asynchronous test that takes too long fails where it waits, and the run goes on.

pytest-timeout raises an error in whatever the main thread is doing. That is nearly always the loop, which knows nothing
of the test: on trio, anyio's runner then waits for the test without a limit, and on asyncio the report does not show
where the test waited. So the test is cancelled, from within its loop. Since this limit is the only clock of nearly all
tests, its report has to show the wait that hung.
"""

import asyncio  # noqa: TID251  (its loop is told to cancel)
import signal
from collections.abc import Awaitable, Callable, Generator
from functools import wraps
from inspect import iscoroutinefunction
from types import FrameType
from typing import Any

import anyio
import pytest
import trio
from pytest_timeout import Settings, is_debugging, timeout_sigalrm, timeout_timer

GRACE = 60.0
"""Seconds for what a cancelled test has to clean up. A loop that is not back then, ends with its process: pytest-xdist
reports the test, and starts another worker for the rest."""


TOO_LONG = "the test took longer than its time limit"

_CANCEL = pytest.StashKey[Callable[[], None]]()
"""Cancels the test that runs; may be called by a signal's handler, wherever its loop is."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Let the test be cancelled."""
    test = pyfuncitem.obj
    if not iscoroutinefunction(test):
        return (yield)
    pyfuncitem.obj = _cancellable(pyfuncitem, test)
    try:
        return (yield)
    finally:
        pyfuncitem.obj = test
        if _CANCEL in pyfuncitem.stash:
            del pyfuncitem.stash[_CANCEL]


@pytest.hookimpl
def pytest_timeout_set_timer(item: pytest.Item, settings: Settings) -> bool | None:
    """Set the timer for a test that may run in a loop, in the place of pytest-timeout's own."""
    if settings.method != "signal":
        return None

    def end(_signum: int, _frame: FrameType | None) -> None:
        if not settings.disable_debugger_detection and is_debugging():
            return
        cancel_test = item.stash.get(_CANCEL, None)
        if cancel_test is not None:
            del item.stash[_CANCEL]  # the next time, it has had its time
            signal.setitimer(signal.ITIMER_REAL, GRACE)
            cancel_test()
        elif _is_on_trio(item):
            timeout_timer(item, settings)  # which prints where all threads are, and exits
        else:
            timeout_sigalrm(item, settings)

    def cancel() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)

    item.cancel_timeout = cancel  # type: ignore[attr-defined]  # what pytest-timeout calls in the end
    signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, settings.timeout)
    return True


def _is_on_trio(item: pytest.Item) -> bool:
    callspec = getattr(item, "callspec", None)
    backend = getattr(item, "funcargs", {}).get("anyio_backend") or (callspec and callspec.params.get("anyio_backend"))
    return (backend[0] if isinstance(backend, tuple) else backend) == "trio"


def _cancellable(item: pytest.Item, test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """Have the test fail, with where it was, once it was cancelled."""

    @wraps(test)
    async def in_time(**arguments: Any) -> None:  # noqa: ANN401  (fixtures)
        place: BaseException | None = None
        with anyio.CancelScope() as scope:
            run_soon: Callable[[Callable[[], None]], object] = (
                trio.lowlevel.current_trio_token().run_sync_soon
                if _is_on_trio(item)
                else asyncio.get_running_loop().call_soon_threadsafe
            )

            def cancel() -> None:
                run_soon(scope.cancel)

            item.stash[_CANCEL] = cancel
            try:
                await test(**arguments)
            except BaseException as error:
                place = error
                raise
        if scope.cancel_called:
            raise pytest.fail.Exception(TOO_LONG) from place

    return in_time
