"""Whether a host is the one it should be; nobody logs in before that is known.

What is known of an instance, in this order: the key that its group reports, the user's file of known hosts, the key
that it showed when it was first seen.
"""

import os
import secrets
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

import anyio
from anyio import to_thread
from attrs import define, field, frozen

from fleeting._errors import ConfigError, ConfigProblem, ConnectError, HostKeyMismatch
from fleeting._types import ConnectInfo
from fleeting.connectors.ssh._known_hosts import KnownKeys, known_keys

_LONGEST_NAME = 200
"""Characters of a file's name; file systems allow 255."""


class HostKeys(Protocol):
    """Remembers the key that each instance showed when it was first seen. Instance ids are never reused."""

    async def get(self, instance: str) -> str | None:
        """Return the pinned key as ``type base64``, None if there is none."""
        ...

    async def pin(self, instance: str, key: str) -> str:
        """Remember a key, durably, and return the one that is pinned: another's, if that was faster."""
        ...

    async def forget(self, instance: str) -> None:
        """Let go of what is known of an instance that is gone for good."""
        ...


@define
class MemoryHostKeys:
    """Remembers for as long as it lives."""

    _keys: dict[str, str] = field(factory=dict, init=False)

    async def get(self, instance: str) -> str | None:
        """See `HostKeys.get`."""
        return self._keys.get(instance)

    async def pin(self, instance: str, key: str) -> str:
        """See `HostKeys.pin`."""
        return self._keys.setdefault(instance, key)

    async def forget(self, instance: str) -> None:
        """See `HostKeys.forget`."""
        self._keys.pop(instance, None)


@frozen
class FileHostKeys:
    """Remembers in a directory, one file for each instance, so that processes may share it without a lock."""

    directory: Path

    async def get(self, instance: str) -> str | None:
        """See `HostKeys.get`."""
        return await to_thread.run_sync(lambda: _read(self._path(instance)))

    async def pin(self, instance: str, key: str) -> str:
        """See `HostKeys.pin`."""
        return await to_thread.run_sync(lambda: _pin(self._path(instance), key))

    async def forget(self, instance: str) -> None:
        """See `HostKeys.forget`."""
        await to_thread.run_sync(lambda: self._path(instance).unlink(missing_ok=True))

    def _path(self, instance: str) -> Path:
        name = quote(instance, safe="")
        if len(name) > _LONGEST_NAME:
            name = sha256(name.encode()).hexdigest()
        return self.directory / f"{name}.key"


def default_host_keys() -> FileHostKeys:
    """Remember in the user's state directory."""
    base = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not base.is_absolute():  # the specification says to pass over such a one
        base = Path("~/.local/state").expanduser()
    return FileHostKeys(base / "fleeting" / "host_keys")


@frozen
class Expected:
    """What is known of a host before it is asked."""

    keys: frozenset[str]
    """Those it may show, each as ``type base64``; none: any, if it is not `strict`."""

    source: str
    """Where they are from, for errors."""

    revoked: frozenset[str] = frozenset()
    strict: bool = True
    """Whether a host of which nothing is known is refused."""

    @property
    def types(self) -> frozenset[str]:
        """The types of the keys, so that the host can be asked for one of them."""
        return frozenset(key.split()[0] for key in self.keys)

    def check(self, instance: str, shown: str) -> None:
        """Compare with what the host shows.

        Raises:
            HostKeyMismatch: It is not the one it should be.
        """
        if shown in self.revoked:
            raise HostKeyMismatch(f"{instance} shows the key {fingerprint(shown)}, which {self.source} says is revoked")
        if not self.keys and self.strict:
            raise HostKeyMismatch(f"{self.source} has no key of {instance}, which shows {fingerprint(shown)}; add it")
        if self.keys and shown not in self.keys:
            expected = " or ".join(sorted(map(fingerprint, self.keys)))
            raise HostKeyMismatch(
                f"{instance} shows the host key {fingerprint(shown)}, {self.source} has {expected}: "
                "somebody else answers there, or the host was set up anew"
            )


async def expected(info: ConnectInfo, address: tuple[str, int], known_hosts: str | None, store: HostKeys) -> Expected:
    """Tell what is known of an instance.

    Raises:
        ConnectError: What is known cannot be read.
        ConfigError: The file of known hosts cannot be read.
    """
    if info.host_key is not None:
        return Expected(frozenset({_normal(info)}), "its group")
    if known_hosts is not None:
        known = await _look_up(known_hosts, *address)
        return Expected(known.trusted, known_hosts, known.revoked)
    pinned = await store.get(info.id)
    keys = frozenset({pinned} if pinned else ())
    return Expected(keys, "the record of when it was first seen", strict=False)


def fingerprint(key: str) -> str:
    """Show a key as OpenSSH does, ``SHA256:…`` after its type."""
    import base64

    kind, _, text = key.partition(" ")
    digest = sha256(base64.b64decode(text)).digest()
    return f"{kind} SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


async def _look_up(known_hosts: str, host: str, port: int) -> KnownKeys:
    try:
        text = await (await anyio.Path(known_hosts).expanduser()).read_text(errors="replace")
    except OSError as error:
        problem = ConfigProblem(path="known_hosts", found=known_hosts, expected=f"a file to read ({error.strerror})")
        raise ConfigError([problem]) from error
    return known_keys(text, host, port)


def _normal(info: ConnectInfo) -> str:
    """The key without a comment."""
    fields = (info.host_key or "").split()
    if len(fields) < 2:  # noqa: PLR2004  (type and key)
        raise ConnectError(f"the host key that its group reports for {info.id} is not a line of type and base64")
    return " ".join(fields[:2])


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConnectError(f"the pinned host key in {path} cannot be read: {error.strerror}") from error


def _pin(path: Path, key: str) -> str:
    """Write the file whole or not at all, unless somebody else has."""
    draft = path.with_name(f".{secrets.token_hex(8)}")
    try:
        if not path.parent.is_dir():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(draft, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(f"{key}\n")
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            path.hardlink_to(draft)
        draft.unlink()
    except OSError as error:
        raise ConnectError(f"the host key cannot be pinned in {path.parent}: {error.strerror}") from error
    return _read(path) or key
