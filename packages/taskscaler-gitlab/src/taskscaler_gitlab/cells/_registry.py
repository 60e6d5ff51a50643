"""Runners that have registered with the router, and not with a GitLab: pure.

Of their tokens, hashes are kept. A token is good until it is replaced, has expired, or its runner is removed; then it
is refused as GitLab refuses it.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from http import HTTPStatus
from typing import Any

from attrs import define, evolve, field, frozen

from gitlab_jobs import mint_routable, read_token, shorten
from gitlab_jobs.coordinator import Reply

MOST_RUNNERS = 10_000
"""Runners that may be registered: a leaked registration token fills no disk."""

MOST_MANAGERS = 100
"""Machines of one runner that are listed; who has its token, may bring more."""

NEWS = 600
"""Seconds from one call of a runner until another is worth being noted down."""

PREFIX = "glrt-"
_LONGEST = 256
_SYSTEM = re.compile(r"[\w-]{1,64}", re.ASCII)

FORBIDDEN = Reply(status=HTTPStatus.FORBIDDEN, body={"message": "403 Forbidden"})


@frozen(kw_only=True)
class Registered:
    """A runner of ours."""

    id: int
    """Its number, which is never given again."""

    token_hash: str
    """SHA-256 of its token, in hexadecimal digits."""

    short: str
    """The beginning of the token, which may be shown."""

    description: str
    registered_at: int
    """In seconds since 1970, as all times here."""

    obtained_at: int
    """When it was given its token."""

    expires_at: int | None
    """When that ends; None: never."""

    contacted_at: int
    managers: tuple[str, ...] = ()
    """The machines that have used the token, by their system IDs."""


@define
class Registry:
    """All of them."""

    expires_after: int | None = None
    """Seconds for which a token is good."""

    last_id: int = 0
    runners: dict[int, Registered] = field(factory=dict)
    _ids: dict[str, int] = field(init=False, eq=False)
    """By the hashes of their tokens."""

    def __attrs_post_init__(self) -> None:
        """Begin with what is known."""
        self._ids = {each.token_hash: each.id for each in self.runners.values()}

    def find(self, token: str, now: int) -> Registered | None:
        """The runner with this token, if it is good."""
        found = self.runners.get(self._ids.get(_hashed(token), 0)) if token.startswith(PREFIX) else None
        return None if found is None or (found.expires_at is not None and now >= found.expires_at) else found

    def register(self, body: Mapping[str, Any], now: int, random: bytes) -> Reply:
        """``POST runners``, of who knows the registration token."""
        if len(self.runners) >= MOST_RUNNERS:
            message = f"403 Forbidden - {MOST_RUNNERS} runners are registered; remove some"
            return Reply(status=HTTPStatus.FORBIDDEN, body={"message": message})
        self.last_id += 1
        token = _minted(random)
        said = body.get("description")
        made = Registered(
            id=self.last_id,
            token_hash=_hashed(token),
            short=shorten(token),
            description=_one_line(said) if isinstance(said, str) else "",
            registered_at=now,
            obtained_at=now,
            expires_at=self._expiry(now),
            contacted_at=now,
        )
        self._put(made)
        return self._reply(HTTPStatus.CREATED, made, token)

    def verify(self, token: str, system: object, now: int) -> Reply:
        """``POST runners/verify``."""
        found = self.find(token, now)
        if found is None:
            return FORBIDDEN
        if self.is_news(found, system, now):
            self.note(found, system, now)
        return self._reply(HTTPStatus.OK, found, token)

    def reset(self, token: str, now: int, random: bytes) -> Reply:
        """``POST runners/reset_authentication_token``: the old one is good for nothing from now on."""
        found = self.find(token, now)
        if found is None:
            return FORBIDDEN
        fresh = _minted(random)
        renewed = evolve(
            found, token_hash=_hashed(fresh), short=shorten(fresh), obtained_at=now, expires_at=self._expiry(now)
        )
        self.remove(found.id)
        self._put(renewed)
        reply = self._reply(HTTPStatus.CREATED, renewed, fresh)
        return evolve(reply, body={key: reply.body[key] for key in ("token", "token_expires_at")})

    def unregister(self, token: str, now: int, *, system: object = None) -> Reply:
        """``DELETE runners``; of a *system*, ``DELETE runners/managers``: a runner goes with its last machine."""
        found = self.find(token, now)
        if found is None:
            return FORBIDDEN
        left = tuple(each for each in found.managers if each != system)
        if isinstance(system, str) and left:
            self.runners[found.id] = evolve(found, managers=left)
        else:
            self.remove(found.id)
        return Reply(status=HTTPStatus.NO_CONTENT)

    def is_news(self, found: Registered, system: object, now: int) -> bool:
        """Whether it is worth being noted down that a runner has called: each time, the whole list is written."""
        is_listed = self._is_new(found, system) and len(found.managers) < MOST_MANAGERS
        return is_listed or now - found.contacted_at >= NEWS

    def note(self, found: Registered, system: object, now: int) -> None:
        """A runner has called."""
        is_new = self._is_new(found, system)
        managers = (*found.managers, str(system))[-MOST_MANAGERS:] if is_new else found.managers
        self.runners[found.id] = evolve(found, contacted_at=now, managers=managers)

    def remove(self, number: int) -> Registered | None:
        """Forget a runner; None: there is none of that number."""
        found = self.runners.pop(number, None)
        if found is not None:
            self._ids.pop(found.token_hash, None)
        return found

    def _put(self, runner: Registered) -> None:
        self.runners[runner.id] = runner
        self._ids[runner.token_hash] = runner.id

    def _is_new(self, found: Registered, system: object) -> bool:
        return isinstance(system, str) and _SYSTEM.fullmatch(system) is not None and system not in found.managers

    def _expiry(self, now: int) -> int | None:
        return None if self.expires_after is None else now + self.expires_after

    def _reply(self, status: int, found: Registered, token: str) -> Reply:
        expires = None if found.expires_at is None else datetime.fromtimestamp(found.expires_at, tz=UTC).isoformat()
        return Reply(status=status, body={"id": found.id, "token": token, "token_expires_at": expires})


def is_of_a_router(token: str) -> bool:
    """Whether a router has made a token, and no GitLab, whose organizations are numbered from 1."""
    hints = read_token(token)
    return token.startswith(PREFIX) and (hints.organization, hints.type, hints.cell) == (0, 1, None)


def _minted(random: bytes) -> str:
    return mint_routable(PREFIX, {"o": 0, "t": 1}, random)


def _hashed(token: str) -> str:
    return sha256(token.encode(errors="replace")).hexdigest()


def _one_line(text: str) -> str:
    return "".join(each if each.isprintable() else " " for each in text[:_LONGEST])
