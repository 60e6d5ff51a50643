"""What one message has led to so far; the plan makes a `Step` of it. Pure."""

from attrs import define, field

from fleeting.core import messages
from fleeting.core._records import INSTANCE, INTENT


@define
class Turn:
    """What the current message has led to so far: one for the whole life of a plan, which empties it each time."""

    writes: dict[tuple[str, str], None] = field(factory=dict)
    """Which records may have changed, by kind and id."""

    actions: list[messages.Action] = field(factory=list)
    events: list[messages.Event] = field(factory=list)
    journaled: bool = True
    """Whether anybody keeps a journal; else no writes are noted."""

    suspensions: list[str] = field(factory=list)
    resumptions: list[str] = field(factory=list)

    def write(self, kind: str, id_: str) -> None:
        """A record may have changed; it is made at the end of the turn, once, however often it has changed."""
        if self.journaled:
            self.writes[kind, id_] = None

    def write_intent(self, intent: str) -> None:
        """Store it."""
        if self.journaled:
            self.writes[INTENT, intent] = None

    def write_instance(self, instance: str) -> None:
        """Store it."""
        if self.journaled:
            self.writes[INSTANCE, instance] = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing has come of the message."""
        asked = self.actions or self.suspensions or self.resumptions
        return not (asked or self.writes or self.events)

    def begin(self) -> None:
        """Empty it; what was handed over stays as it is."""
        self.writes, self.actions, self.events = {}, [], []
        if self.suspensions or self.resumptions:
            self.suspensions, self.resumptions = [], []
