"""What can go wrong between us and a daemon. Whoever uses the client says what it means for him."""

from fleeting import FleetingError
from fleeting.plugins import one_line


class EngineRefused(FleetingError):
    """The daemon answered that it will not, or cannot."""

    def __init__(self, status: int, message: str) -> None:
        """Take the HTTP status, or 500 where the answer had begun well, and the daemon's own words, of any length."""
        self.status = status
        self.message = one_line(message)
        super().__init__(f"the Docker daemon says: {self.message}")


class EngineUnreachable(FleetingError):
    """Nobody answers at the daemon's socket, or the connection to it broke."""


class EngineMalformed(EngineUnreachable):
    """Somebody answers, but not as the API has it; what was done is as unknown as if nobody had."""

    def __init__(self, endpoint: str, found: str, expected: str) -> None:
        """Take what was asked, such as ``GET /info``, what was found in the answer, and what belongs there."""
        super().__init__(
            f"the answer to {one_line(endpoint, 200)} contains {one_line(found, 300)} instead of "
            f"{one_line(expected, 300)}; is this a Docker daemon?"
        )
