"""The file of ``taskscaler-gitlab route``: which cells there are, and where the router listens."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
from attrs import Attribute, evolve, field, frozen
from attrs.validators import ge

from fleeting import Duration
from fleeting.config import file_error, quoted, read_toml
from fleeting.errors import ConfigProblem, Mistake
from fleeting.plugins import is_absolute, place_to_listen, structure

MOST_CELLS = 64
"""Cells that a router stands before: a ticket names each."""

SHORTEST_TOKEN, LONGEST_TOKEN = 16, 1024
"""Characters of a registration token, which must not be guessed, and of any."""

SHORTEST_LIFE = 300.0
"""Seconds that a token has to be good for, at least: it has to be replaced in time."""

_TOKEN = re.compile(r"[!-~]+")
_URL = re.compile(r"https?://[^\s/@?#]+(/[^\s@?#]*)?")
_PORTS = range(1, 1 << 16)
_ID = re.compile(r"[0-9]{1,19}|[A-Za-z][A-Za-z0-9_-]{0,31}")


def _is_url(_: object, __: "Attribute[str]", value: str) -> None:
    try:
        port = httpx.URL(value).port
    except httpx.InvalidURL:
        port = -1
    if not _URL.fullmatch(value) or (port is not None and port not in _PORTS):
        raise ValueError("an address such as https://cell-1.gitlab.example.com")


def _is_place(_: object, __: "Attribute[str]", value: str) -> None:
    try:
        place_to_listen(value)
    except ValueError:
        raise ValueError('HOST:PORT, such as "127.0.0.1:8080"') from None


@frozen(kw_only=True)
class CellSettings:
    """The table ``[cells.ID]``. An ID that is a number is the one that routable tokens name."""

    url: str = field(validator=_is_url)
    """Where the cell is: a GitLab, or a service that takes runners as one does."""

    tls_ca_file: str = field(default="", metadata={"aliases": ("tls-ca-file",)})
    """The certificate of its authority, in PEM, if that is a private one; beside the file unless it is absolute."""

    token_file: str = ""
    """A file with the token of a runner there, whose jobs runners get that have registered with the router."""


@frozen(kw_only=True)
class RegistrationSettings:
    """The table ``[registration]``: runners may register with the router, instead of with a cell."""

    token_file: str
    """A file with the token that they register with; beside the file unless it is absolute."""

    token_expires_after: Duration | None = None
    """How long the tokens are good that they get; gitlab-runner replaces one after three quarters of that."""


@frozen(kw_only=True)
class RouterSettings:
    """The table ``[router]``."""

    listen: str = field(default="127.0.0.1:8080", validator=_is_place)
    """Where runners find it. Addresses of other machines need a certificate, or `plaintext`."""

    tls_cert_file: str = field(default="", metadata={"aliases": ("tls-cert-file",)})
    """Its certificate, in PEM, with those in between; beside the file unless it is absolute."""

    tls_key_file: str = field(default="", metadata={"aliases": ("tls-key-file",)})
    """The key of it; nothing: in the same file."""

    plaintext: bool = False
    """Whether it listens without TLS for other machines, too: where a proxy before it ends TLS."""

    state_dir: str | None = field(default=None, validator=is_absolute)
    """Where it keeps its key; by default in the user's own directory for such things."""

    hold: Duration = 50.0
    """How long a request for a job is held while no cell has one, if it says what the runner has seen."""

    connections_per_client: int = field(default=0, validator=ge(0))
    """Connections that one address may have at a time, or one IPv6 network of 64 bits; 0: half of all."""

    shutdown_timeout: Duration = 30.0
    """How long what is under way may take after the first signal."""


@frozen(kw_only=True)
class RouterFile:
    """The whole file."""

    cells: Mapping[str, CellSettings]
    """The cells by their IDs."""

    router: RouterSettings = RouterSettings()
    """Where it listens."""

    registration: RegistrationSettings | None = None
    """Whether runners may register with it."""

    tokens: Mapping[str, str] = field(factory=dict, repr=False)
    """What is in the cells' token files, by their IDs; of those that have one."""

    registration_token: str = field(default="", repr=False)
    """What is in the file for registration."""

    path: Path = Path()
    """The file itself."""


@frozen(kw_only=True)
class _Written:
    cells: Mapping[str, CellSettings]
    router: RouterSettings = RouterSettings()
    registration: RegistrationSettings | None = None


def read_router_file(path: Path) -> RouterFile:
    """Read and check a router's file. Nothing is connected to.

    Raises:
        ConfigError: With every mistake.
        OSError: It cannot be read.
    """
    _, data = read_toml(path)
    problems: list[ConfigProblem] = []
    written = structure(data, _Written, source=str(path), problems=problems)
    if not problems:
        problems += [*_problems(written, path.parent)]
    if problems:
        raise file_error(problems, data, source=str(path))
    router, beside = written.router, path.parent
    cells = {
        _id_of(each): evolve(cell, url=cell.url.rstrip("/"), tls_ca_file=_beside(beside, cell.tls_ca_file))
        for each, cell in written.cells.items()
    }
    tokens = {
        _id_of(each): _token(beside, cell.token_file, f"cells.{each}.token_file", problems)
        for each, cell in written.cells.items()
        if cell.token_file
    }
    registers = "" if written.registration is None else written.registration.token_file
    registration_token = _token(beside, registers, "registration.token_file", problems, least=SHORTEST_TOKEN)
    if problems:
        raise file_error(problems, data, source=str(path))
    cert, key = _beside(beside, router.tls_cert_file), _beside(beside, router.tls_key_file)
    router = evolve(router, tls_cert_file=cert, tls_key_file=key)
    return RouterFile(
        cells=cells,
        router=router,
        registration=written.registration,
        tokens=tokens,
        registration_token=registration_token,
        path=path,
    )


def _problems(written: _Written, directory: Path) -> Iterator[ConfigProblem]:
    if not written.cells:
        yield ConfigProblem(path="cells", found="no cell", expected="a table [cells.ID] for each, with its url")
    if len(written.cells) > MOST_CELLS:
        yield ConfigProblem(path="cells", found=f"{len(written.cells)} cells", expected=f"at most {MOST_CELLS}")
    seen: dict[str, str] = {}
    urls: dict[str, str] = {}
    for each, cell in written.cells.items():
        where = f"cells.{each}"
        if not _ID.fullmatch(each):
            expected = "a number, as tokens have it, or a name of letters, digits, - and _"
            yield ConfigProblem(path=where, found=f"the ID {quoted(each)}", expected=expected)
            continue
        if (twin := seen.setdefault(_id_of(each), each)) != each:
            yield ConfigProblem(path=where, found=f"the ID of [cells.{twin}] again", hint="give each cell its own")
        if (twin := urls.setdefault(cell.url.rstrip("/"), each)) != each:
            yield ConfigProblem(path=f"{where}.url", found=f"the url of [cells.{twin}] again", hint="list a cell once")
        yield from _missing(directory, f"{where}.tls_ca_file", cell.tls_ca_file)
    router = written.router
    yield from _missing(directory, "router.tls_cert_file", router.tls_cert_file)
    yield from _missing(directory, "router.tls_key_file", router.tls_key_file)
    if router.tls_key_file and not router.tls_cert_file:
        expected = "tls_cert_file beside tls_key_file"
        yield ConfigProblem(path="router.tls_cert_file", found="nothing", expected=expected)
    yield from _registration_problems(written, directory)
    if router.hold <= 0:
        yield ConfigProblem(path="router.hold", found="no time at all", expected="a duration such as 50s")


def _registration_problems(written: _Written, directory: Path) -> Iterator[ConfigProblem]:
    with_token = [each for each, cell in written.cells.items() if cell.token_file]
    for each in with_token:
        yield from _missing(directory, f"cells.{each}.token_file", written.cells[each].token_file)
        if written.registration is None:
            hint = "add [registration], or leave it out"
            found = "a token for runners that cannot register"
            yield ConfigProblem(path=f"cells.{each}.token_file", found=found, hint=hint)
    if written.registration is None:
        return
    yield from _missing(directory, "registration.token_file", written.registration.token_file)
    if not with_token:
        expected = "token_file in at least one cell, with whose jobs they are"
        yield ConfigProblem(path="registration", found="no jobs for runners that register", expected=expected)
    expiry = written.registration.token_expires_after
    if expiry is not None and expiry < SHORTEST_LIFE:
        where = "registration.token_expires_after"
        yield ConfigProblem(path=where, found=f"{expiry:g} s", expected="5m or more, or nothing for tokens that stay")


def _token(directory: Path, written: str, where: str, problems: list[ConfigProblem], *, least: int = 1) -> str:
    """What is in a file that has a token."""
    if not written:
        return ""
    with (directory / written).open(encoding="ascii", errors="replace") as file:
        found = file.read(LONGEST_TOKEN + 2).strip()
    if not _TOKEN.fullmatch(found) or not least <= len(found) <= LONGEST_TOKEN:
        expected = f"{least} to {LONGEST_TOKEN} printable ASCII characters, and nothing else"
        problems.append(ConfigProblem(path=where, found="a file with something else", expected=expected))
    return found


def _missing(directory: Path, where: str, written: str) -> Iterator[ConfigProblem]:
    if written and not (directory / written).is_file():
        kind = Mistake.MISSING_FILE
        yield ConfigProblem(path=where, found=quoted(str(directory / written)), expected="a file", mistake=kind)


def _beside(directory: Path, written: str) -> str:
    return str(directory / written) if written else ""


def _id_of(written: str) -> str:
    """What a cell is called here: numbers as they are in base 10, without zeros before them."""
    return str(int(written)) if written.isdigit() else written
