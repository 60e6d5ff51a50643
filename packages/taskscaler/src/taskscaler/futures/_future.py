"""Futures whose work can be cancelled also while it runs."""

from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from enum import Enum
from typing import TypeVar

T = TypeVar("T")


class Stage(Enum):
    """How far some work has come."""

    QUEUED = "queued"
    RUNNING = "running"
    OVER = "over"


class FleetFuture(Future[T]):
    """A `concurrent.futures.Future`, with one thing more: work that runs on an instance is cancelled too.

    It is done only once nothing of it runs there any more.
    """

    def __init__(self, cancel: Callable[[], Stage]) -> None:
        """Take what cancels the work, and says how far it had come until then."""
        super().__init__()
        self._cancel = cancel

    def cancel(self) -> bool:
        """Cancel the work wherever it is; False if it is over, unless it was cancelled before."""
        match self._cancel():
            case Stage.QUEUED:
                return super().cancel()
            case Stage.RUNNING:
                return True
            case Stage.OVER:
                return self.cancelled()

    def cancelled(self) -> bool:
        """Whether it was cancelled, and has ended."""
        return super().cancelled() or (self.done() and isinstance(super().exception(), CancelledError))

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """See `concurrent.futures.Future.exception`; that of cancelled work is raised."""
        error = super().exception(timeout)
        if isinstance(error, CancelledError):
            raise error
        return error
