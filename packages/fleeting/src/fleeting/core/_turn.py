"""What one message has led to so far; the plan makes a `Step` of it. Pure."""

from attrs import define, field

from fleeting.core import messages


@define
class Turn:
    """What the current fact has led to so far."""

    writes: dict[tuple[str, str], None] = field(factory=dict)
    """Which records may have changed, by kind and id."""

    actions: list[messages.Action] = field(factory=list)
    events: list[messages.Event] = field(factory=list)
    suspensions: list[str] = field(factory=list)
    resumptions: list[str] = field(factory=list)

    def write(self, kind: str, id_: str) -> None:
        """A record may have changed; it is made at the end of the turn, once, however often it has changed."""
        self.writes[kind, id_] = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing has come of the fact."""
        asked = self.actions or self.suspensions or self.resumptions
        return not (asked or self.writes or self.events)
