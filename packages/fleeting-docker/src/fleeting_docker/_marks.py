"""The marks of a group's managers: volumes with labels, for a daemon keeps nothing else that belongs to no container.

Labels cannot be changed, so a mark is renewed by a new volume, and the old one is removed after that: at no moment is
there none. What is in the volumes is nothing; each costs the daemon an empty directory.
"""

import uuid
from collections.abc import Sequence
from math import inf

from attrs import frozen

from fleeting.plugins import Mark
from fleeting_docker_engine import Engine, EngineRefused, Volumes, quoted

MARK = "fleeting.mark"
"""The label of a mark; its value is the group."""

OWNER = "fleeting.owner"
UNTIL = "fleeting.until"

NOT_FOUND = 404


@frozen
class Marks:
    """Those of one group."""

    engine: Engine
    group: str

    async def read(self) -> list[Mark]:
        """All of them; of several of one owner's, the one that expires last."""
        found: dict[str, Mark] = {}
        for _, owner, until in await self._volumes():
            before = found[owner].until if owner in found else until
            found[owner] = Mark(owner=owner, until=max(before, until))
        return [*found.values()]

    async def write(self, owner: str, until: float) -> None:
        """Mark the group, in the place of an earlier mark of the same owner."""
        before = [name for name, whose, _ in await self._volumes() if whose == owner]
        labels = {MARK: self.group, OWNER: owner, UNTIL: str(max(0, round(until)))}
        name = f"fleeting-mark-{uuid.uuid4().hex}"
        await self.engine.ask("POST", "/volumes/create", json={"Name": name, "Labels": labels})
        await self._remove(before)

    async def erase(self, owners: Sequence[str]) -> None:
        """Take away the marks of some owners."""
        await self._remove([name for name, owner, _ in await self._volumes() if owner in owners])

    async def _volumes(self) -> list[tuple[str, str, float]]:
        """Of each mark: the volume's name, whose it is, and until when."""
        query = {"filters": {"label": [f"{MARK}={self.group}"]}}
        found = (await self.engine.ask_for(Volumes, "GET", "/volumes", query=query)).volumes
        return [(each.name, each.labels.get(OWNER, ""), _until(each.labels.get(UNTIL, ""))) for each in found]

    async def _remove(self, names: Sequence[str]) -> None:
        for name in names:
            try:
                await self.engine.ask("DELETE", f"/volumes/{quoted(name)}")
            except EngineRefused as error:
                if error.status != NOT_FOUND:
                    raise


def _until(text: str) -> float:
    return float(text) if text.isascii() and text.isdecimal() else inf
