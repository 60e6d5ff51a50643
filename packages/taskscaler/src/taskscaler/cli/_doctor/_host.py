"""What is looked at on this machine, whatever the file says: Python, releases, the clock."""

import ctypes
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, distribution, entry_points, metadata
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement

from taskscaler.cli._doctor._finding import Finding, Grade
from taskscaler.cli._doctor._plugins import KINDS

DAY = 86_400.0
UNSYNCHRONISED = 5
"""What Linux answers if nothing keeps its clock right: ``TIME_ERROR`` in adjtimex(2)."""

OURS = ("taskscaler", "fleeting")


def look_at_python() -> Iterator[Finding]:
    """See whether this Python and this system are among those that the release is tested on."""
    here = f"{platform.python_implementation()} {platform.python_version()} on {platform.system()} {platform.machine()}"
    tested = metadata("taskscaler").get_all("Classifier") or []
    if sys.platform == "win32":
        do = "run the manager on Linux, on macOS or in WSL; instances may be Windows"
        yield Finding(check="python", grade=Grade.PROBLEM, found=f"{here}: managers do not run on Windows", do=do)
    elif f"Programming Language :: Python :: {sys.version_info.major}.{sys.version_info.minor}" not in tested:
        do = "if something fails, try one of those that the package's page lists"
        yield Finding(check="python", grade=Grade.WARNING, found=f"{here}: this release is not tested on it", do=do)
    else:
        yield Finding(check="python", grade=Grade.OK, found=here)


def look_at_versions() -> Iterator[Finding]:
    """See whether the suite's packages, and those that bring plugins, find what they require."""
    names = {*OURS, *(entry.dist.name for kind in KINDS for entry in entry_points(group=kind) if entry.dist)}
    releases = {name: distribution(name) for name in sorted(names)}
    wrong = [*unmet({name: each.requires or [] for name, each in releases.items()}, _version)]
    for name, requirement, found in wrong:
        do = f"pip install --upgrade {name} '{requirement}'"
        yield Finding(check="versions", grade=Grade.PROBLEM, found=f"{name} requires {requirement}, and {found}", do=do)
    if not wrong:
        listed = ", ".join(f"{name} {each.version}" for name, each in releases.items())
        yield Finding(check="versions", grade=Grade.OK, found=listed)


def unmet(
    requires: Mapping[str, Iterable[str]], version_of: Callable[[str], str | None]
) -> Iterator[tuple[str, str, str]]:
    """Find the requirements that are not met.

    Args:
        requires: What each package requires, as its metadata has it.
        version_of: What is installed of a package; None: nothing.

    Returns:
        The package, the requirement, and what there is instead. What only an extra requires may be missing, but not
        be there in another version.
    """
    for name, lines in requires.items():
        for requirement in map(Requirement, lines):
            optional = requirement.marker is not None and "extra" in str(requirement.marker)
            if requirement.marker and not optional and not requirement.marker.evaluate():
                continue
            found = version_of(requirement.name)
            wanted = f"{requirement.name}{requirement.specifier}"
            if found is None and not optional:
                yield name, wanted, "it is not installed"
            elif found is not None and not requirement.specifier.contains(found, prereleases=True):
                yield name, wanted, f"{found} is installed"


def _version(name: str) -> str | None:
    try:
        return distribution(name).version
    except PackageNotFoundError:
        return None


def look_at_clock() -> Iterator[Finding]:
    """See whether the clock can be right: clouds refuse requests that are signed minutes off."""
    installed = Path(__file__).stat().st_mtime
    yield judge_clock(datetime.now(UTC).timestamp(), installed, is_kept=_is_kept())


def judge_clock(now: float, installed: float, *, is_kept: bool | None) -> Finding:
    """Judge a clock.

    Args:
        now: What it says, in seconds since the epoch.
        installed: When this release was installed.
        is_kept: Whether something keeps it right; None: nobody knows.
    """
    shown = datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds")
    if now < installed - DAY:
        do = "set the clock: clouds and TLS refuse requests from the past"
        return Finding(
            check="clock", grade=Grade.PROBLEM, found=f"it is {shown}, before this release was installed", do=do
        )
    if is_kept is False:
        do = "run chrony or systemd-timesyncd, unless the host of this machine sets the clock"
        return Finding(check="clock", grade=Grade.WARNING, found=f"{shown}, and nothing here keeps it right", do=do)
    return Finding(check="clock", grade=Grade.OK, found=shown)


def _is_kept() -> bool | None:
    """Ask Linux; the call changes nothing, because the structure's first field says so."""
    adjtimex = getattr(ctypes.CDLL(None), "adjtimex", None)
    if adjtimex is None:
        return None
    state = adjtimex(ctypes.create_string_buffer(512))  # the structure has about 200 bytes
    return None if state < 0 else state != UNSYNCHRONISED


def look_at_extras() -> Iterator[Finding]:
    """Name the optional packages of taskscaler's own that are missing; those of plugins show when they are loaded."""
    if find_spec("matplotlib") is None:
        do = "pip install 'taskscaler[pictures]', if you want them"
        yield Finding(check="extras", grade=Grade.OK, found="matplotlib is missing, so no timelines are drawn", do=do)
