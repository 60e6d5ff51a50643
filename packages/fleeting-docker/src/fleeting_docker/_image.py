"""The instances' image: made here, without a registry, from a root file system or from this machine's own programs."""

import shutil
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from hashlib import blake2s
from io import BytesIO
from pathlib import Path

import anyio
from anyio import to_thread

from fleeting import GroupRefused
from fleeting.archives import Packed
from fleeting.plugins import format_duration
from fleeting_docker._config import DockerGroupConfig
from fleeting_docker_engine import Body, Engine, EngineRefused, EngineUnreachable, Entry, quoted, tar_of

REPOSITORY = "fleeting-docker"

IMPORT_TIMEOUT = 600.0
"""Seconds for the daemon to take a root file system in."""

_HELPERS = ("sshd-session", "sshd-auth", "sftp-server")
"""Programs that OpenSSH's server starts, depending on its version."""

_PLACES = ("/usr/lib/openssh", "/usr/libexec/openssh", "/usr/lib/ssh", "/usr/libexec")

_USERS = b"root:x:0:0:root:/root:/bin/sh\nsshd:x:100:65534:sshd:/run/sshd:/bin/false\n"
_GROUPS = b"root:x:0:\nnogroup:x:65534:\n"


async def ensure(engine: Engine, config: DockerGroupConfig) -> str:
    """Find the image or make it; returns its reference.

    Raises:
        GroupRefused: There is none, or nothing to make it from.
    """
    if config.image is not None:
        if not await _is_there(engine, config.image):
            raise GroupRefused(f"the daemon does not have the image {config.image}; pull it there, or leave image out")
        return config.image
    if config.root_file_system is not None:
        return await _make(engine, config.name, await _packed(Path(config.root_file_system)))
    entries, links = await own_root_file_system()
    digest = blake2s(digest_size=8)
    for path, entry in entries.items():
        digest.update(f"{path} {len(entry.content or b'')} ".encode() + (entry.content or b""))
    tag = digest.hexdigest()
    if await _is_there(engine, f"{REPOSITORY}:{tag}"):
        return f"{REPOSITORY}:{tag}"
    return await _make(engine, tag, await to_thread.run_sync(_with_links, entries, links))


async def own_root_file_system() -> tuple[dict[str, Entry], dict[str, str]]:
    """Take from this machine what an instance needs: its OpenSSH server with the libraries, and busybox.

    Returns:
        Files and directories by their paths, and links by theirs.

    Raises:
        GroupRefused: A program is not installed here.
    """
    programs = [Path("/usr/sbin/sshd"), *_helpers()]
    busybox = shutil.which("busybox")
    if busybox is None or not programs[0].exists():
        missing = "busybox" if busybox is None else "OpenSSH's server"
        raise GroupRefused(f"{missing} is not installed here, so no image can be made; install it, or set image")
    shell = Path(busybox)
    needed = {library for program in (*programs, shell) for library in await _libraries(program)}
    files = {**{str(path): path for path in (*programs, *needed)}, "/bin/busybox": shell}
    entries = {path.lstrip("/"): Entry(mode=0o755) for path in ("/bin", "/etc", "/root", "/run", "/usr", "/var")}
    entries |= {"tmp": Entry(mode=0o1777), "etc/passwd": Entry(_USERS), "etc/group": Entry(_GROUPS)}
    for name, path in files.items():
        entries[name.lstrip("/")] = Entry(await anyio.Path(path).read_bytes(), mode=0o755)
    listed = await anyio.run_process([str(shell), "--list"])
    names = (name for name in listed.stdout.decode().split() if name != "busybox")
    return entries, {f"bin/{name}": "busybox" for name in names}


def _helpers() -> Iterator[Path]:
    for place in _PLACES:
        for name in _HELPERS:
            path = Path(place, name)
            if path.exists():
                yield path


async def _libraries(program: Path) -> list[Path]:
    """Ask the loader which libraries a program needs; a static one needs none."""
    asked = await anyio.run_process(["ldd", str(program)], check=False)
    words = asked.stdout.decode().split() if asked.returncode == 0 else []
    return [Path(word) for word in words if word.startswith("/")]


async def _is_there(engine: Engine, image: str) -> bool:
    with suppress(EngineRefused):
        await engine.ask("GET", f"/images/{quoted(image)}/json")
        return True
    return False


async def _make(engine: Engine, tag: str, archive: Body) -> str:
    query = {"fromSrc": "-", "repo": REPOSITORY, "tag": tag}
    with anyio.move_on_after(IMPORT_TIMEOUT):
        await engine.progress("POST", "/images/create", query=query, body=archive)
        return f"{REPOSITORY}:{tag}"
    raise EngineUnreachable(f"the daemon did not load the image within {format_duration(IMPORT_TIMEOUT)}")


async def _packed(path: Path) -> Body:
    """Read the user's root file system: an archive as it is, a directory packed."""
    if await anyio.Path(path).is_dir():
        names = [entry.name async for entry in anyio.Path(path).iterdir()]
        return Packed.of({name: path / name for name in sorted(names)})
    try:
        return await anyio.Path(path).read_bytes()
    except OSError as error:
        raise GroupRefused(f"root_file_system {path} cannot be read: {error.strerror}; correct it") from error


def _with_links(entries: dict[str, Entry], links: dict[str, str]) -> bytes:
    buffer = BytesIO(tar_of(entries))
    with tarfile.open(fileobj=buffer, mode="a") as tar:
        for path, target in links.items():
            link = tarfile.TarInfo(path)
            link.type, link.linkname = tarfile.SYMTYPE, target
            tar.addfile(link)
    return buffer.getvalue()
