"""Tries at a body that needs an instance: another one each time that the instance is lost."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Generic, Self, TypeVar

from fleeting.config import check
from taskscaler._errors import LeaseLost
from taskscaler._lease import Lease

A = TypeVar("A", bound="Try")


class Try:
    """One try, and how it went."""

    def __init__(self, key: str, number: int, *, is_last: bool) -> None:
        """Not made yet."""
        self.key = key
        """What its slot is acquired under."""

        self.number = number
        """Which it is, from 1."""

        self.loss: LeaseLost | None = None
        """What the try lost its instance to, if it did and another one follows."""

        self._is_last = is_last

    def forgives(self, error: BaseException | None) -> bool:
        """Whether another try follows an error: the loss of its own lease, not of another one in its body."""
        if isinstance(error, LeaseLost) and error.key == self.key and not self._is_last:
            self.loss = error
        return self.loss is not None


class Tries(Generic[A]):
    """Tries one after the other, until one has not lost its instance."""

    def __init__(self, make: Callable[[int, bool], A], tries: int) -> None:
        """Take what makes a try of its number and whether it is the last."""
        check("tries", tries, int, least=1)
        self._make = make
        self._tries = tries
        self._current: A | None = None

    def following(self) -> A | None:
        """Give the next try; None if there is nothing to try again, or no try is left."""
        number = 1 if self._current is None else self._current.number + 1
        if self._current is not None and (self._current.loss is None or number > self._tries):
            return None
        self._current = self._make(number, number == self._tries)
        return self._current


class Attempt(Try):
    """One try of `Taskscaler.attempts`: a context manager that holds a slot while its body runs."""

    def __init__(self, key: str, number: int, acquired: AbstractAsyncContextManager[Lease], *, is_last: bool) -> None:
        """Take what waits for the slot."""
        super().__init__(key, number, is_last=is_last)
        self._acquired = acquired

    async def __aenter__(self) -> Lease:
        """Wait for a slot. Raises as `Taskscaler.acquire_lease`."""
        return await self._acquired.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Release the lease; a loss is forgiven if another try follows."""
        try:
            if await self._acquired.__aexit__(kind, error, trace):
                return True
        except LeaseLost as lost:
            if self.forgives(lost):
                return True
            raise
        return self.forgives(error)


class Attempts:
    """The tries of `Taskscaler.attempts`, to be looped over."""

    def __init__(self, tries: Tries[Attempt]) -> None:
        """Take the tries."""
        self._tries = tries

    def __aiter__(self) -> Self:
        """Loop over them."""
        return self

    async def __anext__(self) -> Attempt:
        """Give the next try, if the last one lost its instance."""
        following = self._tries.following()
        if following is None:
            raise StopAsyncIteration
        return following
