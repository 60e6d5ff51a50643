"""One question to a cloud for all who ask it at about the same time."""

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Generic, TypeVar

import anyio

from fleeting._errors import ProviderError

T = TypeVar("T")


class SharedCall(Generic[T]):
    """Asks once for all who wait: whoever asks while a call is under way gets the answer to the next one.

    So nobody gets an answer to a call that had begun before they asked, which may not show what they did, and nobody
    waits for more than two calls, however many ask. Errors are answers: while a cloud is silent, a hundred who ask wait
    for two time-outs and not for a hundred. A call whose caller is cancelled answers nobody; the next one who waits
    makes it again.
    """

    def __init__(self, call: Callable[[], Awaitable[T]]) -> None:
        """Share *call*, which raises `ProviderError` if it gets no answer."""
        self._call = call
        self._turn = anyio.Lock()
        self._begun = self._answered = 0
        self._answer: T | ProviderError
        self._origin: TracebackType | None = None
        """Where the error that is the answer was raised: each raise of it would add to what those before it added."""

    async def __call__(self) -> T:
        """Return the answer to a call that begins now or later, or raise its error."""
        first = self._begun + 1
        async with self._turn:
            if self._answered < first:
                self._begun += 1
                try:
                    self._answer = await self._call()
                except ProviderError as error:
                    self._answer, self._origin = error, error.__traceback__
                self._answered = self._begun
            answer = self._answer
        if isinstance(answer, ProviderError):
            raise answer.with_traceback(self._origin)
        return answer
