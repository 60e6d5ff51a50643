"""What a step writes into its files: outputs, and variables for the steps after it.

Each line is JSON: `{"name": "…", "value": …}`. Who reads the files is bounded, and so is what is in them.

Source: docs.gitlab.com/ci/functions/create.
"""

import json
from collections.abc import Iterator, Mapping
from typing import NoReturn

from job_steps._definitions import Parameter
from job_steps._errors import StepFailed
from job_steps._values import Hidden, Value, bounded, checked, decimal_text, kind_of, whole_text

MAX_FILE = 4 * 1024 * 1024
"""Bytes of one such file."""


def read_outputs(data: bytes, declared: Mapping[str, Parameter]) -> dict[str, Value]:
    """Read the outputs of a command, and compare them with what its function declares.

    Returns:
        By name; those that are sensitive are hidden.

    Raises:
        StepFailed: A line is none, an output is not declared, has another type, or is missing.
    """
    found: dict[str, Value] = {}
    for line, name, value in _lines(data, "outputs"):
        if name not in declared:
            known = ", ".join(f"`{each}`" for each in declared) or "none"
            raise StepFailed(f"the output `{name}` (line {line}) is not declared; the function declares {known}")
        if kind_of(value) != declared[name].kind:
            raise StepFailed(
                f"the output `{name}` (line {line}) is of type {kind_of(value)}; declared as {declared[name].kind}"
            )
        found[name] = value
    for name, parameter in declared.items():
        if name not in found:
            if parameter.default is None:
                raise StepFailed(f"the output `{name}` is missing; write it, or give it a default")
            found[name] = parameter.default
    return {name: Hidden(found[name]) if each.is_sensitive else found[name] for name, each in declared.items()}


def read_exports(data: bytes) -> dict[str, str]:
    """Read the variables that a command exports.

    Raises:
        StepFailed: A line is none, or a variable cannot be one.
    """
    found: dict[str, str] = {}
    for line, name, value in _lines(data, "exports"):
        if isinstance(value, bool):
            text = "true" if value else "false"
        elif isinstance(value, str):
            text = value
        elif isinstance(value, (int, float)):
            text = decimal_text(value)
        else:
            kind = kind_of(value)
            raise StepFailed(f"the export `{name}` (line {line}) is of type {kind}; expected string, number or boolean")
        if "=" in name or "\0" in name + text:
            raise StepFailed(f"the export in line {line} cannot be a variable of the environment")
        found[name] = text
    return found


def read_delegated(data: bytes) -> dict[str, Value]:
    """Read the outputs of a command that writes the whole result of another step, as JSON.

    Raises:
        StepFailed: It is no result.
    """
    what = "the outputs are delegated, and the output file has no result of a step"
    try:
        result = json.loads(data, parse_constant=_refuse)
        outputs = result.get("outputs", {})
        found = {whole_text(str(name)): checked(value) for name, value in outputs.items()}
    except (AttributeError, ValueError, RecursionError):
        raise StepFailed(what) from None
    bounded(found)
    return found


def _lines(data: bytes, what: str) -> Iterator[tuple[int, str, Value]]:
    """Go through the lines of a file: the number of each, the name, and the value. What is in them is not repeated."""
    if len(data) > MAX_FILE:
        raise StepFailed(too_big(what))
    for number, line in enumerate(data.split(b"\n"), start=1):
        text = line.rstrip(b"\r")
        if not text:
            continue
        where = f"line {number} of the {what}"
        try:
            found = json.loads(text, parse_constant=_refuse)
        except (ValueError, RecursionError):
            raise StepFailed(f'{where} is not JSON; expected {{"name": "…", "value": …}}') from None
        if not isinstance(found, dict) or not isinstance(found.get("name"), str) or not found["name"]:
            raise StepFailed(f'{where} has no `name`; expected {{"name": "…", "value": …}}')
        if found.get("value") is None:
            raise StepFailed(f'{where} has no `value`; expected {{"name": "…", "value": …}}')
        try:
            value = checked(found["value"])
        except ValueError as error:
            raise StepFailed(f"{where}: {error}") from None
        bounded(value)
        yield number, whole_text(found["name"]), value


def too_big(what: str) -> str:
    """Say that a file is."""
    return f"the file of the {what} has more than {MAX_FILE} bytes"


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)
