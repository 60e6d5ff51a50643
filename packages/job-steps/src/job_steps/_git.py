"""Functions from repositories: fetched once per commit, with git's own program, within limits.

Nothing of the repository runs while it is fetched: no hooks, no filters, no submodules, and only protocols that reach a
server. Its files are those of the commit, byte by byte: what it, or whoever runs git here, says of line ends and
encodings would make them others, and as many times bigger as the repository likes.
"""

import hashlib
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

import anyio
from anyio import to_thread
from attrs import define, evolve, field

from job_steps._errors import NotLoaded, StepFailed
from job_steps._process import run_command
from job_steps._references import GitReference, login_apart, without_login
from job_steps._removing import remove_tree

TIMEOUT = 300.0
"""Seconds for each thing that git is asked to do."""

MAX_SIZE = 1024 * 1024 * 1024
"""Bytes of one file that git writes, and of all files of a commit together."""

_MAX_OUTPUT = 16 * 1024 * 1024
"""Bytes of a listing."""

_PROTOCOLS = "file:http:https:ssh"
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_SHORT_COMMIT = re.compile(r"[0-9a-f]{8,63}")
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./+-]{0,254}")
_DIGITS_OF_SHA256 = 64
_REDIRECT = re.compile(r"returned error: 30[1278]\b")
_FILE = re.compile(r"(?:^|[\0\n])[0-7]{6} (?:blob|commit) [0-9a-f]+ +(?P<size>[0-9]+|-)\t")
"""Where an entry of a listing begins; git may have said something else before it."""

_ATTRIBUTES: Final = "* -text -ident -filter !eol !working-tree-encoding\n"
"""Nothing is made of a file's bytes; in git's own file for that, which goes before all others."""

_BLOCK: Final = 512
"""Bytes in which shells count a limit of files."""

_LIMITED: Final = 'ulimit -f "$1" && shift && exec git "$@"'
"""How git is started: no file that it writes gets bigger, a pack neither."""

_OPTIONS: Final = ("-c", "http.followRedirects=false", "-c", "core.hooksPath=/dev/null", "-c", "gc.auto=0")
"""What it fetches comes from the address that was looked at; and it leaves nothing running."""

_USER, _PASSWORD = "JOB_STEPS_GIT_USER", "JOB_STEPS_GIT_PASSWORD"
_LOGIN: Final = f"""!f() {{ test "$1" = get && printf 'username=%s\\npassword=%s\\n' "${_USER}" "${_PASSWORD}"; }}; f"""
"""What git asks how to log in where an address says so, in place of all that it would ask otherwise: the arguments of a
program are everybody's to see on this host, and git would have what keeps logins here keep this one, too."""


class _Redirected(NotLoaded):
    """The server sends to another address."""


@define
class Repositories:
    """Repositories that are fetched, in a directory that may be shared by all runs of a user."""

    directory: Path
    env: Mapping[str, str] = field(repr=False)
    """For git: where its programs are, and how it logs in."""

    async def fetch(self, reference: GitReference) -> tuple[str, Path]:
        """Get the files of a revision, unless they are there already; returns the commit, and their directory.

        Raises:
            NotLoaded: There is no such revision, or it cannot be fetched.
        """
        if not _REVISION.fullmatch(reference.rev) or ".." in reference.rev:
            raise NotLoaded(f"`{reference.rev[:80]}` cannot be a revision; expected a commit, a branch or a tag")
        try:
            return await self._fetch(reference)
        except _Redirected as elsewhere:
            if reference.url.endswith(".git"):
                raise NotLoaded(str(elsewhere)) from None
        try:  # the one place where servers such as GitLab send whom they could have answered
            return await self._fetch(evolve(reference, url=f"{reference.url.rstrip('/')}.git"))
        except _Redirected as elsewhere:
            raise NotLoaded(str(elsewhere)) from None

    async def _fetch(self, reference: GitReference) -> tuple[str, Path]:
        commit = reference.rev if _COMMIT.fullmatch(reference.rev) else await self._resolve(reference)
        place = self.directory / hashlib.sha256(reference.url.encode()).hexdigest()[:20] / commit
        if not await to_thread.run_sync(place.is_dir):
            await self._clone(reference, commit, place)
        return commit, place

    async def _resolve(self, reference: GitReference) -> str:
        """Ask the server which commit a tag or a branch is; a commit that is not whole has to be one of those."""
        rev = reference.rev
        names = [f"refs/tags/{rev}^{{}}", f"refs/tags/{rev}", f"refs/heads/{rev}"]
        patterns = [] if _SHORT_COMMIT.fullmatch(rev) else names
        listing = await self._git("ls-remote", "--", login_apart(reference.url)[0], *patterns, reference=reference)
        lines = (line.partition("\t") for line in listing.splitlines())
        found = {name: commit for commit, tab, name in lines if tab}
        for name in names:
            if name in found:
                return _commit(found[name], reference)
        tips = {each for each in found.values() if each.startswith(rev)} if not patterns else set()
        if len(tips) == 1:
            return _commit(tips.pop(), reference)
        hint = "; a commit needs all of its digits, unless a branch or a tag is at it" if not patterns else ""
        raise NotLoaded(f"{without_login(reference.url)} has no tag and no branch `{rev}`{hint}")

    async def _clone(self, reference: GitReference, commit: str, place: Path) -> None:
        """Fetch one commit without its history, and put its files into place, all at once."""
        base = await to_thread.run_sync(self._new_directory)
        try:
            store, files = base / "git", base / "files"
            files.mkdir()
            git = partial(self._git, "--git-dir", str(store), reference=reference)
            kind = "sha256" if len(commit) == _DIGITS_OF_SHA256 else "sha1"  # else, it would be taken for a branch
            await git("init", "--quiet", "--bare", "--template=", f"--object-format={kind}")
            await to_thread.run_sync(_set_attributes, store)
            fetch = ("fetch", "--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules")
            try:
                await git(*fetch, login_apart(reference.url)[0], commit)
            except NotLoaded as error:
                if await to_thread.run_sync(_has_full_file, store):  # git says no more than that a program has died
                    what = f"{reference} has more than {MAX_SIZE} bytes, packed or in one file; it is not fetched"
                    raise NotLoaded(what) from error
                raise
            listing = await git("ls-tree", "-r", "-l", "-z", "--full-tree", "FETCH_HEAD")
            sizes = _FILE.findall(listing)
            if (size := sum(int(each) for each in sizes if each.isdigit())) > MAX_SIZE:
                raise NotLoaded(f"{reference} has {size} bytes of files; at most {MAX_SIZE} are fetched")
            checkout = ("--work-tree", str(files), "checkout", "--quiet", "--force", "--no-recurse-submodules")
            await git(*checkout, "FETCH_HEAD", "--", ".") if sizes else None
            await to_thread.run_sync(_put, files, place)
        finally:
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(remove_tree, base)

    def _new_directory(self) -> Path:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return Path(mkdtemp(prefix="fetch-", dir=self.directory))

    async def _git(self, *arguments: str, reference: GitReference) -> str:
        """Run git; returns what it said."""
        said = bytearray()

        async def keep(data: bytes) -> None:
            said.extend(data)
            if len(said) > _MAX_OUTPUT:
                raise NotLoaded(f"git says more than {_MAX_OUTPUT} bytes about {reference}")

        git = ("sh", "-c", _LIMITED, "sh", str(MAX_SIZE // _BLOCK))
        options, login = _logging_in(reference)
        env = {
            "GIT_SSH_COMMAND": "ssh -o BatchMode=yes",
            **self.env,
            **login,
            "GIT_ALLOW_PROTOCOL": _PROTOCOLS,
            "GIT_TERMINAL_PROMPT": "0",
            "LC_ALL": "C",
        }
        try:
            with anyio.fail_after(TIMEOUT):
                ended = await run_command([*git, *_OPTIONS, *options, *arguments], cwd="/", env=env, sink=keep)
        except TimeoutError:
            raise NotLoaded(f"{reference} was not fetched within {TIMEOUT:.0f} seconds") from None
        except NotLoaded:
            raise
        except StepFailed as error:
            raise NotLoaded(f"{reference} cannot be fetched: {error}") from error
        text = said.decode(errors="replace")
        if ended.code and _REDIRECT.search(text):
            raise _Redirected(
                f"{without_login(reference.url)} redirects to another address; write the one that it has now"
            )
        if ended.code:
            last = without_login(_told(text, reference))
            raise NotLoaded(f"{reference} cannot be fetched; git ended with exit status {ended.code}: {last}")
        return text


def _has_full_file(directory: Path) -> bool:
    """Whether a file has become as big as it may."""
    largest = MAX_SIZE // _BLOCK * _BLOCK
    return any(path.lstat().st_size >= largest for path in directory.rglob("*") if path.is_file())


def _set_attributes(store: Path) -> None:
    info = store / "info"
    info.mkdir(exist_ok=True)
    (info / "attributes").write_text(_ATTRIBUTES)


def _logging_in(reference: GitReference) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """How git logs in with what is in an address: options, and what they need in its environment."""
    _, user, password = login_apart(reference.url)
    if not (user or password):
        return (), {}
    if not (user + password).isprintable():
        raise NotLoaded(f"the address of {reference} has a login with a character that no server takes")
    return ("-c", "credential.helper=", "-c", f"credential.helper={_LOGIN}"), {_USER: user, _PASSWORD: password}


def _told(text: str, reference: GitReference) -> str:
    """The line in which git says what is wrong, without what logs in."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = next((line for line in lines if line.startswith(("fatal:", "error:", "ERROR:"))), (lines or [""])[-1])
    return told.replace(reference.url, without_login(reference.url))[:300]


def _commit(text: str, reference: GitReference) -> str:
    if not _COMMIT.fullmatch(text):
        raise NotLoaded(f"the server of {reference} names a commit in a form of its own")
    return text


def _put(files: Path, place: Path) -> None:
    """Move a directory to where it is looked for; another run may have been faster."""
    place.parent.mkdir(mode=0o700, exist_ok=True)
    with suppress(FileExistsError):
        try:
            files.rename(place)
        except OSError:
            if not place.is_dir():
                raise
