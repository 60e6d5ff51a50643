"""The file of ``gitlab-jobs fake``: jobs that wait for each other, and how they are expected to end."""

import json
import re
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from attrs import frozen

from gitlab_jobs._errors import FileInvalid, PayloadInvalid
from gitlab_jobs._json import decode_job, encode_object
from gitlab_jobs._payload import Job

MAX_FILE = 32 << 20
"""Bytes of a file; a job's script may be long."""

MAX_JOBS = 10_000
"""Jobs of a file."""

_LONGEST = 1 << 31
_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_ENDS = ("success", "failed", "canceled", "skipped")
_OUR_KEYS = (
    "name",
    "script",
    "run",
    "after_script",
    "needs",
    "stage",
    "variables",
    "cancel_after",
    "expect",
    "timeout",
)
_PASSED_ON = (
    "artifacts",
    "cache",
    "credentials",
    "features",
    "git_info",
    "hooks",
    "image",
    "inputs",
    "secrets",
    "services",
)


@frozen(kw_only=True)
class Planned:
    """A job of a file."""

    name: str
    """What the others call it."""

    job: Job
    """What its runner gets."""

    needs: tuple[str, ...]
    """The jobs that have to succeed before."""

    cancel_after: float | None
    """Seconds after its start when it is cancelled."""

    expect: str
    """How it is expected to end."""


def read_jobs(path: Path) -> list[Planned]:
    """Read a file of jobs.

    Raises:
        FileInvalid: What is wrong with it, and where.
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        text = file.read(MAX_FILE + 1)
    if len(text) > MAX_FILE:
        raise FileInvalid(f"{path}: expected at most {MAX_FILE} bytes")
    try:
        found = tomllib.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise FileInvalid(f"{path}: expected TOML ({str(error).partition(chr(10))[0]})") from None
    _check_keys(found, ("jobs",), str(path))
    tables = found.get("jobs")
    if not isinstance(tables, list) or not tables:
        raise FileInvalid(f"{path}: expected jobs, found none; add a table [[jobs]] with a name and a script")
    if len(tables) > MAX_JOBS:
        raise FileInvalid(f"{path}: expected at most {MAX_JOBS} jobs, found {len(tables)}")
    planned = [_plan(table, f"{path}: jobs[{number}]") for number, table in enumerate(tables)]
    _check_needs(planned, path)
    return planned


def _plan(table: object, where: str) -> Planned:
    if not isinstance(table, dict):
        raise FileInvalid(f"{where}: expected a table")
    _check_keys(table, _OUR_KEYS + _PASSED_ON, where)
    name = _text(table, "name", where)
    where = f"{where} ({name!r})"
    expect = _text(table, "expect", where, "success")
    if expect not in _ENDS:
        raise FileInvalid(f"{where}: expect is one of {', '.join(_ENDS)}, found {expect!r}")
    delay = table.get("cancel_after")
    if delay is not None and (type(delay) not in (int, float) or not 0 <= delay < _LONGEST):
        raise FileInvalid(f"{where}: cancel_after is a number of seconds, found {delay!r}")
    return Planned(
        name=name,
        job=_job(table, name, where),
        needs=tuple(_texts(table, "needs", where)),
        cancel_after=None if delay is None else float(delay),
        expect=expect,
    )


def _job(table: Mapping[str, Any], name: str, where: str) -> Job:
    """What the runner gets: the short keys of the file made long, the others as they are."""
    script, after = _texts(table, "script", where), _texts(table, "after_script", where)
    run = table.get("run", [])
    if not isinstance(run, list) or not all(isinstance(each, dict) for each in run):
        raise FileInvalid(f"{where}: run is a list of steps, each a table")
    if bool(script) is bool(run):
        raise FileInvalid(f"{where}: expected a script, or run with a list of steps{', and not both' if run else ''}")
    variables = table.get("variables", {})
    if not isinstance(variables, dict):
        raise FileInvalid(f"{where}: variables is a table of names and values")
    step = {"name": "script", "script": script, "timeout": 3600, "when": "on_success", "allow_failure": False}
    steps = [step] if script else []
    if after:
        steps.append({**step, "name": "after_script", "script": after, "when": "always", "allow_failure": True})
    payload = {
        "id": 0,
        "token": "unset",
        "job_info": {"name": name, "stage": _text(table, "stage", where, "test")},
        "runner_info": {"timeout": table.get("timeout", 3600)},
        "steps": steps,
        "variables": [_variable(key, value, where) for key, value in {**_DEFAULTS, **variables}.items()],
        "features": {"trace_sections": True, "failure_reasons": ["unknown_failure", "job_canceled"]},
    }
    try:
        if run:
            payload["run"] = json.dumps(run, allow_nan=False)  # as GitLab has it: JSON in a string
        raw = encode_object(payload | {key: table[key] for key in _PASSED_ON if key in table})
    except (TypeError, ValueError) as error:
        raise FileInvalid(f"{where}: a value cannot be written as JSON ({error})") from None
    try:
        return decode_job(raw)
    except PayloadInvalid as error:
        raise FileInvalid(f"{where}: {error}") from None


_DEFAULTS = {"GIT_STRATEGY": "none"}
"""There is no repository, unless a job names one."""


def _variable(key: str, value: object, where: str) -> Mapping[str, object]:
    """A string, or a table with ``value`` and what else GitLab knows of a variable."""
    given = value if isinstance(value, dict) else {"value": value}
    if not _NAME.fullmatch(key):
        raise FileInvalid(f"{where}: variables: no shell can have {key!r}; use letters, digits and _")
    if isinstance(text := given.get("value"), str) and "\0" in text:
        raise FileInvalid(f"{where}: variables.{key}: no environment can have a NUL")
    _check_keys(given, ("value", "public", "file", "masked", "raw"), f"{where}: variables.{key}")
    return {"key": key, "public": True, "file": False, "masked": False, "raw": False, **given}


def _text(table: Mapping[str, Any], key: str, where: str, default: str = "") -> str:
    value = table.get(key, default)
    if not isinstance(value, str) or not value:
        raise FileInvalid(f"{where}: expected {key} as a string, found {value!r}")
    return value


def _texts(table: Mapping[str, Any], key: str, where: str) -> list[str]:
    value = table.get(key, [])
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(each, str) for each in texts):
        raise FileInvalid(f"{where}: {key} is a string or a list of strings")
    return texts


def _check_keys(table: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for key in table:
        if key not in known:
            close = get_close_matches(key, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"
            raise FileInvalid(f"{where}: unknown key {key!r}; {hint}")


def _check_needs(planned: list[Planned], path: Path) -> None:
    """Every need is a job above it, so that none waits for itself."""
    known: set[str] = set()
    for each in planned:
        if each.name in known:
            raise FileInvalid(f"{path}: two jobs are called {each.name!r}")
        for need in each.needs:
            if need not in known:
                raise FileInvalid(f"{path}: job {each.name!r} needs {need!r}, which is not a job above it")
        known.add(each.name)
