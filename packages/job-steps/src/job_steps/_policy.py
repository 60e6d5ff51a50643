"""What an operator allows of steps: pure, and the same for who admits a job and for the agent that runs it.

A policy is applied where a job is admitted, to its list as a whole (`admit`), and again by the agent: to the list, and
to every step just before it is loaded (`check`), which finds what is named by lists that were not known before. Who
applies it twice gets what the first time gave.

A definition from a repository, an image or the agent itself was allowed with all that it has: its scripts, and what it
names beside itself, need no other leave. What it names elsewhere does.
"""

import json
import posixpath
import re
from collections.abc import Mapping, Sequence
from enum import Enum
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

from attrs import Attribute, evolve, field, fields, frozen

from job_steps._errors import StepRefused
from job_steps._limits import Limits
from job_steps._sizes import size_of

_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_PART = r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*"
_IMAGE = re.compile(rf"[^/\s]+(?:/{_PART})+")
_TAG = re.compile(rf"[\w][\w.-]{{0,127}}|{_DIGEST.pattern}", re.ASCII)
_PORTS = {"https": 443, "http": 80, "ssh": 22}
_UNFIT = re.compile(r"[\x00-\x20\x7f\\%?#]")
"""What an address may spell in several ways, or has no use for: it could not be compared."""


class Kind(Enum):
    """What a step is taken from."""

    SCRIPT = "script"
    """The list itself: a script, or a command."""

    PATH = "path"
    GIT = "git"
    IMAGE = "image"
    BUILTIN = "builtin"
    """The agent."""

    EXPRESSION = "expression"
    """Nobody knows before the job runs."""


@frozen(kw_only=True)
class Asked:
    """What a job asks for with one of its steps."""

    step: str
    """Which step, as people find it: its name, behind those of the steps around it, such as ``build/lint``."""

    kind: Kind
    location: str = ""
    """A path, relative to the root of what names it, absolute if it is outside; a repository's address; an image, with
    its registry; or a name. Empty for a script."""

    file: str = ""
    """Of a path: the file that is named in that directory; empty: the usual one."""

    version: str = ""
    """Of a repository, what to check out; of an image, its tag or digest. Empty if there is none."""

    origin: Kind | None = None
    """What the list was taken from that names the step. None: it is the job's."""

    container: "Asked | None" = None
    """The image of the container that it is to run in; None: it runs where the others do."""

    @property
    def is_the_jobs(self) -> bool:
        """Whether the job's author wrote what names it."""
        return self.origin in (None, Kind.PATH)


class PolicyRefused(StepRefused):
    """A policy does not allow a step.

    Attributes:
        rule: The field of `Policy` that does not.
        step: Which step; as in `Asked`.
        why: What was found, and what to do.
        is_own: Whether it is the job's own policy, and not one above it.
    """

    def __init__(self, rule: str, step: str, why: str, *, is_own: bool = False) -> None:
        """Say which rule does not allow which step, and why."""
        super().__init__(rule=rule, why=why)
        self.step = step
        self.is_own = is_own

    def __str__(self) -> str:
        """Say it in one sentence."""
        which = f"`{self.rule}` in the job's own policy" if self.is_own else f"the policy's `{self.rule}`"
        return f"{which} refuses the step `{self.step}`: {self.why}"


Patterns = tuple[str, ...] | None


def _patterns(_: object, attribute: "Attribute[Patterns]", value: object) -> None:
    if value is not None and not (isinstance(value, tuple) and all(isinstance(each, str) and each for each in value)):
        raise ValueError(f"{attribute.name}: expected patterns, none of them empty")


def _flag(_: object, attribute: "Attribute[bool]", value: object) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{attribute.name}: expected true or false")


def _seconds(_: object, attribute: "Attribute[float | None]", value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        raise ValueError(f"{attribute.name}: expected seconds, more than 0")


LEAST_MEMORY = 6 << 20
"""Bytes: less is not enough for a shell and what it starts."""


def _as_size(value: object) -> object:
    """Take a size that is written for people, too."""
    if not isinstance(value, str):
        return value
    try:
        return size_of(value)
    except ValueError as error:
        raise ValueError(f"memory: expected {error}") from None


def _size(_: object, attribute: "Attribute[int | None]", value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < LEAST_MEMORY:
        raise ValueError(f'{attribute.name}: expected bytes, or a size such as "512m", of at least 6m')


def _network(_: object, attribute: "Attribute[str | None]", value: object) -> None:
    if value not in (None, "none"):
        raise ValueError(f'{attribute.name}: expected "none", or no such key')


Call = Mapping[str, object]
"""A step as a list has it: its name, what it is taken from, its inputs and environment."""


def _as_calls(value: object) -> tuple[Call, ...]:
    """Take steps as they are after a way through JSON, so that all who have the policy have the same."""
    try:
        read = json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"expected steps that JSON can hold: {error}") from error
    if not (isinstance(read, list) and all(isinstance(each, dict) for each in read)):
        raise ValueError("expected a list of steps")
    if not all(isinstance(each.get("name"), str) for each in read):  # by which jobs' own are kept apart
        raise ValueError("expected steps that each have a name, a string")
    return tuple(read)


@frozen(kw_only=True)
class Policy:
    """What steps may be, and what is run with them. By default, all is allowed, and nothing is added.

    Patterns are compared with what steps are taken from; ``*`` stands for any characters, ``/`` too, but never for
    parts of both a host and a path. None: any. No pattern at all: nothing.
    """

    allowed_git: Patterns = field(default=None, validator=_patterns)
    """Repositories, and behind an ``@`` their versions if not all will do: ``gitlab.com/steps/*@v1.*``. Without a
    scheme, only by https."""

    allowed_images: Patterns = field(default=None, validator=_patterns)
    """Images with their registry, and behind a ``:`` or ``@`` their tags or digests: ``registry.example.com/x:v1*``."""

    allowed_paths: Patterns = field(default=None, validator=_patterns)
    """Directories and files of the job, relative to its project, or absolute ones of the machine."""

    allowed_builtins: Patterns = field(default=None, validator=_patterns)
    """Names of steps that the agent has."""

    scripts: bool = field(default=True, validator=_flag)
    """Whether a job's list may have scripts and commands. If not, of paths only those in allowed_paths may be taken,
    for a job writes its own files."""

    commits: bool = field(default=False, validator=_flag)
    """Whether a repository's version has to be a whole commit, and an image's a digest, which nobody can move."""

    before: tuple[Call, ...] = field(default=(), converter=_as_calls)
    """Steps that run before those of each job. They need no leave."""

    after: tuple[Call, ...] = field(default=(), converter=_as_calls)
    """Steps that run after those of each job, if these succeed."""

    timeout: float | None = field(default=None, validator=_seconds)
    """Seconds that a job's steps may take together. None: as long as the job may."""

    breakpoints: bool = field(default=False, validator=_flag)
    """Whether jobs may be held at breakpoints, for somebody to look at them."""

    breakpoint_timeout: float | None = field(default=None, validator=_seconds)
    """Seconds for which a job may be held, at most. None: as long as anybody can ask for."""

    memory: int | None = field(default=None, converter=_as_size, validator=_size)
    """Bytes, or a size such as ``512m``, that the command of each step may have with all that it starts; it is killed
    if it needs more. None: as much as there is."""

    network: str | None = field(default=None, validator=_network)
    """``none``: no command of a step may have the network. None: they have the instance's."""

    @property
    def limits(self) -> Limits:
        """What each command may have."""
        return Limits(memory=self.memory, network=self.network)

    @property
    def own_names(self) -> frozenset[str]:
        """What the steps are called that it adds; none of a job's is called so."""
        return frozenset(str(each["name"]) for each in (*self.before, *self.after))

    @property
    def restricts(self) -> bool:
        """Whether there are steps that it refuses, wherever they are named."""
        patterns = (self.allowed_git, self.allowed_images, self.allowed_paths, self.allowed_builtins)
        return self.commits or not self.scripts or any(each is not None for each in patterns)

    def time_limit(self, wanted: float | None) -> float | None:
        """Seconds that a job gets which may take so many; None: any number."""
        return min((each for each in (wanted, self.timeout) if each is not None), default=None)

    def held_at_most(self, wanted: float) -> float:
        """Seconds for which a job is held that would be so for so many."""
        return wanted if self.breakpoint_timeout is None else min(wanted, self.breakpoint_timeout)


def check_breakpoints(policy: Policy, breakpoints: Sequence[str]) -> None:
    """See that a policy allows that a job is held where these say.

    Raises:
        PolicyRefused: It does not; the error names the first.
    """
    if breakpoints and not policy.breakpoints:
        step = breakpoints[0].partition(":")[0][:100]
        raise PolicyRefused("breakpoints", step, "jobs are not held at breakpoints here")


RESTRICTIONS = ("allowed_git", "allowed_images", "allowed_paths", "allowed_builtins", "scripts", "commits")
"""What a job's own policy may say: rules that refuse steps. All else a job says elsewhere, or it is not its to say."""


def restrictions_of(written: Mapping[str, object]) -> Policy:
    """Read a job's own policy, which can only refuse: both it and the one above it are in force.

    Raises:
        ValueError: It is none, or says what only an operator may.
    """
    if unknown := sorted(set(written) - set(RESTRICTIONS)):
        raise ValueError(f"unknown key {unknown[0]!r} in a job's own policy; expected {', '.join(RESTRICTIONS)}")
    return policy_of(written)


def check_own(own: Policy, asked: Asked) -> None:
    """See that a job's own policy allows a step; as `check`, and the error says whose rule it is."""
    try:
        check(own, asked)
    except PolicyRefused as error:
        raise PolicyRefused(error.rule, error.step, error.why, is_own=True) from error


def check(policy: Policy, asked: Asked) -> None:
    """See that a policy allows a step that is about to be loaded.

    Raises:
        PolicyRefused: It does not.
        ValueError: What it is taken from is an expression, which has to be evaluated first.
    """
    if asked.container is not None:
        check(policy, asked.container)
    if asked.kind is Kind.EXPRESSION:
        raise ValueError(f"the step {asked.step!r} is taken from an expression that is not evaluated yet")
    if asked.kind is Kind.SCRIPT:
        if asked.origin is None and not policy.scripts:
            why = "it is a script or a command of the job's own"
            raise PolicyRefused("scripts", asked.step, why)
    elif not _is_beside(asked):
        _check_reference(policy, asked)


def _check_reference(policy: Policy, asked: Asked) -> None:
    rule, patterns = _rule(policy, asked.kind)
    if rule == "allowed_paths" and patterns is None and not policy.scripts:
        why = f"{asked.location} is the job's own, as good as a script, and not in allowed_paths"
        raise PolicyRefused("scripts", asked.step, why)
    if patterns is not None and not any(_matches(asked, pattern) for pattern in patterns):
        allowed = " or ".join(patterns) or "nothing"
        raise PolicyRefused(rule, asked.step, f"expected {allowed}, found {_shown(asked)}")
    if policy.commits and not _is_pinned(asked):
        wanted = "a digest, sha256:…," if asked.kind is Kind.IMAGE else "a whole commit"
        raise PolicyRefused("commits", asked.step, f"expected {wanted} as the version, found {_shown(asked)}")


def _is_beside(asked: Asked) -> bool:
    """Whether it is part of what was allowed already."""
    return asked.kind is Kind.PATH and not asked.is_the_jobs and _path(asked.location) is not None


def _rule(policy: Policy, kind: Kind) -> tuple[str, Patterns]:
    if kind is Kind.GIT:
        return "allowed_git", policy.allowed_git
    if kind is Kind.IMAGE:
        return "allowed_images", policy.allowed_images
    if kind is Kind.PATH:
        return "allowed_paths", policy.allowed_paths
    return "allowed_builtins", policy.allowed_builtins


def _is_pinned(asked: Asked) -> bool:
    if asked.kind is Kind.GIT:
        return _COMMIT.fullmatch(asked.version) is not None
    return asked.kind is not Kind.IMAGE or _DIGEST.fullmatch(asked.version) is not None


def _shown(asked: Asked) -> str:
    """Show what a step is taken from; an address may have a password."""
    scheme, mark, rest = asked.location.rpartition("://")
    authority, slash, path = rest.partition("/")
    shown = f"{scheme}{mark}{authority.rpartition('@')[2]}{slash}{path}" if asked.kind is Kind.GIT else asked.location
    between = "@" if asked.kind is Kind.GIT or ":" in asked.version else ":"
    return f"{shown}{between}{asked.version}" if asked.version else shown


def _matches(asked: Asked, pattern: str) -> bool:
    if asked.kind is Kind.GIT:
        return _repository_matches(asked, pattern)
    if asked.kind is Kind.IMAGE:
        return _image_matches(asked, pattern)
    if asked.kind is Kind.PATH:
        return any(_path_matches(path, pattern) for path in (asked.location, f"{asked.location}/{asked.file}"))
    return fnmatchcase(asked.location, pattern)


def _path_matches(path: str, pattern: str) -> bool:
    """Whether a pattern stands for a path; one that is relative stands for none that is outside."""
    found = posixpath.normpath(path)
    if found.startswith("/") != pattern.startswith("/"):
        return False
    return (found.startswith("/") or _path(found) is not None) and fnmatchcase(found, posixpath.normpath(pattern))


def _path(path: str) -> str | None:
    """A relative path that stays below where it begins; None: it does not."""
    normal = posixpath.normpath(path)
    return None if normal.startswith(("/", "../")) or normal == ".." else normal


@frozen
class _Address:
    """Where a repository is, in one spelling."""

    scheme: str
    host: str
    path: str

    @classmethod
    def read(cls, text: str) -> "_Address | None":
        """Read one; None: it could be read in several ways."""
        whole = text if "://" in text else f"https://{text}"
        try:
            parts = urlsplit(whole)
            port = parts.port
        except ValueError:
            return None
        path = parts.path.rstrip("/").removesuffix(".git")
        is_local = parts.scheme == "file"
        if _UNFIT.search(whole) or path != posixpath.normpath(path or "/") or "//" in path:
            return None
        if bool(parts.netloc) is is_local or not parts.netloc.isascii() or (not parts.hostname and not is_local):
            return None  # names of hosts with other characters have several spellings
        shown = "" if port is None or port == _PORTS.get(parts.scheme) else f":{port}"
        return cls(parts.scheme, f"{parts.hostname or ''}{shown}", path.lstrip("/"))


def _repository_matches(asked: Asked, pattern: str) -> bool:
    found = _Address.read(asked.location)
    scheme, _, rest = pattern.rpartition("://")
    authority, _, behind = rest.partition("/")
    path, _, version = behind.partition("@")
    path = path.rstrip("/").removesuffix(".git")
    return (
        found is not None
        and found.scheme == (scheme.lower() or "https")
        and fnmatchcase(found.host, authority.rpartition("@")[2].lower())
        and fnmatchcase(found.path, path)
        and fnmatchcase(asked.version, version or "*")
    )


def _image_matches(asked: Asked, pattern: str) -> bool:
    found = _image(asked.location, asked.version)
    wanted = _image(pattern, "")
    return (
        re.search(r"[:@]", asked.location.partition("/")[2]) is None  # the version is beside it, and is one
        and _IMAGE.fullmatch(asked.location.lower()) is not None
        and (not asked.version or _TAG.fullmatch(asked.version) is not None)
        and fnmatchcase(found[0], wanted[0])
        and fnmatchcase(found[1], wanted[1])
        and fnmatchcase(found[2], wanted[2] or "*")
    )


def _image(text: str, version: str) -> tuple[str, str, str]:
    """Take an image's name apart: its registry, its path there, its version; as all of them are written in full."""
    name, _, digest = text.partition("@")
    registry, _, path = name.partition("/")
    above, slash, last = path.rpartition("/")
    last, _, tag = last.partition(":")
    return registry.lower(), f"{above}{slash}{last}", version or digest or tag


def admit(
    policy: Policy, calls: Sequence[Call], asked: Sequence[Asked], *, own: Policy | None = None
) -> tuple[Call, ...]:
    """See that a policy allows all steps of a job's list, and put those into it that it has to have.

    Args:
        policy: What is allowed.
        calls: The list. It may have what the policy puts there already.
        asked: What it asks for with each of them, in their order.
        own: The job's own policy, which its own steps have to obey beside that: it can only refuse more.

    Returns:
        The list that is to be run.

    Raises:
        PolicyRefused: It does not allow the first that it does not allow.
    """
    first, last = bounds(policy, calls)
    theirs = calls[first:last]
    for each in asked[first:last]:
        if each.step in policy.own_names:  # as it is read: a list may have it as something else than a string
            rule = "before" if any(added["name"] == each.step for added in policy.before) else "after"
            raise PolicyRefused(rule, each.step, "the policy adds a step of this name")
        for one in (each.container, evolve(each, container=None)):
            if one is not None and one.kind is not Kind.EXPRESSION:  # which the agent evaluates, and checks
                check(policy, one)
                if own is not None:
                    check_own(own, one)
    return (*policy.before, *theirs, *policy.after)


def bounds(policy: Policy, calls: Sequence[Call]) -> tuple[int, int]:
    """Where a job's own steps begin and end in a list that may have the policy's."""
    first = len(policy.before) if _are_same(calls[: len(policy.before)], policy.before) else 0
    last = len(calls) - len(policy.after)
    return first, last if last >= first and _are_same(calls[last:], policy.after) else len(calls)


def _are_same(some: Sequence[Call], others: Sequence[Call]) -> bool:
    """Whether steps are the same as they are written: to Python, 1, 1.0 and true are."""
    return json.dumps(list(some), sort_keys=True) == json.dumps(list(others), sort_keys=True)


def as_mapping(policy: Policy) -> dict[str, object]:
    """Write a policy as JSON can hold it, without what is as it is by default."""
    written: dict[str, object] = {}
    for each in fields(Policy):
        value = getattr(policy, each.name)
        if value != each.default:
            written[each.name] = list(value) if isinstance(value, tuple) else value
    return written


def policy_of(written: Mapping[str, object]) -> Policy:
    """Read a policy that was written as `as_mapping` does.

    Raises:
        ValueError: It is none.
    """
    known = {each.name for each in fields(Policy)}
    if unknown := sorted(set(written) - known):
        raise ValueError(f"unknown key {unknown[0]!r} in a policy; expected {', '.join(sorted(known))}")
    given: Mapping[str, object] = {key: _as_tuple(value) for key, value in written.items()}
    return Policy(**given)  # type: ignore[arg-type]  # the validators look at each


def _as_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value
