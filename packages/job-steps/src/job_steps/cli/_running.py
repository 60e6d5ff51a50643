"""What ``job-steps run`` and ``job-steps replay`` do."""

import json
import math
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, NoReturn

import anyio
import click
from attrs import evolve, frozen

from job_steps._breakpoint_files import BreakpointFile, read_breakpoints
from job_steps._breakpoints import check_steps, of_variables, parse_breakpoints, seconds_of, unmet
from job_steps._definitions import Function, Parameter
from job_steps._limits import NO_LIMITS, Limits
from job_steps._loading import read_text
from job_steps._payloads import MAX_PAYLOAD, read_payload
from job_steps._printable import printable
from job_steps._reading import read_steps
from job_steps._references import FILES
from job_steps._results import Status, StepResult
from job_steps._run import Variable
from job_steps._runner import run_steps
from job_steps._values import Value, checked, number_of, shown_text
from job_steps.cli._delegating import delegating

if TYPE_CHECKING:
    from job_steps._prompt import PromptHere

_FILES_OF_COMMANDS: Final = re.compile(r"\$\{\{\s*(output_file|export_file)\s*\}\}")
"""In a script, these are the files of the list that has it, which nobody reads: so it is with GitLab, too."""


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
        listed = ", ".join(f"`{name}`" for name in missing)
        what = f"the input {listed} is missing" if len(missing) == 1 else f"the inputs {listed} are missing"
        _wrong(f"{what}; add {' '.join(f'--input {name}=VALUE' for name in missing)}")
    return _run(function, Options(**options), directory=file.parent, inputs=given)  # type: ignore[arg-type]  # click has checked them


def replay_payload(payload: Path, **options: object) -> int:
    """Run the steps of a job; returns the exit status."""
    taken = Options(**options)  # type: ignore[arg-type]  # click has checked them
    with payload.open("rb") as file:
        job = read_payload(file.read(MAX_PAYLOAD + 1), source=str(payload))
    project = str(taken.work_dir.absolute())
    with TemporaryDirectory(prefix="job-steps-") as files:
        return _run(
            job.function,
            taken,
            directory=taken.work_dir,
            variables=job.variables,
            own={"CI_PROJECT_DIR": project},
            files=Path(files),
        )


def replay_job(file: Path, name: str, **options: object) -> int:
    """Run the steps of a job of a jobs file; returns the exit status."""
    taken = Options(**options)  # type: ignore[arg-type]  # click has checked them
    try:
        from job_steps.executor._replaying import read_batch_job, script_in
    except ImportError:
        return _wrong("jobs files need taskscaler; install it with pip install 'job-steps[executor]'")
    job = read_batch_job(file, name)
    with script_in(taken.work_dir, job.script):
        return _run(
            job.function,
            evolve(taken, breaks=(*job.breakpoints, *taken.breaks)),
            directory=taken.work_dir,
            env=job.env,
            admit=job.admit,
            added=job.own,
            limits=job.limits,
        )


def _run(
    function: Function,
    options: Options,
    *,
    directory: Path,
    inputs: Mapping[str, Value] | None = None,
    variables: Sequence[Variable] = (),
    own: Mapping[str, str] | None = None,
    files: Path | None = None,
    env: Mapping[str, str] | None = None,
    admit: Callable[..., None] | None = None,
    added: Collection[str] = (),
    limits: Limits = NO_LIMITS,
) -> int:
    """Run steps, and show what came of them; returns the exit status.

    Args:
        function: What to run.
        options: What somebody wants.
        directory: Where its paths begin.
        inputs: What it is given.
        variables: The job's.
        own: What goes before those.
        files: An empty directory: the variables are in the environment, too, as a runner has it, and those that are
            files are in there. None: they are not.
        env: What the job has in its environment.
        admit: Asked before each step.
        added: Names of steps that are not the job's.
        limits: What each command may have.
    """
    replaced = {**(own or {}), **_pairs("--variable", options.variables)}
    kept = [each for each in variables if each.key not in replaced]
    stream = (sys.stderr if options.as_json else sys.stdout).buffer

    async def log(data: bytes) -> None:
        stream.write(data)
        stream.flush()

    given = _pairs("--env", options.env)
    exported = {**(env or {}), **({} if files is None else {**_exported(kept, files), **replaced})}
    for hint in _hints(function):
        click.echo(f"hint: {printable(hint)}", err=True)
    prompt = _prompt(options, function, {each.key: each.value for each in (*kept, *_added(replaced))})
    running = partial(
        run_steps,
        function,
        directory=directory,
        work_dir=options.work_dir,
        env={**os.environ, **exported, **given},
        variables=[*kept, *_added(replaced)],
        inputs=inputs,
        log=log,
        cache=options.cache,
        timeout=options.timeout,
        at=prompt,
        admit=admit,
        own=added,
        limits=limits,
        own_env=dict(os.environ) if added else None,
    )
    with delegating(options.work_dir, {**(env or {}), **given}) as delegation:
        result = anyio.run(partial(running, delegation=delegation))
    for each in unmet(prompt.holds.points, list(prompt.met)) if prompt else ():
        click.echo(f"a breakpoint was never met: {printable(each)}", err=True)
    if options.as_json:
        click.echo(json.dumps(result.as_dict(), ensure_ascii=False))
    else:
        _show(result)
    return 0 if result.status is Status.SUCCESS else 1


def _exported(variables: Sequence[Variable], files: Path) -> dict[str, str]:
    """What a runner has in the environment of a job."""
    found = {}
    for number, each in enumerate(variables):
        if not each.key or "=" in each.key or "\0" in f"{each.key}{each.value}":
            continue  # no environment can have it
        if not each.is_file:
            found[each.key] = each.value
            continue
        path = files / str(number)
        path.touch(mode=0o600)
        path.write_bytes(each.value.encode(errors="replace"))
        found[each.key] = str(path)
    return found


def _hints(function: Function) -> Iterator[str]:
    """Say what in steps would be lost without a word."""
    for step in function.steps:
        found = _FILES_OF_COMMANDS.search(step.script or "")
        if found:
            what = "outputs" if found[1] == "output_file" else "exports"
            yield (
                f"what the script of step `{step.name}` writes to `{found[1]}` is lost: a script has no {what};"
                " write a function with `exec` for them"
            )


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
        _wrong(f"--break: {error}" if options.breaks else f"breakpoints: {error}")
    try:
        timeout = seconds_of(options.breakpoint_timeout) if options.breakpoint_timeout else found.timeout or seconds
    except ValueError as error:
        _wrong(f"--breakpoint-timeout: {error}")
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
        click.echo(f"{name} = {printable(shown_text(value))}")
    if result.status is not Status.SUCCESS:
        click.echo(f"error: {printable(result.error or '')}", err=True)


def _pairs(option: str, given: Sequence[str]) -> dict[str, str]:
    """Divide names from values; the last of a name counts."""
    found = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not name or "\0" in each:
            _wrong(f"{option} {each}: expected NAME=VALUE")
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
        return _wrong(f"--input {name}={text[:40]}: the input is of type {kind}; expected {example}")


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
