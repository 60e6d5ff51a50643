"""What ``job-steps run`` and ``job-steps replay`` do."""

import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import anyio
import click
from attrs import frozen

from job_steps._breakpoint_files import BreakpointFile, read_breakpoints
from job_steps._breakpoints import check_steps, of_variables, parse_breakpoints, seconds_of, unmet
from job_steps._definitions import Function, Parameter
from job_steps._loading import read_text
from job_steps._payloads import MAX_PAYLOAD, read_payload
from job_steps._printable import printable
from job_steps._reading import read_steps
from job_steps._references import FILES
from job_steps._results import Status, StepResult
from job_steps._run import Variable
from job_steps._runner import run_steps
from job_steps._values import Value, checked, json_text, number_of
from job_steps.cli._delegating import delegating

if TYPE_CHECKING:
    from job_steps._prompt import PromptHere


@frozen(kw_only=True)
class Options:
    """What both commands take."""

    env: Sequence[str]
    variables: Sequence[str]
    work_dir: Path
    cache: Path | None
    timeout: float | None
    as_json: bool
    breaks: Sequence[str]
    breakpoints: Path | None
    breakpoint_timeout: str | None


def run_file(file: Path, *, inputs: Sequence[str], **options: object) -> int:
    """Run a function's file, or a list of steps; returns the exit status."""
    if file.is_dir():
        names = [name for name in FILES if (file / name).exists()]
        if not names:
            _wrong(f"{file} has no {' and no '.join(FILES)}")
        file /= names[0]
    function = read_steps(read_text(str(file)), source=str(file))
    given = {name: _input(function, name, text) for name, text in _pairs("--input", inputs).items()}
    missing = [name for name, each in function.inputs.items() if name not in given and each.default is None]
    if missing:
        _wrong(f"the input `{missing[0]}` is missing; add --input {missing[0]}=VALUE")
    return _run(function, Options(**options), directory=file.parent, inputs=given)  # type: ignore[arg-type]  # click has checked them


def replay_payload(payload: Path, **options: object) -> int:
    """Run the steps of a job; returns the exit status."""
    taken = Options(**options)  # type: ignore[arg-type]  # click has checked them
    with payload.open("rb") as file:
        job = read_payload(file.read(MAX_PAYLOAD + 1), source=str(payload))
    project = str(taken.work_dir.absolute())
    return _run(job.function, taken, directory=taken.work_dir, variables=job.variables, own={"CI_PROJECT_DIR": project})


def _run(
    function: Function,
    options: Options,
    *,
    directory: Path,
    inputs: Mapping[str, Value] | None = None,
    variables: Sequence[Variable] = (),
    own: Mapping[str, str] | None = None,
) -> int:
    added = {**(own or {}), **_pairs("--variable", options.variables)}
    kept = [each for each in variables if each.key not in added]
    stream = (sys.stderr if options.as_json else sys.stdout).buffer

    async def log(data: bytes) -> None:
        stream.write(data)
        stream.flush()

    given = _pairs("--env", options.env)
    prompt = _prompt(options, function, {each.key: each.value for each in (*kept, *_added(added))})
    running = partial(
        run_steps,
        function,
        directory=directory,
        work_dir=options.work_dir,
        env={**os.environ, **given},
        variables=[*kept, *_added(added)],
        inputs=inputs,
        log=log,
        cache=options.cache,
        timeout=options.timeout,
        at=prompt,
    )
    with delegating(options.work_dir, given) as delegation:
        result = anyio.run(partial(running, delegation=delegation))
    for each in unmet(prompt.holds.points, list(prompt.met)) if prompt else ():
        click.echo(f"a breakpoint was never met: {printable(each)}", err=True)
    if options.as_json:
        click.echo(json.dumps(result.as_dict(), ensure_ascii=False))
    else:
        _show(result)
    return 0 if result.status is Status.SUCCESS else 1


def _added(variables: Mapping[str, str]) -> list[Variable]:
    return [Variable(key=key, value=value) for key, value in variables.items()]


def _prompt(options: Options, function: Function, variables: Mapping[str, str]) -> "PromptHere | None":
    """Make what asks at breakpoints; None if there are none, so that nothing waits for nobody."""
    found = BreakpointFile((), None)
    if options.breakpoints:
        found = read_breakpoints(read_text(str(options.breakpoints)), source=str(options.breakpoints))
    try:
        texts, seconds = of_variables(variables)
        points = parse_breakpoints((*found.breakpoints, *options.breaks, *texts))
        check_steps(points, function)
    except ValueError as error:
        _wrong(f"--break {error}" if not found.breakpoints else f"breakpoint {error}")
    try:
        timeout = seconds_of(options.breakpoint_timeout) if options.breakpoint_timeout else found.timeout or seconds
    except ValueError as error:
        _wrong(f"--breakpoint-timeout {error}")
    if not points:
        return None
    from job_steps._holds import Holds
    from job_steps._prompt import Prompt, PromptHere

    holds = Holds(points=points, left=math.inf if timeout is None else timeout)
    met: dict[tuple[str, ...], None] = {(step.name,): None for step in function.steps}
    return PromptHere(Prompt(is_quiet=options.as_json), holds, met)


def _show(result: StepResult) -> None:
    """Print what came out, for people."""
    for name, value in result.outputs.items():
        click.echo(f"{name} = {printable(json_text(value))}")
    if result.status is not Status.SUCCESS:
        click.echo(f"error: {printable(result.error or '')}", err=True)


def _pairs(option: str, given: Sequence[str]) -> dict[str, str]:
    """Divide names from values; the last of a name counts."""
    found = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not name or "\0" in each:
            _wrong(f"{option} {each}; expected NAME=VALUE")
        found[name] = value
    return found


def _input(function: Function, name: str, text: str) -> Value:
    """Take what is given on the command line for an input of its type."""
    if name not in function.inputs:
        from difflib import get_close_matches

        near = get_close_matches(name, function.inputs, n=1)
        known = ", ".join(f"`{each}`" for each in function.inputs) or "none"
        _wrong(
            f"there is no input `{name}`; " + (f"did you mean `{near[0]}`?" if near else f"the function has {known}")
        )
    try:
        return _converted(function.inputs[name], text)
    except (ValueError, RecursionError):
        examples = {"number": "such as 3 or 0.5", "boolean": "true or false", "array": 'such as ["a", 1]'}
        kind = function.inputs[name].kind
        example = examples.get(kind, 'such as {"a": 1}')
        return _wrong(f"--input {name} is of type {kind}; expected {example}")


def _converted(parameter: Parameter, text: str) -> Value:
    if parameter.kind == "string":
        return text
    if parameter.kind == "number":
        return number_of(text)
    found = checked(json.loads(text))
    wanted = {"boolean": bool, "array": list, "struct": dict}[parameter.kind]
    if not isinstance(found, wanted):
        raise ValueError(text)
    return found


def _wrong(message: str) -> NoReturn:
    click.echo(f"error: {message}", err=True)
    sys.exit(2)
