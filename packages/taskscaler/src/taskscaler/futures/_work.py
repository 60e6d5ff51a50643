"""What can be submitted, and what comes of it. Pure."""

import inspect
import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from attrs import evolve, field, frozen, validators

from fleeting import Duration
from fleeting.config import in_words
from taskscaler._errors import CallFailed, ScriptFailed
from taskscaler.executors import JobOutcome, JobSpec, Verdict
from taskscaler.futures import _remote

RESULT_LIMIT = 64 << 20
"""Bytes of JSON that a function may return."""

_REFERENCE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")

_PROGRAM = re.compile(r"[\w./+-]+")


def _is_reference(_: object, __: object, value: str) -> None:
    if not _REFERENCE.fullmatch(value):
        raise ValueError("module:function, such as statistics:mean")


def _is_program(_: object, __: object, value: str) -> None:
    if not _PROGRAM.fullmatch(value):
        raise ValueError("the name or path of a Python, without arguments")


@frozen(field_transformer=in_words)
class Call:
    """A Python function by reference, to be called on an instance with what is submitted as its arguments.

    The module must be importable by the instance's own Python, or be sent along in *files*; arguments and value are
    JSON: what else there is in Python does not cross. Code and objects are never sent by themselves: to unpickle what
    comes from an instance would let it run anything here.
    """

    function: str = field(validator=_is_reference)
    """As ``module:function``; the function may be an attribute of something, ``module:Class.method``."""

    python: str = field(default="python3", kw_only=True, validator=_is_program)
    """The instance's Python, 3.8 or later: a name to be found there, or an absolute path."""

    env: Mapping[str, str] = field(factory=dict, kw_only=True, repr=False)
    """Added to the instance's own environment."""

    files: Mapping[str, Path] = field(factory=dict, kw_only=True)
    """What it needs: where that goes, relative to its working directory, which is first in its module path."""

    timeout: Duration | None = field(default=None, kw_only=True, validator=validators.optional(validators.gt(0)))
    """Seconds that it may take on the instance; None: no limit."""


Work = str | Sequence[str] | JobSpec | Call
"""A script, a program and its arguments, a job, or a call."""


@frozen(kw_only=True)
class Result(JobOutcome):
    """What came of a script, an argument list or a job."""

    output: bytes = field(repr=False)
    """What it printed, standard output and error in the order in which they came; only the end if it is very long."""

    instance: str
    """Where it ran."""

    attempts: int
    """How often it was begun: once, and again for each instance that was lost."""

    artifacts: Path | None = None
    """Directory with what it left; None if nothing was asked for or left."""

    def check(self) -> Self:
        """Return this result if it succeeded.

        Raises:
            ScriptFailed: It did not.
        """
        if self.verdict is not Verdict.SUCCEEDED:
            raise ScriptFailed(self.why, self.output)
        return self


@frozen(kw_only=True)
class Task:
    """What an executor is to run, and what the future is to give."""

    spec: JobSpec
    answer: Callable[[Result], Any] = lambda result: result
    keeps_artifacts: bool = True
    """Whether what it leaves is for the user."""


def task_for(work: Work, args: Sequence[object], kwargs: Mapping[str, object], *, name: str) -> Task:
    """Make a task of what was submitted.

    Raises:
        TypeError: Nothing can be made of it.
    """
    if isinstance(work, Call):
        return _task_for_call(work, args, kwargs, name)
    if kwargs:
        raise TypeError(f"only a Call takes named arguments, not {', '.join(kwargs)}")
    match work:
        case str():
            return Task(spec=_with_arguments(JobSpec(name=name, script=work), args))
        case JobSpec():
            return Task(spec=_with_arguments(work, args))
        case [*words] if words and all(isinstance(word, str) for word in words):
            return Task(spec=JobSpec(name=name, script=f"exec {shlex.join([*words, *map(str, args)])}\n"))
    hint = "; for a function write Call('module:function')" if callable(work) else ""
    raise TypeError(f"expected a script, an argument list, a JobSpec or a Call, found {type(work).__name__}{hint}")


def _with_arguments(spec: JobSpec, args: Sequence[object]) -> JobSpec:
    """Give a shell script its positional parameters."""
    if not args:
        return spec
    if spec.script.startswith("#!"):
        raise TypeError("a script that begins with #! takes no arguments; pass them in the environment")
    return evolve(spec, script=f"set -- {shlex.join(map(str, args))}\n{spec.script}")


def _task_for_call(call: Call, args: Sequence[object], kwargs: Mapping[str, object], name: str) -> Task:
    try:
        request = json.dumps([call.function, args, kwargs])
    except (TypeError, ValueError) as error:
        raise TypeError(f"the arguments of {call.function} must be JSON: {error}") from error
    interpreter = call.python if call.python.startswith("/") else f"/usr/bin/env {call.python}"
    script = f"#!{interpreter}\n{inspect.getsource(_remote)}\n\nmain({request!r})\n"
    spec = JobSpec(
        name=name, script=script, env=call.env, files=call.files, timeout=call.timeout, artifacts=(_remote.RESULT,)
    )
    return Task(spec=spec, answer=lambda result: _value_of(call, result), keeps_artifacts=False)


def _read_answer(artifacts: Path | None) -> dict[str, Any]:
    """Read what the function has left; nothing if it has left nothing. Raises for what makes no sense."""
    if artifacts is None:
        return {}
    with (artifacts / _remote.RESULT).open("rb") as file:
        text = file.read(RESULT_LIMIT + 1)
    if len(text) > RESULT_LIMIT:
        raise ValueError(f"it has more than {RESULT_LIMIT >> 20} MiB; return less, or leave a file as an artifact")
    answer = json.loads(text)
    if not isinstance(answer, dict):
        raise ValueError("it is not a JSON object")
    return answer


def _value_of(call: Call, result: Result) -> object:
    """What the function returned."""
    try:
        answer = _read_answer(result.artifacts)
    except (OSError, ValueError, RecursionError) as error:
        raise CallFailed(call.function, f"its result cannot be read: {error}", result.output) from error
    if "value" in answer:
        return answer["value"]
    why = str(answer.get("error") or result.why)
    raise CallFailed(call.function, why, result.output, str(answer.get("traceback", "")))
