"""Where a step's function comes from, as people write it and as programs need it.

Source: docs.gitlab.com/ci/functions, "Function reference".
"""

import re
from typing import TypeAlias
from urllib.parse import unquote

from attrs import evolve, field, frozen

from job_steps._expressions import Scope, expand_text, has_expression
from job_steps._values import reveal

FILES = ("func.yml", "step.yml")
"""What a function's file is called, unless a reference says otherwise: the current name, then the one before it."""

_SCRIPT = "script"
_LONGEST_IMAGE = 255  # characters
_BUILTIN = re.compile(r"(?:builtin|dist)://")
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://(?:[^/\s]*@)?(?:[^/\s@:\[\]]*|\[[0-9a-fA-F:.]*\])(?::[0-9]*)?/\S+")
"""Of a repository: with a path, and no port that is a password, as if it were the address up to the login's `@`."""

_HTTP_LOGIN = re.compile(r"(?P<scheme>https?://)(?P<login>[^/\s]*)@")
_COMPONENT = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_NAMED_IMAGE = re.compile(
    r"(?:(?P<registry>[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?(?::[0-9]{1,5})?)/)?"
    rf"(?P<repository>{_COMPONENT}(?:/{_COMPONENT})*)"
    r"(?::(?P<tag>\w[\w.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
"""Source: docs.docker.com/reference/cli/docker/image/tag."""

_IMAGE = re.compile(
    r"(?P<registry>[^/\s@]+)/(?P<repository>[^\s@]+?)(?::(?P<tag>[\w.-]+)|@(?P<digest>sha256:[0-9a-f]+))"
)


@frozen
class LocalReference:
    """A directory of the machine that the steps run on."""

    path: str
    """Absolute, or relative to the directory of the function that the step is in."""
    file: str | None = None
    """Its file; None is `func.yml`, or `step.yml`."""

    def __str__(self) -> str:
        """Write it as in a file."""
        return _joined(self.path, self.file)


@frozen
class GitReference:
    """A directory of a repository, at a revision."""

    url: str = field(repr=lambda url: repr(without_login(url)))
    """With its scheme; it may have a login in it, which is not shown."""
    rev: str
    """A commit, a branch or a tag."""
    directory: str = ""
    """From the repository's root; empty is the root."""
    file: str | None = None
    """Its file; None is `func.yml`, or `step.yml`."""

    def __str__(self) -> str:
        """Write it on one line; without what logs in at the repository."""
        where = _joined(self.directory, self.file)
        return f"{without_login(self.url)}{f'/-/{where}' if where else ''}@{self.rev}"

    @property
    def is_pinned(self) -> bool:
        """Whether it will always be the same: the revision is a whole commit."""
        return bool(_COMMIT.fullmatch(self.rev))


@frozen
class ImageReference:
    """A directory of an image in a registry."""

    registry: str
    """Its host, with the port if there is one."""
    repository: str
    """The image's name there."""
    tag: str
    """A tag, or a digest that begins with `sha256:`."""
    directory: str = ""
    """From the root of the image's files; empty is the root."""
    file: str | None = None
    """Its file; None is `func.yml`, or `step.yml`."""

    def __str__(self) -> str:
        """Write it on one line."""
        mark = "@" if self.is_pinned else ":"
        where = _joined(self.directory, self.file)
        return f"{self.registry}/{self.repository}{mark}{self.tag}{f' {where}' if where else ''}"

    @property
    def is_pinned(self) -> bool:
        """Whether it will always be the same: the tag is a digest."""
        return self.tag.startswith("sha256:")


@frozen
class BuiltinReference:
    """A function that whoever runs the steps has."""

    name: str
    """What comes after `builtin://`."""

    def __str__(self) -> str:
        """Write it as in a file."""
        return self.name if self.name == _SCRIPT else f"builtin://{self.name}"


@frozen
class DynamicReference:
    """Known only when the steps before it have run: there are expressions in it."""

    text: str
    """As it is in the file."""

    def __str__(self) -> str:
        """Write it as in the file."""
        return self.text


Reference: TypeAlias = LocalReference | GitReference | ImageReference | BuiltinReference | DynamicReference
"""Where a function comes from."""

SCRIPT = BuiltinReference(_SCRIPT)
"""The function behind `script:`, which gives its input `script` to a shell."""

ACTION = GitReference("https://gitlab.com/components/action-runner", "main")
"""The function behind `action:`."""


def parse_reference(text: str) -> Reference:
    """Read a reference that is written as one text.

    Raises:
        ValueError: It is none; the message says what was expected.
    """
    text = text.strip()
    if has_expression(text):
        return DynamicReference(text)
    if text.startswith((".", "/")):
        path, file = _path_and_file(text)
        return LocalReference(path, file)
    if builtin := _BUILTIN.match(text):
        return BuiltinReference(text[builtin.end() :])
    image, _, place = text.partition(" ")
    if (found := _IMAGE.fullmatch(image)) and "://" not in image:
        directory, file = _path_and_file(place.strip())
        tag = found["tag"] or found["digest"]
        return image_reference(found["registry"], found["repository"], tag, directory=directory, file=file)
    url, at, rev = text.rpartition("@")
    if not at or not rev or not _ADDRESS.fullmatch(with_scheme(url)):
        expected = "a path such as `./build`, a repository such as `gitlab.com/group/build@v1`, or `registry/image:tag`"
        raise ValueError(f"`{_short(text)}` is not a reference to a function; expected {expected}")
    url, _, place = url.partition("/-/")
    directory, file = _path_and_file(place)
    _stays_inside(directory)
    return GitReference(with_scheme(url), rev, f"steps/{directory}".rstrip("/"), file)


def image_of(text: str) -> ImageReference:
    """Read the name of an image that a container is made of, as Docker's commands take it, and write it in full.

    Raises:
        ValueError: It is none.
    """
    first, slash, rest = text.partition("/")
    is_registry = bool(slash) and ("." in first or ":" in first or first == "localhost")
    registry, name = (first, rest) if is_registry else ("docker.io", text if slash else f"library/{text}")
    found = _NAMED_IMAGE.fullmatch(f"{registry}/{name}")
    if found is None or len(text) > _LONGEST_IMAGE:
        expected = "expected one such as `python:3.12` or `registry/name@sha256:…`"
        raise ValueError(f"`{_short(text)}` is not an image; {expected}")
    return ImageReference(registry, found["repository"], found["digest"] or found["tag"] or "latest")


def git_reference(url: str, rev: str, *, directory: str = "", file: str | None = None) -> GitReference:
    """Make a reference of the keys below `git:`, with GitLab's defaults.

    Raises:
        ValueError: The directory leads out of the repository.
    """
    _stays_inside(directory)
    _stays_inside(file or "")
    return GitReference(with_scheme(url), rev, directory.strip("/"), file)


def image_reference(
    registry: str, repository: str, tag: str, *, directory: str = "", file: str | None = None
) -> ImageReference:
    """Make a reference of the keys below `oci:`, with GitLab's defaults.

    Raises:
        ValueError: The directory leads out of the image.
    """
    directory = directory.strip("/")  # the root of an image is that of its files
    _stays_inside(directory)
    _stays_inside(file or "")
    return ImageReference(registry, repository, tag or "latest", directory, file)


def expanded(reference: Reference, scope: Scope) -> Reference:
    """Replace the expressions in a reference by what they stand for now.

    Raises:
        StepFailed: One of them has no value.
        ValueError: What comes out refers to nothing.
    """

    def text(part: str) -> str:
        return str(reveal(expand_text(part, scope)))

    if isinstance(reference, DynamicReference):
        found = parse_reference(text(reference.text))
        if isinstance(found, DynamicReference):
            raise ValueError(f"`{_short(found.text)}` has expressions even now; they are replaced once")
        return found
    if isinstance(reference, LocalReference):
        return evolve(reference, path=text(reference.path))
    if isinstance(reference, GitReference):
        return evolve(reference, url=with_scheme(text(reference.url)), rev=text(reference.rev))
    if isinstance(reference, ImageReference):
        return evolve(reference, repository=text(reference.repository), tag=text(reference.tag))
    return reference


def with_scheme(url: str) -> str:
    """Return an address that says how to reach it: by https, unless it does so already."""
    return url if re.match(r"[a-z][a-z0-9+.-]*://", url) else f"https://{url}"


def login_apart(url: str) -> tuple[str, str, str]:
    """Take an address that is read over HTTP apart: without its login, then the user, then the password.

    What logs in at any other server is part of the address, and no secret; such an address stays as it is.
    """
    found = _HTTP_LOGIN.match(url)
    if not found:
        return url, "", ""
    user, _, password = found["login"].partition(":")
    return found["scheme"] + url[found.end() :], unquote(user), unquote(password)


def without_login(url: str) -> str:
    """Return an address, or a text that has some, without user and password."""
    return re.sub(r"(?<=://)[^/\s]*@", "", url)  # a password may have an @


def _path_and_file(text: str) -> tuple[str, str | None]:
    """Divide a path into the directory and the file, if it names one."""
    directory, slash, last = text.rpartition("/")
    if last.endswith((".yml", ".yaml")):
        return directory or slash or ("." if text.startswith(".") else ""), last
    return text.rstrip("/") or text[:1], None


def _stays_inside(path: str) -> None:
    if ".." in path.split("/") or path.startswith("/"):
        raise ValueError(f"`{_short(path)}` leads out of where the function comes from; expected a path inside")


def _joined(directory: str, file: str | None) -> str:
    if not file:
        return directory
    return f"{directory.rstrip('/')}/{file}" if directory else file


def _short(text: str) -> str:
    text = re.sub(r"^[^/\s@]*:[^/\s]*@", "", without_login(text))  # it may be an address that lacks its scheme
    return text if len(text) <= 80 else f"{text[:77]}..."  # noqa: PLR2004  (as much as fits on a line)
