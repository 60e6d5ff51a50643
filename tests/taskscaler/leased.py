"""A lease as far as an executor sees it, for tests of executors that need no scaler."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from attrs import define

from fleeting import Connection


@define
class Slot:
    """One slot on an instance, reached by whatever connects to it."""

    instance: str
    connect: Callable[[], AbstractAsyncContextManager[Connection]]
    slot: int = 0

    def dial(self) -> AbstractAsyncContextManager[Connection]:
        """Connect to the instance."""
        return self.connect()
