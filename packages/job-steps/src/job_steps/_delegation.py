"""Steps in containers: what the agent that has containers and an agent in one of them say to each other.

Each message is one line of JSON over the standard input and output of the agent in the container, its *child*. The
first one says what to run; the last one, what came of it. A child whose own steps want containers asks for them: only
the agent outside has an engine, and it passes on what is said. So a container inside a container is a container beside
it, nobody in one has the engine's socket, and how deep they go is counted where nobody in one can change it.

What a child says is not trusted: job code runs beside it. It can make its own step fail, or succeed, and nothing else;
`_foreign` has what is believed of its results.
"""

import base64
import binascii
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final, Protocol

import anyio
from attrs import asdict, define, field, frozen

from job_steps._errors import JobStepsError, StepFailed
from job_steps._groups import beside
from job_steps._limits import NO_LIMITS, Limits
from job_steps._references import (
    BuiltinReference,
    DynamicReference,
    GitReference,
    ImageReference,
    LocalReference,
    Reference,
    image_of,
)
from job_steps._results import Status, StepResult
from job_steps._run import Caller, CameBack, Delegate, Origin, Variable
from job_steps._values import MAX_DEPTH, Hidden, Value, bounded, checked

MAX_CONTAINERS: Final = 5
"""Containers inside one another."""

MAX_MESSAGE: Final = 16 << 20
"""Bytes of one message."""

MAX_AROUND: Final = 1 << 10
"""More bytes that a message may have that is passed on, for what says so."""

MAX_PARTS: Final = 500_000
"""Lists and objects of one: each takes many times the memory of what stands for it. Managers read no more either."""

_PIECE: Final = 64 << 10
"""Bytes of a log that are passed on at once: each is searched for all that is to be masked."""

_LONGEST_TURN: Final = 1.0
"""Seconds for which others have their turn, at most, after a tree was read."""

_LONGEST_IMAGE: Final = 1000
"""Characters of the image that a child asks for."""

_MOST_NAMES: Final = 100
"""Of the path that it gives."""

_REFERENCES: Final = {
    "local": LocalReference,
    "git": GitReference,
    "image": ImageReference,
    "builtin": BuiltinReference,
    "dynamic": DynamicReference,
}

Message = Mapping[str, Any]
"""An object with one key, which says what it is."""

Sink = Callable[[Message], Awaitable[None]]


class Child(Protocol):
    """An agent in a container, as long as that is open."""

    async def send(self, message: Message) -> None:
        """Say something to it; what it does not hear because it has ended, `receive` tells."""

    async def receive(self) -> Message:
        """Hear what it says next.

        Raises:
            StepFailed: It has ended, or says what is no message.
        """


class Containers(Protocol):
    """What makes containers."""

    async def files_of(self, image: ImageReference, directory: Path) -> Path:
        """Get the files of an image, without running anything of it; returns where they are.

        Args:
            image: The image.
            directory: Where they are kept, below a name of their own.

        Raises:
            StepFailed: They are not to be had.
        """

    def open(
        self, image: ImageReference, path: tuple[str, ...], *, root: str = "", limits: Limits = NO_LIMITS
    ) -> AbstractAsyncContextManager[Child]:
        """Make a container with an agent in it; it is removed at the end.

        Args:
            image: What it is made of.
            path: The names that lead to the step that it is for.
            root: A directory that it has, too, at the same place, to read: paths in the list of the step lead there.
            limits: What all in it may have together, whatever runs in the place of the agent.

        Raises:
            StepFailed: It cannot be made, or has no agent, or cannot keep the limits.
        """


@frozen(kw_only=True)
class Delegation:
    """What a run needs to have steps run in containers."""

    containers: Containers
    env: Mapping[str, str] = field(factory=dict, repr=False)
    """What of the environment goes along; a container has its own beside it."""
    policies: Sequence[Mapping[str, object]] = ()
    """What steps in containers have to obey, as JSON; see `_policy.as_mapping`."""
    allow: Callable[[ImageReference, tuple[str, ...]], None] = lambda _image, _path: None
    """Asked for each container that steps in containers want; raises `StepRefused` if they must not have it."""
    limits: Limits = NO_LIMITS
    """What each command in a container may have: no more than one outside."""


@frozen(kw_only=True)
class Request:
    """What a child is to run."""

    path: tuple[str, ...]
    """The names that lead to the step."""
    image: str
    """That its container is made of."""
    origin: Origin
    reference: Reference
    is_static: bool
    inputs: Mapping[str, Value] = field(repr=False)
    base: Mapping[str, str] = field(repr=False)
    env: "Mapping[str, str | Hidden]" = field(repr=False)
    calls: tuple[Caller, ...]
    steps_before: int
    work_dir: str
    variables: tuple[Variable, ...] = field(default=(), repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)
    policies: tuple[Mapping[str, object], ...] = ()
    limits: Limits = NO_LIMITS

    @staticmethod
    def of(
        wanted: Delegate,
        delegation: Delegation,
        *,
        work_dir: str,
        variables: Sequence[Variable],
        secrets: Sequence[str],
    ) -> "Request":
        """Make one of what a run wants."""
        return Request(
            path=wanted.path,
            image=str(wanted.image),
            origin=wanted.origin,
            reference=wanted.step.reference,
            is_static=wanted.is_static,
            inputs=wanted.inputs,
            base={**({} if wanted.is_own else delegation.env), **wanted.base},
            env=wanted.env,
            calls=wanted.calls,
            steps_before=wanted.steps_before,
            work_dir=work_dir,
            variables=tuple(variables),
            secrets=tuple(secrets),
            policies=tuple(delegation.policies),
            limits=delegation.limits,
        )

    def as_message(self) -> Message:
        """Write it."""
        kind = next(name for name, each in _REFERENCES.items() if isinstance(self.reference, each))
        return {
            "run": {
                "path": list(self.path),
                "image": self.image,
                "origin": asdict(self.origin),
                "reference": {kind: asdict(self.reference)},
                "is_static": self.is_static,
                "inputs": _written(self.inputs),
                "base": dict(self.base),
                "env": _written(self.env),
                "calls": [asdict(each) for each in self.calls],
                "steps_before": self.steps_before,
                "work_dir": self.work_dir,
                "variables": [asdict(each) for each in self.variables],
                "secrets": list(self.secrets),
                "policies": list(self.policies),
                "limits": asdict(self.limits),
            }
        }

    @staticmethod
    def read(message: Message) -> "Request":
        """Read what `as_message` has written, on the other side of the same version.

        Raises:
            ValueError: It is something else.
        """
        try:
            found = dict(message["run"])
            ((kind, reference),) = found.pop("reference").items()
            return Request(
                **{
                    **found,
                    "path": tuple(found["path"]),
                    "origin": Origin(**found["origin"]),
                    "reference": _REFERENCES[kind](**reference),
                    "inputs": _read(found["inputs"]),
                    "env": _read(found["env"]),
                    "calls": tuple(Caller(**each) for each in found["calls"]),
                    "variables": tuple(Variable(**each) for each in found["variables"]),
                    "secrets": tuple(found["secrets"]),
                    "policies": tuple(found["policies"]),
                    "limits": Limits(**found["limits"]),
                }
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no request: {type(error).__name__}: {error}") from error


def encoded(message: Message) -> bytes:
    """Write a message as a line.

    Raises:
        StepFailed: What was read of it before goes deeper than can be written.
    """
    try:
        return json.dumps(message, separators=(",", ":")).encode("utf-8", "replace") + b"\n"
    except RecursionError:
        raise StepFailed(f"{_NONSENSE}: lists in lists without end") from None


def decoded(line: bytes) -> Message:
    """Read one.

    Raises:
        StepFailed: It is none.
    """
    try:
        message = None if line.count(b"{") + line.count(b"[") > MAX_PARTS else json.loads(line)
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict) or len(message) != 1:
        raise StepFailed(f"{_NONSENSE}: {line[:60].rstrip()!r}")
    return message


_NONSENSE: Final = "what runs in the container says something that no agent says"


def log_message(data: bytes) -> Message:
    """Write a piece of a log."""
    return {"log": base64.b64encode(data).decode()}


def end_message(came: CameBack) -> Message:
    """Write what came of a step; if that is too much, that it is."""
    message = {
        "end": {
            "tree": came.result.as_dict(),
            "outputs": _written(came.outputs),
            "exports": dict(came.exports),
            "secrets": list(came.secrets),
        }
    }
    if (size := len(encoded(message))) <= MAX_MESSAGE:
        return message
    error = f"what its steps returned has {size} bytes; at most {MAX_MESSAGE} come out of a container"
    return {"end": {"tree": StepResult(status=Status.FAILURE, error=error).as_dict()}}


def read_end(found: object) -> CameBack:
    """Read what came of a step.

    Raises:
        StepFailed: It is something else.
    """
    try:
        if not isinstance(found, dict):
            raise TypeError(f"{type(found).__name__} where an object was expected")
        result = StepResult.from_dict(found["tree"])
        outputs, exports = _read(found.get("outputs", {})), found.get("exports", {})
        if not isinstance(outputs, dict) or not isinstance(exports, dict):
            raise TypeError("outputs or exports that are no object")
        bounded(outputs)
        for name, text in exports.items():
            if not isinstance(text, str) or not name or "=" in name or "\0" in name + text:
                raise ValueError(f"an export {name[:40]!r} that cannot be a variable of the environment")
        return CameBack(result=result, outputs=outputs, exports=exports, secrets=_secrets(found.get("secrets", [])))
    except (KeyError, TypeError, ValueError, JobStepsError) as error:
        raise StepFailed(f"{_NONSENSE}: {type(error).__name__}: {error}"[:500]) from error


def _secrets(found: object) -> tuple[str, ...]:
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise TypeError("secrets that are no list of strings")
    return tuple(found)


def read_tree(found: object) -> StepResult:
    """Read a tree that has grown. Raises as `read_end`."""
    return read_end({"tree": found}).result


def _written(value: Value) -> Any:  # noqa: ANN401  (JSON)
    """Write a value as JSON, with what is hidden of it marked."""
    if isinstance(value, Hidden):
        return {"hidden": [_written(value.value), _written(value.shown)]}
    if isinstance(value, Mapping):
        return {"struct": {key: _written(each) for key, each in value.items()}}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_written(each) for each in value]
    return value


def _read(data: Any, depth: int = 0) -> Any:  # noqa: ANN401  (JSON)
    """Read that. Raises ValueError, TypeError or KeyError if it is something else."""
    if depth > MAX_DEPTH:
        raise ValueError(f"more than {MAX_DEPTH} levels of lists and structs")
    if isinstance(data, dict):
        if "hidden" in data:
            value, shown = data["hidden"]
            return Hidden(_read(value, depth + 1), _read(shown, depth + 1))
        return {str(key): _read(each, depth + 1) for key, each in dict(data["struct"] if data else {}).items()}
    if isinstance(data, list):
        return [_read(each, depth + 1) for each in data]
    return checked(data, depth=depth)


async def delegate(
    request: Request,
    image: ImageReference,
    delegation: Delegation,
    *,
    log: Callable[[bytes], Awaitable[None]],
    grown: Callable[[StepResult], None],
) -> CameBack:
    """Have a step run in a container, to its end.

    Args:
        request: What to run.
        image: Of the container.
        delegation: What makes it.
        log: Takes what steps print.
        grown: Told of the tree when there is more of it.

    Raises:
        StepFailed: The container cannot be made, or has ended before the step had.
    """
    came: list[CameBack] = []

    async def take(message: Message) -> None:
        ((kind, content),) = message.items()
        if kind == "log":
            data = _bytes(content)
            for start in range(0, len(data), _PIECE):
                await log(data[start : start + _PIECE])
        elif kind == "tree":
            began = anyio.current_time()
            grown(read_tree(content))
            await anyio.sleep(min(anyio.current_time() - began, _LONGEST_TURN))  # there are others beside this job
        else:
            came.append(read_end(content))

    root, message = request.origin.root, request.as_message()
    if (size := len(encoded(message))) > MAX_MESSAGE:
        raise StepFailed(
            f"what goes along into the container has {size} bytes, in variables, inputs and the environment;"
            f" at most {MAX_MESSAGE} do"
        )
    async with delegation.containers.open(image, request.path, root=root, limits=delegation.limits) as child:
        await child.send(message)
        await _Attending(delegation, request.path, root, take, (str(image),)).attend(child)
    return came[0]


def _bytes(content: object) -> bytes:
    try:
        return base64.b64decode(str(content), validate=True)
    except (binascii.Error, ValueError) as error:
        raise StepFailed(f"{_NONSENSE}: a log that cannot be read") from error


@define
class _Attending:
    """One child: what it says is passed on, and the container that it asks for is made."""

    delegation: Delegation
    path: tuple[str, ...]
    """The names that lead to the step outside of all containers: what a child says comes behind these."""
    root: str
    """See `Containers.open`: that of this step, for what a child says could be any directory of this host."""
    deliver: Sink
    images: tuple[str, ...]
    """Of the containers around, this one's the last."""
    below: Child | None = None
    """The one in the container that it has asked for."""
    scope: anyio.CancelScope = field(factory=anyio.CancelScope)
    """Around that container."""
    is_busy: bool = False
    """Whether there is one."""

    async def attend(self, child: Child) -> None:
        """Listen until the child says its last word.

        Raises:
            StepFailed: It ended before, or says what no agent says.
        """
        async with beside() as tasks:
            while True:
                message = await child.receive()
                ((kind, content),) = message.items()
                if kind in ("log", "tree", "end"):
                    await self.deliver(message)
                    if kind == "end":
                        break
                elif kind == "open" and not self.is_busy:
                    self.is_busy, self.scope = True, anyio.CancelScope()
                    tasks.start_soon(self._make, child, content)
                elif kind == "to" and isinstance(content, dict):
                    if self.below is not None:  # else, it has ended meanwhile
                        await self.below.send(content)
                elif kind == "close":
                    if self.is_busy:  # as above
                        self.scope.cancel()
                else:
                    raise StepFailed(f"{_NONSENSE}: `{str(kind)[:40]}` where it has no place")

    async def _make(self, child: Child, wanted: object) -> None:
        """Make the container that a child asks for, and tell it when that is gone."""
        why = ""
        with self.scope:
            try:
                image, path = self._asked(wanted)
                self.delegation.allow(image, path)
                limits = self.delegation.limits
                async with self.delegation.containers.open(image, path, root=self.root, limits=limits) as below:
                    self.below = below
                    await child.send({"opened": True})
                    images = (*self.images, str(image))

                    async def pass_on(message: Message) -> None:
                        await child.send({"from": message})

                    inner = _Attending(self.delegation, self.path, self.root, pass_on, images)
                    await inner.attend(below)
            except StepFailed as error:
                why = str(error)
            finally:
                self.below = None
        self.is_busy = False
        await child.send({"closed": why})

    def _asked(self, wanted: object) -> tuple[ImageReference, tuple[str, ...]]:
        """Read what container a child asks for, and see that there are not too many around it already."""
        try:
            if not isinstance(wanted, dict):
                raise TypeError(f"{type(wanted).__name__} where an object was expected")
            image = image_of(str(wanted["image"])[:_LONGEST_IMAGE])
            path = [str(each)[:255] for each in wanted["path"][:_MOST_NAMES]]
        except (KeyError, TypeError, ValueError) as error:
            raise StepFailed(f"{_NONSENSE}: {error}"[:500]) from error
        if len(self.images) >= MAX_CONTAINERS:
            way = " → ".join((*self.images, str(image)))
            raise StepFailed(f"more than {MAX_CONTAINERS} containers inside one another: {way}")
        return image, (*self.path, *path[len(self.path) :])
