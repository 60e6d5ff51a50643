"""Which addresses of its instance a job's log may name: whoever reads the log need not learn how to get there."""

from typing import Self

from attrs import frozen

from fleeting import ConnectInfo


@frozen
class Addresses:
    """The addresses of one instance."""

    shown: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()

    @classmethod
    def of(cls, info: ConnectInfo, *, internal: bool, external: bool) -> Self:
        """Sort them into those that may be named, and those that may not."""
        known = ((info.internal_addr, internal), (info.external_addr, external))
        shown = tuple(dict.fromkeys(address for address, may_show in known if address and may_show))
        return cls(shown, tuple(address for address, _ in known if address and address not in shown))

    def hide(self, text: str) -> str:
        """Leave those out of a text that may not be named."""
        for address in sorted(self.hidden, key=len, reverse=True):  # one may be the beginning of another
            text = text.replace(address, "[address]")
        return text
