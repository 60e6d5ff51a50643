"""A file with breakpoints: a list of them, or that under ``breakpoints``, with ``breakpoint_timeout`` beside it."""

from typing import Final, NoReturn

from attrs import frozen

from job_steps import _yaml
from job_steps._breakpoints import parse_breakpoint, seconds_of
from job_steps._errors import StepsInvalid
from job_steps._nearest import nearest
from job_steps._yaml import Node, Scalar, read_documents

_KEYS: Final = ("breakpoints", "breakpoint_timeout")


@frozen
class BreakpointFile:
    """What is in one."""

    breakpoints: tuple[str, ...]
    timeout: float | None
    """In seconds; None: the file does not say."""


def read_breakpoints(text: str, *, source: str) -> BreakpointFile:
    """Read a file of breakpoints.

    Args:
        text: What is in it, YAML.
        source: What it is called, for errors.

    Raises:
        StepsInvalid: It is none; the message names the line, and what was expected.
    """
    documents = read_documents(text, source=source)
    if len(documents) != 1:
        _fail(
            source, 1, f"found {len(documents)} documents; expected one, a list of breakpoints such as `- build:after`"
        )
    root = documents[0].root
    if isinstance(root, _yaml.Sequence):
        return BreakpointFile(_listed(root, source), None)
    if not isinstance(root, _yaml.Mapping):
        _fail(source, root.line, "expected a list of breakpoints, such as `- build:after`")
    for key, (line, _) in root.items.items():
        if key not in _KEYS:
            _fail(source, line, f"unknown key `{key[:40]}`; did you mean `{nearest(key, _KEYS) or _KEYS[0]}`?")
    breakpoints = _listed(root.items["breakpoints"][1], source) if "breakpoints" in root.items else ()
    timeout = _timeout(root.items["breakpoint_timeout"][1], source) if "breakpoint_timeout" in root.items else None
    return BreakpointFile(breakpoints, timeout)


def _listed(node: Node, source: str) -> tuple[str, ...]:
    if not isinstance(node, _yaml.Sequence):
        _fail(source, node.line, "expected a list of breakpoints, such as `- build:after`")
    return tuple(_breakpoint(each, source) for each in node.items)


def _breakpoint(node: Node, source: str) -> str:
    if not isinstance(node, Scalar) or not isinstance(node.value, str):
        _fail(source, node.line, "expected a breakpoint, such as `build:after`, with no space after the colon")
    try:
        parse_breakpoint(node.text)
    except ValueError as error:
        _fail(source, node.line, f"breakpoint {error}")
    return node.text


def _timeout(node: Node, source: str) -> float:
    try:
        return seconds_of(node.text if isinstance(node, Scalar) else "")
    except ValueError as error:
        _fail(source, node.line, f"breakpoint_timeout {error}")


def _fail(source: str, line: int, message: str) -> NoReturn:
    raise StepsInvalid(message, source=source, line=line)
