"""What `MarksOwner` takes, for plugins: who is refused, and how to mark where a cloud just takes what it is given."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from math import inf

from fleeting._errors import GroupRefused
from fleeting._types import Clock, Mark
from fleeting._wording import one_line


def refuse_if_marked(marks: Sequence[Mark], *, owner: str, now: float, group: str) -> None:
    """Refuse who wants to manage a group that somebody else has marked. A mark that cannot be read refuses nobody.

    Args:
        marks: What is on the group.
        owner: Who asks.
        now: Seconds since the epoch.
        group: The group's name, for the message.

    Raises:
        GroupRefused: A mark of another owner has not expired.
    """
    for mark in marks:
        if mark.owner != owner and now < mark.until < inf:
            when = datetime.fromtimestamp(mark.until, UTC).isoformat(timespec="seconds")
            raise GroupRefused(f"{group} is managed by {mark.owner}; stop that manager, or wait until {when}")


def mark_as_text(owner: str, until: float) -> str:
    """Write a mark where a cloud has a place for one text; `mark_from_text` reads it."""
    return f"{owner} {max(0, round(until))}"


def mark_from_text(text: str) -> Mark | None:
    """Read what `mark_as_text` has written; None if it is empty. Of anything else, nobody knows when it expires."""
    if not text.strip():
        return None
    owner, _, until = text.rpartition(" ")
    if owner and until.isascii() and until.isdecimal():
        return Mark(owner=owner, until=float(until))
    return Mark(owner=one_line(text), until=inf)


async def put_mark(
    until: float | None,
    *,
    owner: str,
    clock: Clock,
    group: str,
    read: Callable[[], Awaitable[Sequence[Mark]]],
    write: Callable[[float], Awaitable[object]],
    erase: Callable[[Sequence[str]], Awaitable[object]],
) -> None:
    """Do what `MarksOwner.mark_owner` does where nothing can be changed on a condition.

    The mark is written and then looked for once more: of two who write at once, at least the later one sees the other,
    and withdraws. Marks of others that have expired are cleared away.

    Args:
        until: As `MarksOwner.mark_owner` takes it.
        owner: Whose mark it is.
        clock: By which marks expire.
        group: The group's name, for messages.
        read: Fetches all marks.
        write: Puts this owner's mark there, with its expiry, in the place of an earlier one.
        erase: Takes away the marks of some owners, at least one; those that are not there, too.

    Raises:
        GroupRefused: Another owner's mark is there and has not expired.
        ProviderError: From the cloud.
    """
    if until is None:
        await erase([owner])
        return
    refuse_if_marked(await read(), owner=owner, now=clock.now(), group=group)
    await write(until)
    marks = await read()
    try:
        refuse_if_marked(marks, owner=owner, now=clock.now(), group=group)
    except GroupRefused:
        await erase([owner])
        raise
    if others := [mark.owner for mark in marks if mark.owner != owner]:
        await erase(others)
