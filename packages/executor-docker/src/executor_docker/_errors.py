"""What keeps a job from being run in a container; of a job that ran, the outcome says it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from fleeting import ConnectError, Unreachable
from fleeting_docker_engine import EngineRefused, EngineUnreachable

_FULL: Final = "no space left on device"


class DockerError(ConnectError):
    """The job cannot be run in a container there, and trying again would not help."""

    def __init__(self, message: str, *, is_about_image: bool = False) -> None:
        """Take what is wrong, and whether it is that an image is not to be had."""
        super().__init__(message)
        self.is_about_image = is_about_image


@contextmanager
def reported(instance: str, what: str) -> Iterator[None]:
    """Say of the daemon's errors what was being done, and where.

    Args:
        instance: Its id.
        what: What did not work, such as ``the container cannot be made``.

    Raises:
        DockerError: The daemon refused.
        Unreachable: The way to it broke, and the job may be tried elsewhere.
    """
    try:
        yield
    except EngineRefused as error:
        if _FULL in error.message:
            raise DockerError(f"the disk of {instance} is full: {what}; make room there, or remove images") from error
        raise DockerError(f"{what} on {instance}: {error.message}") from error
    except EngineUnreachable as error:
        raise Unreachable(f"{error} ({instance})") from error
