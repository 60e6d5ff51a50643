"""What can go wrong between us and a daemon. Whoever uses the client says what it means for him."""

from fleeting import FleetingError


class EngineRefused(FleetingError):
    """The daemon answered that it will not, or cannot."""

    def __init__(self, status: int, message: str) -> None:
        """Take the HTTP status, or 500 where the answer had begun well, and the daemon's own words."""
        self.status = status
        self.message = " ".join(message.split())
        super().__init__(f"the Docker daemon says: {self.message}")


class EngineUnreachable(FleetingError):
    """Nobody answers at the daemon's socket, or the connection to it broke."""
