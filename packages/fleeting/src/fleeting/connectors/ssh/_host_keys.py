"""Whether a host is the one it should be; nobody logs in before that is known.

What is known of an instance, in this order: the key that its group reports, the user's file of known hosts, the key
that it showed when it was first seen. A key is pinned for the instance, or for the host that its group names
(`ConnectInfo.host_key_alias`). A report that the instance itself could change is pinned as well: the first one counts.
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

from fleeting._directories import make_private, open_private
from fleeting._errors import ConfigError, ConfigProblem, ConnectError, HostKeyMismatch
from fleeting._types import ConnectInfo
from fleeting.connectors.ssh._known_hosts import KnownKeys, known_keys

KEPT_UNUSED = 90 * 86400.0
"""Seconds since an instance was last dialled, after which its key is forgotten."""

SWEEP_INTERVAL = 86400.0
"""Seconds between looks for such keys."""

_ALIAS = "@"
"""Begins the names of hosts that outlive their instances."""

_PIN, _DRAFT, _KEPT = ".key", ".draft", quote(_ALIAS)
"""How the files' names end; how those begin that are never forgotten."""

_LONGEST_KEY = 1 << 16
"""Characters of a pinned key that are read; no key has as many."""

_LONGEST_NAME = 200
"""Characters of a file's name; file systems allow 255."""


class HostKeys(Protocol):
    """Remembers the key that each instance showed when it was first seen. Instance ids are never reused.

    A host that outlives its instances has a name of its own, which begins with ``@``.
    """

    async def get(self, instance: str) -> str | None:
        """Return the pinned key as ``type base64``, None if there is none."""
        ...

    async def pin(self, instance: str, key: str) -> str:
        """Remember a key, durably, and return the one that is pinned: another's, if that was faster."""
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


@frozen
class FileHostKeys:
    """Remembers in a directory, one file for each instance, so that processes may share it without a lock.

    What was not looked at for `KEPT_UNUSED` is let go of: nobody reports that an instance is gone for good, least of
    all one that a manager left behind when it was killed. The keys of hosts that outlive their instances are kept for
    good: they are as few as those hosts.
    """

    directory: Path
    """Where the pinned keys are."""

    async def get(self, instance: str) -> str | None:
        """See `HostKeys.get`."""
        return await to_thread.run_sync(lambda: _read(self.where(instance)))

    async def pin(self, instance: str, key: str) -> str:
        """See `HostKeys.pin`."""
        return await to_thread.run_sync(lambda: _pin(self.where(instance), key))

    def where(self, instance: str) -> Path:
        """The file that is about an instance."""
        name = quote(instance, safe="")
        if len(name) > _LONGEST_NAME:
            name = sha256(name.encode()).hexdigest()
        return self.directory / f"{name}{_PIN}"


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
                f"{instance} shows the host key {fingerprint(shown)}, but {self.source} has {expected}: "
                "somebody else answers there, or the host was reinstalled"
            )


async def expected(info: ConnectInfo, address: tuple[str, int], known_hosts: str | None, store: HostKeys) -> Expected:
    """What is known of an instance.

    Raises:
        ConnectError: What is known cannot be read.
        ConfigError: The file of known hosts cannot be read.
    """
    if info.host_key is not None:
        return Expected(frozenset({await _reported(info, store)}), "its group")
    if known_hosts is not None:
        known = await _look_up(known_hosts, *address)
        return Expected(known.trusted, known_hosts, known.revoked)
    pinned = await store.get(pin_name(info))
    keys = frozenset({pinned} if pinned else ())
    return Expected(keys, f"the record of when it was first seen{_file(info, store)}", strict=False)


def pin_name(info: ConnectInfo) -> str:
    """What the host's key is pinned under."""
    return info.id if info.host_key_alias is None else f"{_ALIAS}{info.host_key_alias}"


def fingerprint(key: str) -> str:
    """Show a key as OpenSSH does, ``SHA256:…`` after its type."""
    import base64

    kind, _, text = key.partition(" ")
    try:
        digest = sha256(base64.b64decode(text, validate=True)).digest()
    except ValueError:
        return f"{kind} that is not base64"
    return f"{kind} SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


async def _look_up(known_hosts: str, host: str, port: int) -> KnownKeys:
    try:
        text = await (await anyio.Path(known_hosts).expanduser()).read_text(errors="replace")
    except OSError as error:
        problem = ConfigProblem(
            path="known_hosts", found=f"{known_hosts} ({error.strerror})", expected="a readable file"
        )
        raise ConfigError([problem]) from error
    return known_keys(text, host, port)


async def _reported(info: ConnectInfo, store: HostKeys) -> str:
    """The key that the group reports, unless it reported another one first, or the host showed another one first."""
    key = _normal(info)
    if info.pin_host_key and (first := await store.pin(pin_name(info), key)) != key:
        raise HostKeyMismatch(
            f"the group of {info.id} reports the host key {fingerprint(key)}, but the first that was reported or seen"
            f"{_file(info, store)} is {fingerprint(first)}: one of them is forged, so remove the instance"
        )
    return key


def _file(info: ConnectInfo, store: HostKeys) -> str:
    return f", {store.where(pin_name(info))}," if isinstance(store, FileHostKeys) else ""


def _normal(info: ConnectInfo) -> str:
    """The key without a comment."""
    fields = (info.host_key or "").split()
    if len(fields) < 2:  # noqa: PLR2004  (type and key)
        raise ConnectError(f"the host key that the group reports for {info.id} is not one line with type and base64")
    return " ".join(fields[:2])


def _read(path: Path) -> str | None:
    try:
        with path.open(errors="replace") as file:
            key = file.read(_LONGEST_KEY).strip()
        status = path.parent.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConnectError(f"the pinned host key in {path} cannot be read: {error.strerror}") from error
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o022:  # anybody could have pinned that
        raise ConnectError(
            f"the host keys in {path.parent} may belong to another user; make the directory your own, with mode 0700"
        )
    with suppress(OSError):  # the directory may be there to be read only
        os.utime(path)
    if not key:  # taking it for no pin would let anybody in
        raise ConnectError(f"the pinned host key in {path} is empty; remove it if you trust its host")
    return key


def _pin(path: Path, key: str) -> str:
    """Write the file whole or not at all, unless somebody else has."""
    draft = path.with_name(f".{secrets.token_hex(8)}{_DRAFT}")
    try:
        make_private(path.parent)
        try:
            with open(draft, "x", opener=open_private) as file:
                file.write(f"{key}\n")
                file.flush()
                os.fsync(file.fileno())
                now = os.fstat(file.fileno()).st_mtime
            with suppress(FileExistsError):
                path.hardlink_to(draft)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise ConnectError(f"the host key cannot be pinned in {path.parent}: {error.strerror}") from error
    with suppress(OSError):  # somebody else sweeps, too
        _sweep(path.parent, now)
    return _read(path) or key


def _sweep(directory: Path, now: float) -> None:
    """Remove pins that were not used for so long, and drafts of processes that were killed; once a day is enough."""
    mark = directory / ".swept"
    if mark.exists() and now < mark.stat().st_mtime + SWEEP_INTERVAL:
        return
    mark.touch(mode=0o600)
    for file in directory.iterdir():
        forgettable = file.suffix in (_PIN, _DRAFT) and not file.name.startswith(_KEPT)
        if forgettable and file.stat().st_mtime < now - KEPT_UNUSED:
            file.unlink()
