"""What nobody foresaw, and is to end nothing but itself: it is logged, and life goes on."""

import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import anyio
from attrs import define, field

FORGIVEN = 3600.0
"""Seconds after which what has failed as nobody foresaw is logged again, and the token is looked after again."""

log = logging.getLogger("taskscaler.gitlab")


@define
class Unforeseen:
    """Logs it; what is tried again and again, once an hour."""

    _logged: dict[str, float] = field(factory=dict, init=False)
    """When failures of a kind were logged last that are tried again."""

    @contextmanager
    def contained(self, event: str, **about: object) -> Iterator[None]:
        """Have what goes wrong, and nobody foresaw, end the body alone, and log it."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  (logged)
            self.log_unforeseen(error, event, about)

    def log_unforeseen(self, error: Exception, event: str, about: Mapping[str, object]) -> None:
        """Log where something failed; of what is tried again and again, once an hour."""
        last, now = self._logged.get(event, -math.inf), anyio.current_time()
        is_again = not about and now - last < FORGIVEN
        if not about and not is_again:
            self._logged[event] = now
        log.log(logging.DEBUG if is_again else logging.ERROR, event, exc_info=error, extra=dict(about))
