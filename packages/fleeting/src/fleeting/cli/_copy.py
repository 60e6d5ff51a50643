"""``fleeting cp``: files and directories to an instance and back."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path

from attrs import frozen

from fleeting._errors import WrongArguments
from fleeting.cli._commandline import SUCCEEDED
from fleeting.cli._group import OpenGroup, not_there
from fleeting.connectors._files import get, put


@frozen
class _There:
    """A path on an instance."""

    instance: str
    path: str


async def copy(group: OpenGroup, *, source: str, target: str) -> int:
    """Copy up or down, whichever the two say."""
    view = await group.look()
    match _place(source, view.instances), _place(target, view.instances):
        case _There() as there, Path() as here:
            where = f"on {there.instance}"
            move = partial(get, there=there.path, here=here, into=target.endswith("/"), where=where)
        case Path() as here, _There() as there:
            move = partial(put, here=here, there=there.path, where=f"on {there.instance}")
        case Path(), Path():
            asked = next((each for each in (source, target) if ":" in each), source)
            raise not_there(asked.partition(":")[0], view.instances)
        case _:
            raise WrongArguments(
                "both are on instances; copy to this machine first, then from here to the other instance"
            )
    info = await group.connect_info(there.instance, view)
    async with group.driver.calls.dial(info) as connection:
        await move(connection)
    return SUCCEEDED


def _place(argument: str, instances: Iterable[str]) -> _There | Path:
    """Whether it is on an instance; ids may have colons and slashes in them."""
    for instance in sorted(instances, key=len, reverse=True):
        if argument.startswith(f"{instance}:"):
            return _There(instance, argument.removeprefix(f"{instance}:"))
    return Path(argument)
