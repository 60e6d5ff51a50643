"""The functions that steps refer to: from directories, repositories, or built in."""

import os
import shutil
import stat
from functools import partial
from pathlib import Path

from anyio import to_thread
from attrs import define, evolve, frozen

from job_steps import _yaml
from job_steps._definitions import Exec, Function, Parameter
from job_steps._delegation import Containers
from job_steps._errors import JobStepsError, NotLoaded
from job_steps._git import Repositories
from job_steps._reading import read_steps
from job_steps._references import FILES, BuiltinReference, GitReference, ImageReference, LocalReference, image_of
from job_steps._run import Load, Origin

_MAX_BYTES = 4 * _yaml.MAX_LENGTH
"""Of a file: a character takes 4 at most."""

_ALLOWED_WHOLE = ("git", "image")
"""Kinds of origins of which all that is in them was allowed together; see `_policy`."""

_SHELLS = tuple(
    f"{directory}/{name}" for name in ("bash", "sh") for directory in ("/usr/local/bin", "/usr/bin", "/bin")
)
"""Which shell a script gets: the first that is there. Source: GitLab's step runner, `dist/steps/script`."""


@frozen(kw_only=True)
class Loaded:
    """A function that was loaded."""

    function: Function
    origin: Origin
    identity: str
    """The same for the same file."""


@define
class Loader:
    """Loads functions; what is fetched is kept by its repositories."""

    repositories: Repositories
    containers: Containers | None = None
    """What gets the files of images; without it, functions from images fail."""

    async def load(self, wanted: Load) -> Loaded:
        """Load the function of a step.

        Raises:
            NotLoaded: It is not there, or is no function; or it is of a kind that cannot be had here.
        """
        reference, origin = wanted.step.reference, wanted.origin
        if isinstance(reference, BuiltinReference):
            return _built_in(reference)
        if isinstance(reference, GitReference):
            commit, root = await self.repositories.fetch(reference)
            name = str(GitReference(reference.url, commit))
            inside = Origin(kind="git", name=name, root=str(root), directory=str(root))
            return await to_thread.run_sync(
                partial(_from_directory, str(root / reference.directory), reference.file, inside, confined=True)
            )
        if isinstance(reference, ImageReference):
            return await self._from_image(reference)
        if not isinstance(reference, LocalReference):
            raise NotLoaded(f"`{reference}` is not a reference to a function")
        is_relative = not reference.path.startswith("/")
        if is_relative and not origin.directory:
            raise NotLoaded(f"`{reference.path}` is relative, and nothing is there that it could be relative to")
        directory = os.path.normpath(f"{origin.directory}/{reference.path}" if is_relative else reference.path)  # noqa: ASYNC240  (only text)
        confined = origin.kind in _ALLOWED_WHOLE and _is_below(directory, origin.root)
        return await to_thread.run_sync(partial(_from_directory, directory, reference.file, origin, confined=confined))

    async def _from_image(self, reference: ImageReference) -> Loaded:
        if self.containers is None:
            raise NotLoaded(f"{reference} is an image, and those cannot be fetched here; expected a directory or git")
        try:
            image = image_of(str(evolve(reference, directory="", file=None)))
        except ValueError as error:
            raise NotLoaded(str(error)) from error
        root = await self.containers.files_of(image, self.repositories.directory / "images")
        inside = Origin(kind="image", name=str(image), root=str(root), directory=str(root))
        directory = str(root / reference.directory)
        return await to_thread.run_sync(partial(_from_directory, directory, reference.file, inside, confined=True))


def _from_directory(directory: str, file: str | None, origin: Origin, *, confined: bool) -> Loaded:
    """Read the function of a directory; one that is confined cannot have its file elsewhere, by a link.

    What is beside an allowed function needs no other permission: so no link may lead from there to what needs one.
    """
    for name in (file,) if file else FILES:
        path = f"{directory.rstrip('/')}/{name}"
        try:
            text = read_text(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise NotLoaded(f"`{path}` cannot be read: {error.strerror or error}") from error
        real = os.path.realpath(path)
        is_inside = _is_in(real, origin.root)
        if confined and not is_inside:
            raise NotLoaded(f"`{path}` leads out of where the function comes from")
        found = origin if is_inside else Origin(kind="local", name=directory, root=directory)
        where = Origin(kind=found.kind, name=found.name, root=found.root, directory=directory)
        try:
            return Loaded(function=read_steps(text, source=path), origin=where, identity=real)
        except JobStepsError as error:
            raise NotLoaded(str(error)) from error
    if not os.path.isdir(directory):  # noqa: PTH112  (text so far)
        raise NotLoaded(f"there is no directory `{directory}`, which should have the function")
    names = " or ".join(f"`{name}`" for name in ((file,) if file else FILES))
    raise NotLoaded(f"there is no {names} in `{directory}`")


def read_text(path: str) -> str:
    """Read a regular file that is not too big; a pipe is not waited for, and a terminal does not become ours."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise NotLoaded(f"`{path}` is not a file")
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise NotLoaded(f"`{path}` has more than {_MAX_BYTES} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise NotLoaded(f"`{path}` is not text in UTF-8 (byte {error.start})") from error


def _is_in(path: str, root: str) -> bool:
    if not root:
        return False
    return _is_below(path, os.path.realpath(root))


def _is_below(path: str, root: str) -> bool:
    return bool(root) and (path == root or path.startswith(f"{root.rstrip('/')}/"))


def _built_in(reference: BuiltinReference) -> Loaded:
    if reference.name != "script":
        raise NotLoaded(f"there is no built-in function `{reference.name}`; there is `script`")
    shell = next((each for each in _SHELLS if os.access(each, os.X_OK)), None) or shutil.which("sh")
    if not shell:
        raise NotLoaded("there is no shell for the script; expected bash or sh")
    function = Function(
        source="builtin://script",
        inputs={"script": Parameter(kind="string")},
        exec=Exec(command=(shell, "-c", "${{ inputs.script }}")),
    )
    return Loaded(function=function, origin=Origin(kind="builtin", name="script"), identity="")


def origin_of_job(directory: "str | Path") -> Origin:
    """Say where a job's own steps are: paths in them begin in that directory."""
    where = os.path.normpath(Path(directory).absolute())
    return Origin(kind="job", root=where, directory=where)
