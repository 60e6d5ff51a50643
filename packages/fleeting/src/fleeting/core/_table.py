"""The table of known instances, and what is counted of them. Pure; reading a count is O(1)."""

from collections import Counter
from collections.abc import Iterable, Sequence

from fleeting.core._instance import Instance
from fleeting.core._last_view import LastView
from fleeting.core._stages import Phase, Stage


class InstanceTable:
    """All known instances. What is counted of them is changed here and nowhere else."""

    def __init__(self, last_view: LastView) -> None:
        """Start with none; *last_view* learns which of them the next view has to be looked through for."""
        self._last_view = last_view
        self.by_id: dict[str, Instance] = {}
        self._by_stage: Counter[Stage] = Counter()
        self.paused = 0
        """How many get no new work for now, as the views show them."""

        self.retained: set[str] = set()
        """Ids of those that must not be deleted."""

        self._changed: dict[str, None] = {}

    def known(self, instances: Iterable[str]) -> list[Instance]:
        """Those of them that are known; an answer may come when an instance is gone already."""
        return [self.by_id[instance] for instance in instances if instance in self.by_id]

    def count(self, stage: Stage) -> int:
        """How many are in that stage."""
        return self._by_stage[stage]

    def add(self, instance: Instance) -> None:
        """Take in a new one."""
        self.by_id[instance.id] = instance
        self._by_stage[instance.stage] += 1
        if instance.retained is not None:
            self.retained.add(instance.id)
        self.note_change(instance)

    def drop(self, instance: Instance) -> None:
        """It is gone."""
        del self.by_id[instance.id]
        self._by_stage[instance.stage] -= 1
        self.paused -= bool(instance.paused)
        self.retained.discard(instance.id)
        self._last_view.forget(instance.id)

    def move(self, instance: Instance, phase: Phase) -> None:
        """Have it enter a stage. Raises `IllegalMove` if the table of transitions does not allow it."""
        before = instance.phase.stage
        instance.move(phase)
        self._by_stage[before] -= 1
        self._by_stage[phase.stage] += 1
        self.note_change(instance)

    def pause(self, instance: Instance, why: str) -> None:
        """It gets no new work for now; empty *why*: it may."""
        self.paused += bool(why) - bool(instance.paused)
        instance.paused = why
        self.note_change(instance)

    def retain(self, instance: Instance, why: str | None) -> None:
        """It must not be deleted; None: it may be."""
        instance.retained = why
        if why is None:
            self.retained.discard(instance.id)
        else:
            self.retained.add(instance.id)
        self.note_change(instance)

    def note_change(self, instance: Instance) -> None:
        """Something of it has changed that matters to work, and the next view has to be looked through for it."""
        self._changed[instance.id] = None
        self._last_view.look_at(instance.id)

    def take_changed(self) -> Sequence[str]:
        """Those of which something has changed since this was last asked, and that are known still, each once."""
        if not self._changed:
            return ()
        changed, self._changed = self._changed, {}
        return [instance for instance in changed if instance in self.by_id]
