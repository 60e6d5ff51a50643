"""Sinks that keep output: all of it up to a limit, or a part."""

from attrs import define, field

from fleeting._errors import ConnectError

COLLECT_LIMIT = 16 << 20
"""Bytes of output that are collected for a caller who gives no sink."""


@define
class Collector:
    """The sink for a caller who gives none: keeps the output of a stream, up to the limit that all connectors have."""

    _name: str
    """The stream's, for the error."""

    data: bytearray = field(factory=bytearray)
    """What has arrived so far."""

    async def __call__(self, chunk: bytes) -> None:
        """Keep it.

        Raises:
            ConnectError: It is more than 16 MiB in all.
        """
        if len(self.data) + len(chunk) > COLLECT_LIMIT:
            raise ConnectError(f"the command wrote more than {COLLECT_LIMIT >> 20} MiB to {self._name}; pass a sink")
        self.data += chunk


@define
class Beginning:
    """A sink that keeps so many bytes of the beginning, and throws the rest away."""

    _most: int
    data: bytearray = field(factory=bytearray)
    """What was kept."""

    async def __call__(self, chunk: bytes) -> None:
        """Keep what there is room for."""
        self.data += chunk[: self._most - len(self.data)]


@define
class Ending:
    """A sink that keeps so many bytes of the end."""

    _most: int
    data: bytearray = field(factory=bytearray)
    """What was kept."""

    async def __call__(self, chunk: bytes) -> None:
        """Keep it until more comes."""
        self.data += chunk[-self._most :]
        del self.data[: -self._most]
