"""What a batch records of a fleet that others use as well: what becomes of the instances where its jobs run."""

from collections.abc import Callable

from attrs import define, field

from taskscaler._observe import InstanceEvent, ScalerEvent
from taskscaler.batch._state import JobChanged


@define(eq=False)
class UsedInstances:
    """Those on which a job of the batch has run."""

    _record: Callable[[ScalerEvent], None]
    _places: set[tuple[str, str]] = field(factory=set, init=False)
    """Pools and instances."""

    def changed(self, change: JobChanged) -> None:
        """Have the record begin with an instance where the batch does; what was before, others have paid for."""
        last = change.record.last_attempt
        if last is None or (place := (last.pool, last.instance)) in self._places:
            return
        self._places.add(place)
        self._record(InstanceEvent(at=change.at, pool=last.pool, instance=last.instance, state="running"))

    def hear(self, event: ScalerEvent) -> None:
        """Record what becomes of an instance that the batch has used; an observer of the fleet."""
        if isinstance(event, InstanceEvent) and (event.pool, event.instance) in self._places:
            self._record(event)
