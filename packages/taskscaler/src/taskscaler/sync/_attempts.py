"""Tries at a body that needs an instance, for threads."""

from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self

from taskscaler._attempts import Tries, Try
from taskscaler._errors import LeaseLost
from taskscaler.sync._lease import Lease


class Attempt(Try):
    """One try of `Taskscaler.attempts`: a context manager that holds a slot while its body runs."""

    def __init__(self, key: str, number: int, acquired: AbstractContextManager[Lease], *, is_last: bool) -> None:
        """Take what waits for the slot."""
        super().__init__(key, number, is_last=is_last)
        self._acquired = acquired

    def __enter__(self) -> Lease:
        """Wait for a slot. Raises as `Taskscaler.acquire_lease`."""
        return self._acquired.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Release the lease; a loss is forgiven if another try follows."""
        try:
            if self._acquired.__exit__(kind, error, trace):
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

    def __iter__(self) -> Self:
        """Loop over them."""
        return self

    def __next__(self) -> Attempt:
        """Give the next try, if the last one lost its instance."""
        following = self._tries.following()
        if following is None:
            raise StopIteration
        return following
