"""Who has which host. Pure: every change gives a new value, to be written down before anybody hears of it.

A host is free, taken, or given back and not reset yet. Each taking is an instance of its own: its id is the
host's name and the number of the taking, and numbers only grow, so no id is ever given twice.
"""

from collections.abc import Collection, Iterator, Mapping

from attrs import evolve, field, frozen

from fleeting import Observed, State
from fleeting.groups.static._config import Host


@frozen(kw_only=True)
class Record:
    """What is remembered of one host, also while it is not configured."""

    place: str
    """Where it was last."""

    since: float
    """When it was taken, or became free; seconds since the epoch."""

    number: int = 0
    """How often it was taken."""

    intent: str | None = None
    """Who has it; None: it is free."""

    given_back: bool = False
    """Whether nothing but a reset is missing for it to be free."""

    @property
    def free(self) -> bool:
        """Whether it may be taken."""
        return self.intent is None


@frozen
class Assignments:
    """All hosts that were ever configured, by their names."""

    records: Mapping[str, Record]
    configured: Collection[str] = field(default=())
    """Those that are there now."""

    def open(self, hosts: Collection[Host], now: float) -> "Assignments":
        """Go on with these hosts.

        One that has moved meanwhile may be another machine: who had it there has it no more, and it is reset.
        """
        records = dict(self.records)
        for host in hosts:
            record = records.get(host.id, Record(place=host.place, since=now))
            moved = record.place != host.place
            records[host.id] = evolve(
                record, place=host.place, given_back=record.given_back or (moved and not record.free)
            )
        return Assignments(records, frozenset(host.id for host in hosts))

    @property
    def free(self) -> list[str]:
        """Those that may be taken, the one that has been free the longest first."""
        free = [name for name in self.configured if self.records[name].free]
        return sorted(free, key=lambda name: (self.records[name].since, name))

    @property
    def taken(self) -> Iterator[tuple[str, Record]]:
        """Hosts that are not free, with the instances that they are."""
        for name in sorted(self.configured):
            record = self.records[name]
            if not record.free:
                yield _instance(name, record), record

    @property
    def intents(self) -> list[str]:
        """Who has hosts; as often as it has any."""
        return [record.intent for _, record in self.taken if record.intent is not None]

    @property
    def view(self) -> dict[str, Observed]:
        """The instances that there are."""
        return {instance: _observed(instance, record) for instance, record in self.taken}

    def host_of(self, instance: str) -> str | None:
        """Which host the instance is; None if it is gone or never was."""
        name, _, _ = instance.rpartition(".")
        record = self.records.get(name)
        there = name in self.configured and record is not None and not record.free
        return name if there and record is not None and _instance(name, record) == instance else None

    def take(self, names: Collection[str], intent: str, now: float) -> "Assignments":
        """Make instances of hosts that are free."""
        return self._with(
            {
                name: evolve(record, number=record.number + 1, intent=intent, since=now)
                for name, record in self.records.items()
                if name in names
            }
        )

    def give_back(self, names: Collection[str]) -> "Assignments":
        """Have these hosts wait for their reset."""
        return self._with({name: evolve(self.records[name], given_back=True) for name in names})

    def release(self, names: Collection[str], now: float) -> "Assignments":
        """Have these hosts free again; their instances are no more."""
        return self._with(
            {name: evolve(self.records[name], intent=None, given_back=False, since=now) for name in names}
        )

    def _with(self, changed: Mapping[str, Record]) -> "Assignments":
        return evolve(self, records={**self.records, **changed})


def _instance(name: str, record: Record) -> str:
    return f"{name}.{record.number}"


def _observed(instance: str, record: Record) -> Observed:
    return Observed(
        state=State.DELETING if record.given_back else State.RUNNING,
        created_at=record.since,
        intent=record.intent,
        offering=instance.rpartition(".")[0],
    )
