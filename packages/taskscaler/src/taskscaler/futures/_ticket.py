"""Some work on its way through the event loop."""

from concurrent.futures import CancelledError, Future
from typing import Generic, TypeVar

import anyio
from attrs import define, field

from taskscaler._errors import TaskscalerError
from taskscaler.futures._future import FleetFuture, Stage
from taskscaler.futures._work import Task

T = TypeVar("T")


@define(eq=False)
class Ticket(Generic[T]):
    """Some work on its way; but for `settle`, only the event loop's thread touches it."""

    key: str
    task: Task
    future: FleetFuture[T] = field(init=False)
    stage: Stage = field(default=Stage.QUEUED, init=False)
    cancelled: bool = field(default=False, init=False)
    value: T | None = field(default=None, init=False)
    error: Exception | None = field(factory=lambda: TaskscalerError("the scaler has ended"), init=False)
    _scope: anyio.CancelScope | None = field(default=None, init=False)

    @property
    def scope(self) -> anyio.CancelScope:
        """What the work runs in; made in the event loop."""
        if self._scope is None:
            self._scope = anyio.CancelScope()
        return self._scope

    def begin(self) -> None:
        """There is a slot for it; perhaps not the first one."""
        if self.stage is Stage.QUEUED and not self.cancelled:
            self.stage = Stage.RUNNING
            self.future.set_running_or_notify_cancel()

    def cancel(self, only_queued: bool) -> Stage:  # noqa: FBT001  (called through the portal)
        """Cancel it, unless it is too late; says how far it has come."""
        stage = self.stage
        if stage is Stage.QUEUED or (stage is Stage.RUNNING and not only_queued):
            self.cancelled = True
            self.scope.cancel()
        return stage

    def settle(self, stage: Stage) -> None:
        """Have the future done, which had come as far as this."""
        if self.cancelled and stage is Stage.QUEUED:
            Future.cancel(self.future)
            self.future.set_running_or_notify_cancel()
        elif self.cancelled:
            self.future.set_exception(CancelledError())
        elif self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.value)  # type: ignore[arg-type]  # there is one, as there is no error
