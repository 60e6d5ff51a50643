"""The part of a fleet that one batch has, where several batches and programs share it."""

import math
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

from attrs import define, field, frozen

from taskscaler._errors import NoCapacity
from taskscaler._lease import Lease
from taskscaler._scaler import Taskscaler

PREFIX = "batch:"
"""What the keys of all batches' leases begin with: nobody else's do."""


@frozen
class _Kept:
    """A lease of the batch's that nobody holds."""

    key: str


@define(eq=False)
class Share:
    """A `Scaler` for one batch: its keys are the names of its jobs, and it sees and ends no lease of anybody else."""

    _scaler: Taskscaler
    _batch: str
    """Names it among all batches of the fleet, for good."""

    discreet: bool = False
    """Whether reasons are cut where they may name others' work."""

    _prefix: str = field(init=False)

    def __attrs_post_init__(self) -> None:
        """Name its keys."""
        self._prefix = f"{PREFIX}{self._batch}:"

    @asynccontextmanager
    async def acquire(
        self,
        key: str,
        *,
        timeout: float | None = None,
        expected_duration: float = math.inf,
        place: int | None = None,
        persistent: bool = False,
    ) -> AsyncIterator[Lease]:
        """Hold a slot, as `Taskscaler.acquire` does."""
        acquired = self._scaler.acquire(
            f"{self._prefix}{key}",
            timeout=timeout,
            expected_duration=expected_duration,
            place=place,
            persistent=persistent,
        )
        async with AsyncExitStack() as stack:
            with self._cut():
                lease = await stack.enter_async_context(acquired)
            yield lease

    @property
    def detached(self) -> Sequence[_Kept]:
        """Its leases that nobody has reattached."""
        mine = (lease.key for lease in self._scaler.detached if lease.key.startswith(self._prefix))
        return [_Kept(key.removeprefix(self._prefix)) for key in mine]

    async def reattach(self, key: str) -> Lease:
        """Take up one of them. Raises as `Taskscaler.reattach`."""
        with self._cut():
            return await self._scaler.reattach(f"{self._prefix}{key}")

    async def explain(self) -> str:
        """Why there is no capacity."""
        return (await self._scaler.explain()).answer

    async def stop(self) -> None:
        """Do nothing: the batch ends its own leases and waits, and others' are not its business."""

    @contextmanager
    def _cut(self) -> Iterator[None]:
        try:
            yield
        except NoCapacity as error:
            if not self.discreet:
                raise
            why = str(error).partition("\n")[0]
            raise NoCapacity(why, possible=error.possible, capacity=error.capacity) from error
