"""Tests beside functions: files of them, and whether a result is what one expects. Nothing here runs anything."""

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from attrs import field, frozen

from job_steps import _yaml
from job_steps._reading import Reader
from job_steps._results import Status, StepResult
from job_steps._values import Value, json_text, shown_text
from job_steps._yaml import Node, Scalar, read_documents

SUFFIX = ".test.yml"
"""How the names of such files end: the tests of `func.yml` are in `func.test.yml`."""

MAX_TESTS = 1000
"""Tests in one file."""

_TEST = ("name", "inputs", "env", "variables", "files", "expect")
_EXPECT = ("status", "outputs", "exports", "error", "exit_code", "log")
_ENDS = ("success", "failure")


@frozen(kw_only=True)
class Expected:
    """What has to come out; what is not named may be anything."""

    status: Status = Status.SUCCESS
    outputs: Mapping[str, Value] = field(factory=dict)
    """Each that is named has to be equal."""
    exports: Mapping[str, str] = field(factory=dict)
    """The same, of what the function and all that it calls exported; the last of a name."""
    error: str = ""
    """Has to be part of the error."""
    exit_code: int | None = None
    """Of the command that failed, or of the function's own."""
    log: tuple[str, ...] = ()
    """Each has to be part of the log."""


@frozen(kw_only=True)
class Test:
    """One test of a function."""

    __test__ = False  # pytest takes what is called so for its own

    name: str
    line: int
    inputs: Mapping[str, Value] = field(factory=dict)
    env: Mapping[str, str] = field(factory=dict)
    variables: Mapping[str, str] = field(factory=dict)
    files: Mapping[str, str] = field(factory=dict)
    """What is in the directory that it runs in, by path."""
    expected: Expected = Expected()


def read_tests(text: str, *, source: str) -> tuple[Test, ...]:
    """Read a file of tests.

    Raises:
        StepsInvalid: It is not one; the message names the line.
    """
    reader = Reader(source)
    documents = read_documents(text, source=source)
    root = documents[0].root if documents else None
    if len(documents) != 1 or not isinstance(root, _yaml.Sequence) or not root.items:
        reader.fail(root.line if root else 1, "expected one document, a list of tests that each have a `name`")
    if len(root.items) > MAX_TESTS:
        reader.fail(root.line, f"{len(root.items)} tests; at most {MAX_TESTS} can be in one file")
    tests = tuple(_test(reader, each) for each in root.items)
    names: set[str] = set()
    for each in tests:
        if each.name in names:
            reader.fail(each.line, f"a second test is called `{each.name}`")
        names.add(each.name)
    return tests


def _test(reader: Reader, node: Node) -> Test:
    found = dict(reader.keys(node, _TEST, "a test"))
    if "name" not in found:
        reader.fail(node.line, "a test has no `name`")
    name = reader.text(found["name"], "`name`")
    what = f"of test `{name}`"
    return Test(
        name=name,
        line=node.line,
        inputs=_values(reader, found.get("inputs"), f"`inputs` {what}"),
        env=_texts(reader, found.get("env"), f"`env` {what}"),
        variables=_texts(reader, found.get("variables"), f"`variables` {what}"),
        files=_files(reader, found.get("files"), f"`files` {what}"),
        expected=_expected(reader, found["expect"], what) if "expect" in found else Expected(),
    )


def _expected(reader: Reader, node: Node, what: str) -> Expected:
    found = dict(reader.keys(node, _EXPECT, f"`expect` {what}"))
    status = reader.text(found["status"], f"`status` {what}") if "status" in found else _ENDS[0]
    if status not in _ENDS:
        reader.fail(found["status"].line, f"`{status}` as `status` {what}; expected `success` or `failure`")
    code = found.get("exit_code")
    number = code.value if isinstance(code, Scalar) else None
    if code is not None and (isinstance(number, bool) or not isinstance(number, int)):
        reader.fail(code.line, f"`exit_code` {what} is not a whole number")
    log = found.get("log")
    if isinstance(log, _yaml.Sequence):
        parts = tuple(reader.text(each, f"an item of `log` {what}") for each in log.items)
    else:
        parts = (reader.text(log, f"`log` {what}"),) if log else ()
    return Expected(
        status=Status(status),
        outputs=_values(reader, found.get("outputs"), f"`outputs` {what}"),
        exports=_texts(reader, found.get("exports"), f"`exports` {what}"),
        error=reader.text(found["error"], f"`error` {what}") if "error" in found else "",
        exit_code=number if isinstance(number, int) else None,
        log=parts,
    )


def _values(reader: Reader, node: Node | None, what: str) -> Mapping[str, Value]:
    """Read values as they are: expressions mean nothing in a test."""
    return {name: _yaml.plain(each) for name, (_, each) in reader.mapping(node, what).items()} if node else {}


def _texts(reader: Reader, node: Node | None, what: str) -> Mapping[str, str]:
    items = reader.mapping(node, what).items() if node else ()
    return {name: reader.text(each, f"`{name}` in {what}") for name, (_, each) in items}


def _files(reader: Reader, node: Node | None, what: str) -> Mapping[str, str]:
    found = _texts(reader, node, what)
    for name in found:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts:
            reader.fail(node.line if node else 1, f"`{name}` in {what} leads out of the test's directory")
    return found


def differences(expected: Expected, result: StepResult, log: str) -> list[str]:
    """Say what of a result is not as expected, one line each; nothing if all is."""
    return [*_differences(expected, result, log)]


def _differences(expected: Expected, result: StepResult, log: str) -> Iterator[str]:
    if result.status is not expected.status:
        why = f": {result.error}" if result.error else ""
        yield f"status: expected {expected.status.value}, found {result.status.value}{why}"
    exported = {name: text for _, each in result.walk() for name, text in each.exports.items()}
    yield from _compared("outputs", expected.outputs, result.outputs)
    yield from _compared("exports", expected.exports, exported)
    if expected.error not in (result.error or ""):
        found = "none" if result.error is None else shown_text(result.error)
        yield f"error: expected {shown_text(expected.error)} in it, found {found}"
    code = (result.failed() or result).exit_code
    if expected.exit_code is not None and code != expected.exit_code:
        yield f"exit_code: expected {expected.exit_code}, found {'none' if code is None else code}"
    for part in expected.log:
        if part not in log:
            yield f"log: expected {shown_text(part)} in it"


def _compared(what: str, wanted: Mapping[str, Value], found: Mapping[str, Value]) -> Iterator[str]:
    for name, value in wanted.items():
        has = f"found {shown_text(found[name])}" if name in found else "found none"
        if name not in found or json_text(value) != json_text(found[name]):
            yield f"{what}: `{name}`: expected {shown_text(value)}, {has}"
