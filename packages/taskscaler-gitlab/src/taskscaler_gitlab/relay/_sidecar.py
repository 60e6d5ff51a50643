"""A gitlab-runner beside a slot: brought, started for one job, ended; commands on the instance.

On the instance, everything is in one directory below where commands start::

    sidecars/bin/gitlab-runner-HASH    the program, if it comes from the manager
    sidecars/RUNNER-SLOT/config.toml   for the sidecar of that slot, for its user alone, with a token for one job
    sidecars/RUNNER-SLOT/ca.pem        certificates of GitLab's, if these are not everybody's
    sidecars/RUNNER-SLOT/builds/       clones, which the next job there finds
    sidecars/cache/                    caches, for all slots
"""

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Final

import anyio
from anyio import to_thread
from attrs import define, field, frozen

from fleeting import Completed, ConnectError, Connection, Unreachable, Unsupported
from fleeting.connectors import RunsDetached
from fleeting.errors import NameTaken, NameUnknown
from fleeting.plugins import one_line
from taskscaler_gitlab._settings import SidecarSettings
from taskscaler_gitlab._sidecar_settings import ON_HOST
from taskscaler_gitlab.relay._toml import written

PATIENCE = 60.0
"""Seconds that an instance has for a short command."""

BRINGING = 600.0
"""Seconds that it may take to bring the program to an instance."""

FAREWELL = 10.0
"""Seconds that a sidecar has to end its job and itself after SIGTERM."""

KEPT = 1 << 20
"""Bytes of what a sidecar prints that its instance keeps."""

LAST_WORDS = 2048
"""Bytes of what a sidecar has printed that are looked at to learn why it ended."""

MOST_KNOWN = 1024
"""Instances of which it is known that the program is there: what is forgotten is looked at once more."""

OLDEST = (17, 1)
"""The first version whose ``run-single`` reads a file."""

_PIECE = 1 << 20
_HASH = 16
_TRIES = 3
_ANOTHER = 3
"""With what the host says that it has got something else than was announced."""

_VERSION: Final = re.compile(rb"Version: +(\S+)")
_NUMBERS: Final = re.compile(r"(\d+)\.(\d+)")
_PREFIX: Final = "gl-sidecar"
_SAME: Final = r"""
mark() { { stat -Lc '%d %i %s %z' -- "$1" || stat -Lf '%d %i %z %Fc' "$1"; } 2>/dev/null; }
hashed() {
    for tool in sha256sum "shasum -a 256" "sha256 -q"; do
        $tool </dev/null >/dev/null 2>&1 || continue
        $tool <"$1" 2>/dev/null
        return
    done
    echo "$2"
}
same() {
    [ -f "$1" ] && [ -x "$1" ] && [ -r "$1" ] || return 1
    now=$(mark "$1")
    [ -z "$3" ] || [ "$now" != "$3" ] || return 0
    has=$(hashed "$1" "$2")
    [ "${has%% *}" = "$2" ] && [ "$(mark "$1")" = "$now" ]
}
"""
"""What says whether a program is the one that was brought: its hash, which is not taken again while the file is marked
as untouched, by when it was changed. Only root can set that. A host on which none of the programs works has no hash;
a file that cannot be read has none either, and is another. The mark is the same before and after: what was hashed is
what is marked."""

_HERE: Final = (
    _SAME
    + """
pwd -P && { [ -z "$1" ] || ! same "sidecars/bin/$1" "$2" "" || { echo there; echo "$now"; }; }
"""
)
_TAKE: Final = (
    _SAME
    + """
umask 077
mkdir -p sidecars/bin && cat > "sidecars/bin/.$1.$$" && chmod 700 "sidecars/bin/.$1.$$" &&
    mv -f "sidecars/bin/.$1.$$" "sidecars/bin/$1" || { rm -f "sidecars/bin/.$1.$$"; exit 1; }
same "sidecars/bin/$1" "$2" "" || { rm -f "sidecars/bin/$1"; echo "what has arrived is something else" >&2; exit 3; }
echo "$now"
"""
)
_RUN: Final = (
    _SAME
    + """
[ -z "$4" ] || same "$2" "$4" "$5" || { echo "$2 is not the program that was brought any more"; exit 126; }
(umask 077; mkdir -p -- "$1" && cat > "$1/config.toml" && echo $$ > "$1/pid") && cd -- "$1" || exit 1
exec </dev/null 2>&1 env -i HOME="${HOME:-$1}" PATH="${PATH:-/usr/local/bin:/usr/bin:/bin}" \
    USER="${USER:-$(id -un)}" LOGNAME="${LOGNAME:-$(id -un)}" SHELL="${SHELL:-/bin/sh}" ${LANG:+"LANG=$LANG"} \
    ${LC_ALL:+"LC_ALL=$LC_ALL"} ${TZ:+"TZ=$TZ"} ${TMPDIR:+"TMPDIR=$TMPDIR"} \
    "$2" run-single --config "$1/config.toml" --runner "$3" --max-builds 1
"""
)
_TRUST: Final = """
umask 077
mkdir -p -- "$1" && cat > "$1/.ca.$$" && mv -f "$1/.ca.$$" "$1/ca.pem" || { rm -f "$1/.ca.$$"; exit 1; }
"""
_TERMINATE: Final = 'kill -TERM "$(cat "$1/pid")"'
_TIDY: Final = (
    _SAME
    + """
rm -f -- "$1/config.toml" "$1/pid"
[ -z "$4" ] || ! same "$2" "$3" "$4" || echo "$now"
"""
)


class ProgramUnfit(ConnectError):
    """The program that the settings name is none for these instances; another one of them would be no better."""


@frozen(kw_only=True)
class Place:
    """A slot, as a sidecar has it."""

    program: str
    """The gitlab-runner there."""

    top: str
    """Below which everything of ours is."""

    owner: str
    """Stands for the runner and its slot: other runners may use the same host."""

    brought: "_Brought | None" = field(default=None, repr=False)
    """What is known of the program, if it comes from us."""

    @property
    def directory(self) -> str:
        """The slot's own."""
        return f"{self.top}/{self.owner}"

    @property
    def prefix(self) -> str:
        """How the names of all sidecars of the slot begin."""
        return f"{_PREFIX}-{self.owner}-"

    def name_of(self, delivery: str) -> str:
        """Name the command of a delivery's sidecar."""
        return f"{self.prefix}{delivery}"


@define(eq=False)
class _Brought:
    """A program on an instance."""

    program: str
    top: str

    digest: str = ""
    """Its SHA-256, if it comes from us."""

    mark: str = ""
    """How the host had marked its file when it was last found to have that."""


@define
class _Bringing:
    """What brings it, at most once at a time to each instance."""

    lock: anyio.Lock = field(factory=anyio.Lock)
    brought: _Brought | None = None


@define
class Sidecars:
    """Brings gitlab-runner to instances, and knows where it is there."""

    settings: SidecarSettings
    _known: dict[str, _Bringing] = field(factory=dict, init=False)
    """By instance; those that were needed last are the last."""

    async def prepare(self, connection: Connection, instance: str, owner: str) -> Place:
        """See that the program is there, once per instance.

        Raises:
            ProgramUnfit: It is not what is needed; says what to do.
            ConnectError: It cannot be had there.
            Unreachable: The connection died.
            OSError: It cannot be read here.
        """
        known = self._of(instance)
        async with known.lock:
            brought = known.brought = known.brought or await self._bring(connection, instance)
        return Place(program=brought.program, top=brought.top, owner=owner, brought=brought)

    async def locate(self, connection: Connection, instance: str, owner: str) -> Place:
        """Where a sidecar is that runs already. Raises as `prepare`."""
        known = self._known.get(instance)
        top = known.brought.top if known and known.brought else (await _look(connection, instance))[0]
        return Place(program="", top=top, owner=owner)

    def forget(self, instance: str) -> None:
        """Look again when the instance is needed again: it was lost, or its files may have been."""
        self._known.pop(instance, None)

    def _of(self, instance: str) -> _Bringing:
        """What is known of an instance; of one that was not needed for long, or is gone, nothing is."""
        known = self._known[instance] = self._known.pop(instance, _Bringing())
        for other in [*self._known][:-MOST_KNOWN]:
            del self._known[other]
        return known

    async def _bring(self, connection: Connection, instance: str) -> _Brought:
        source = Path(self.settings.upload) if self.settings.upload else None
        if source is None:
            program = self.settings.binary or "gitlab-runner"
            brought = _Brought(program, (await _look(connection, instance))[0])
        else:
            brought = await _bring_from(connection, source, instance)
        await _check_version(connection, brought.program, instance)
        return brought


async def _bring_from(connection: Connection, source: Path, instance: str) -> _Brought:
    """Bring a program from here, unless it is there; again if its file here is replaced under way."""
    for _ in range(_TRIES):
        digest = await to_thread.run_sync(_digest, source)
        top, mark = await _look(connection, instance, digest)
        if mark is None:
            mark = await _upload(connection, source, digest, instance)
        if mark is not None:
            return _Brought(f"{top}/bin/{_name(digest)}", top, digest, mark)
    raise ProgramUnfit(
        f"{source} was changed each of the {_TRIES} times that it was being brought to {instance};"
        " write a new one beside it, and rename it"
    )


async def _look(connection: Connection, instance: str, digest: str = "") -> tuple[str, str | None]:
    """Where things of ours are on an instance, and how the program is marked there, if it is there and as it was."""
    here = await _short(connection, ("/bin/sh", "-c", _HERE, "sh", digest and _name(digest), digest))
    home, *there = here.stdout.decode("utf-8", "surrogateescape").splitlines() or [""]
    if not here.ok or not home.startswith("/"):
        raise ConnectError(f"{instance} does not say where commands start there: {here.account}")
    return f"{home.rstrip('/')}/sidecars", "".join(there[1:2]) if there[:1] == ["there"] else None


async def start(
    connection: Connection,
    place: Place,
    delivery: str,
    *,
    url: str,
    secret: str,
    settings: SidecarSettings,
    ca_chain: str,
) -> bool:
    """Start a sidecar for one job; what an earlier one has left in its slot is ended first.

    Args:
        connection: To its instance.
        place: Its slot.
        delivery: Names it.
        url: Where it finds us.
        secret: What it asks with.
        settings: What it runs jobs with.
        ca_chain: Whom to trust as GitLab, beyond whom everybody trusts, as PEM: it fetches sources from there.

    Returns:
        Whether something still ran there: what it has started may still do so.

    Raises:
        Unsupported: The connection cannot run what outlives it.
        ConnectError, Unreachable: It was not started, or nobody knows.
    """
    detached = detaching(connection)
    has_killed = await end_leftovers(detached, place)
    if ca_chain:
        done = await _short(connection, ("/bin/sh", "-c", _TRUST, "sh", place.directory), stdin=ca_chain.encode())
        if not done.ok:
            raise ConnectError(f"the certificates in tls-ca-file could not be written there: {done.account}")
    config = config_of(place, delivery, url=url, secret=secret, settings=settings, has_chain=bool(ca_chain))
    known = (place.brought.digest, place.brought.mark) if place.brought else ("", "")
    command = ("/bin/sh", "-c", _RUN, "sh", place.directory, place.program, delivery, *known)
    with suppress(NameTaken):
        await detached.start(place.name_of(delivery), command, stdin=config.encode(), keep=KEPT)
    return has_killed


def detaching(connection: Connection) -> RunsDetached:
    """The connection, if what runs there can outlive it.

    Raises:
        Unsupported: It cannot.
    """
    if not isinstance(connection, RunsDetached):
        raise Unsupported(
            "sidecars need a connection whose commands outlive it, as those over SSH to a POSIX host do;"
            ' use SSH, or run_with = "own"'
        )
    return connection


async def end_leftovers(detached: RunsDetached, place: Place) -> bool:
    """End what runs in a slot for somebody who has lost it; returns whether anything did."""
    has_run = False
    for each in await detached.list_detached():
        if each.name.startswith(place.prefix):
            has_run = has_run or each.is_running
            with suppress(NameUnknown):
                await detached.kill(each.name)
                await detached.forget(each.name)
    return has_run


def config_of(
    place: Place, delivery: str, *, url: str, secret: str, settings: SidecarSettings, has_chain: bool = False
) -> str:
    """What a sidecar reads: a runner with a token that is good for one job, and the settings of the operator.

    Certificates that a runner is given for its GitLab, it gives git for the project's address.
    """
    here = {"builds_dir": f"{place.directory}/builds", "cache_dir": f"{place.top}/cache"}
    entry: Mapping[str, object] = {
        **(here if settings.executor in ON_HOST else {}),
        **settings.passed,
        "name": delivery,
        "url": url,
        "token": secret,
        "executor": settings.executor,
        **({"tls-ca-file": f"{place.directory}/ca.pem"} if has_chain else {}),
    }
    return f"concurrent = 1\ncheck_interval = 1\n[[runners]]\n{written(entry)}"


@define
class Tail:
    """The end of what a sidecar prints, to learn from it why it ended."""

    _kept: bytes = b""

    async def __call__(self, chunk: bytes) -> None:
        """Take what comes."""
        self._kept = (self._kept + chunk)[-LAST_WORDS:]

    @property
    def last_words(self) -> str:
        """Its last line."""
        lines = self._kept.decode(errors="replace").split("\n")
        return one_line(next((_plain(line) for line in reversed(lines) if line.strip()), ""))


async def wait(connection: Connection, name: str) -> str:
    """Wait for the end of a sidecar; returns how it ended.

    Raises:
        NameUnknown, CommandLost: There is none, or nobody will know.
        Unreachable: The connection died.
    """
    tail = Tail()
    completed = await detaching(connection).attach(name, output=tail)
    said = f" after saying {tail.last_words!r}" if tail.last_words and not completed.ok else ""
    return f"{completed.outcome}{said}"


async def terminate(connection: Connection, place: Place) -> None:
    """Ask a sidecar that runs to end its job and itself."""
    await _short(connection, ("/bin/sh", "-c", _TERMINATE, "sh", place.directory))


async def tidy(connection: Connection, place: Place, name: str) -> None:
    """Leave nothing of a sidecar that has ended but what the next one uses.

    A program that was touched meanwhile, and is the same, is known by its new mark: the next start need not hash it.
    """
    brought = place.brought
    known = (brought.digest, brought.mark) if brought else ("", "")
    done = await _short(connection, ("/bin/sh", "-c", _TIDY, "sh", place.directory, place.program, *known))
    if brought and (mark := _marked(done)):
        brought.mark = mark
    await detaching(connection).forget(name)


async def runs(connection: Connection, name: str) -> bool:
    """Whether a sidecar of this name runs."""
    return any(each.name == name and each.is_running for each in await detaching(connection).list_detached())


async def _short(connection: Connection, command: Sequence[str], *, stdin: bytes | None = None) -> Completed:
    with anyio.move_on_after(PATIENCE):
        return await connection.run(command, stdin=stdin)
    raise Unreachable(f"a short command took longer than {PATIENCE:g} s")


async def _upload(connection: Connection, source: Path, digest: str, instance: str) -> str | None:
    """Bring the program; returns how the host has marked its file, None if its file here is another by now."""
    sent = _Sent(source)
    with anyio.move_on_after(BRINGING):
        command = ("/bin/sh", "-c", _TAKE, "sh", _name(digest), digest)
        done = await connection.run(command, stdin=aiter(sent))
        if sent.digest not in ("", digest):
            return None
        if not done.ok:
            room = "" if done.exit_status == _ANOTHER else f"; it needs room for {source}"
            raise ConnectError(f"gitlab-runner could not be brought to {instance}: {done.account}{room}")
        return _marked(done)
    raise Unreachable(f"bringing {source} to {instance} took longer than {BRINGING:g} s")


@define
class _Sent:
    """A program's file as it is sent, which may be another than it was when it was last looked at."""

    source: Path

    digest: str = ""
    """Its SHA-256, once all of it was sent."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Give it piece by piece."""
        total = sha256()
        async with await anyio.open_file(self.source, "rb") as file:
            while piece := await file.read(_PIECE):
                total.update(piece)
                yield piece
        self.digest = total.hexdigest()


def _marked(done: Completed) -> str:
    """How the host has marked a file; empty: it does not say."""
    return done.stdout.decode("utf-8", "surrogateescape").strip()


async def _check_version(connection: Connection, program: str, instance: str) -> None:
    said = await _short(connection, (program, "--version"))
    advice = "name a gitlab-runner there as binary, or one here as upload, in [runners.taskscaler.sidecar]"
    if not said.ok:
        why = "it is for another kind of machine" if b"xec format" in said.stderr else said.account
        raise ProgramUnfit(f"{program} does not run on {instance}: {why}; {advice}")
    found = _VERSION.search(said.stdout)
    version = found[1].decode(errors="replace") if found else ""
    numbers = _NUMBERS.match(version)
    if numbers is None or (int(numbers[1]), int(numbers[2])) < OLDEST:
        what = f"gitlab-runner {one_line(version)}" if version else "no gitlab-runner"
        least = ".".join(map(str, OLDEST))
        raise ProgramUnfit(f"{program} on {instance} is {what}; sidecars are {least} or later; {advice}")


def _digest(source: Path) -> str:
    with source.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def _name(digest: str) -> str:
    return f"gitlab-runner-{digest[:_HASH]}"


def _plain(line: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", line)
