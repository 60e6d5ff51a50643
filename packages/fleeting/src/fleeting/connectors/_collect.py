"""What a connector does with output for which its caller gives no sink."""

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

    async def __call__(self, chunk: bytes) -> None:
        """Keep it.

        Raises:
            ConnectError: It is more than 16 MiB in all.
        """
        if len(self.data) + len(chunk) > COLLECT_LIMIT:
            raise ConnectError(f"the command wrote more than {COLLECT_LIMIT >> 20} MiB to {self._name}; give a sink")
        self.data += chunk
