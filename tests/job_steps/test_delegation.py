"""What agents inside and outside of containers say to each other: pure."""

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import pytest
from anyio.lowlevel import checkpoint
from attrs import define, field
from hypothesis import given
from hypothesis import strategies as st

from job_steps import GitReference, ImageReference, LocalReference, Origin, Status, StepFailed, StepResult, Variable
from job_steps._delegation import (
    MAX_CONTAINERS,
    MAX_MESSAGE,
    Child,
    Delegation,
    Message,
    Request,
    decoded,
    delegate,
    encoded,
    end_message,
    read_end,
    read_tree,
)
from job_steps._references import SCRIPT, Reference, image_of
from job_steps._run import Caller, CameBack
from job_steps._values import Hidden, Value

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**52), 2**52) | texts,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3) | st.builds(Hidden, inner, inner)
    ),
    max_leaves=8,
)
named = st.dictionaries(texts, values, max_size=3)
references = st.sampled_from(
    [LocalReference("./a", "b.yml"), GitReference("https://x/y", "main"), ImageReference("r.io", "x", "1"), SCRIPT]
)


@given(named, named, references)
def test_a_request_arrives_as_it_was_sent(
    inputs: dict[str, Value], outputs: dict[str, Value], reference: Reference
) -> None:
    """Whatever values are in it, and what is hidden of them stays so."""
    request = Request(
        path=("a", "b"),
        image="docker.io/library/x:1",
        origin=Origin(kind="git", name="x", root="/r", directory="/r/d"),
        reference=reference,
        is_static=True,
        inputs=inputs,
        base={"A": "b"},
        env={"C": "d", "E": Hidden("f")},
        calls=(Caller(reference="./a", identity="/r/a"), Caller(reference="")),
        steps_before=7,
        work_dir="/w",
        variables=(Variable(key="V", value="v", is_masked=True),),
        secrets=("hunter2hunter2",),
        policies=({"scripts": False},),
    )
    assert Request.read(decoded(encoded(request.as_message()))) == request
    came = CameBack(
        result=StepResult(status=Status.SUCCESS),
        outputs=outputs,
        exports={"A": "b"},
        secrets=("s",),
    )
    assert read_end(decoded(encoded(end_message(came)))["end"]) == came


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(texts | st.sampled_from(["hidden", "struct"]), inner, max_size=3)
    ),
    max_leaves=8,
)
TREE = StepResult(status=Status.SUCCESS).as_dict()


@given(
    st.dictionaries(st.sampled_from(["tree", "outputs", "exports", "secrets"]), json_values | st.just(TREE))
    | json_values
)
def test_only_errors_of_ours_come_of_what_is_said_in_a_container(found: object) -> None:
    """Job code may say it."""
    for read in (read_end, read_tree):
        try:
            read(found)
        except StepFailed as error:
            assert "says something that no agent says" in str(error)  # noqa: PT017  (or nothing is raised)


@given(st.binary(max_size=40) | st.text(max_size=40).map(str.encode))
def test_a_line_is_a_message_or_an_error(line: bytes) -> None:
    """Whatever bytes there are in it."""
    try:
        assert len(decoded(line)) == 1
    except StepFailed as error:
        assert "says something that no agent says" in str(error)  # noqa: PT017  (or nothing is raised)


REQUEST = Request(
    path=("s",),
    image="docker.io/library/x:1",
    origin=Origin(kind="job"),
    reference=SCRIPT,
    is_static=True,
    inputs={},
    base={},
    env={},
    calls=(),
    steps_before=0,
    work_dir="/w",
)


@define
class Scripted:
    """An agent in a container that says what it likes, and then nothing any more."""

    says: list[Message]
    heard: list[Message] = field(factory=list)

    async def send(self, message: Message) -> None:
        """Hear it."""
        self.heard.append(message)
        await checkpoint()

    async def receive(self) -> Message:
        """Say the next thing, as it arrives."""
        await checkpoint()
        if not self.says:
            raise StepFailed("the container has ended")
        return decoded(encoded(self.says.pop(0)))


@define
class ScriptedContainers:
    """Containers whose agents say what they like."""

    scripts: list[list[Message]]
    open_now: int = 0
    most: int = 0

    async def files_of(self, image: ImageReference, directory: Path) -> Path:
        """Have none."""
        raise NotImplementedError

    @asynccontextmanager
    async def open(self, *_: object, **__: object) -> AsyncIterator[Child]:
        """Make one."""
        self.open_now += 1
        self.most = max(self.most, self.open_now)
        try:
            yield Scripted(self.scripts.pop(0) if self.scripts else [])
        finally:
            self.open_now -= 1


said_of: dict[str, st.SearchStrategy[object]] = {
    "log": json_values | st.binary(max_size=9).map(lambda data: base64.b64encode(data).decode()),
    "tree": json_values | st.just(TREE),
    "end": json_values | st.just({"tree": TREE}),
    "open": json_values | st.fixed_dictionaries({"image": st.sampled_from(["a", "-v", ""]), "path": json_values}),
    "to": json_values | st.just({"run": {}}),
    "close": json_values,
    "from": json_values,
    "opened": json_values,
}
messages = st.one_of(*(st.builds(lambda said, kind=kind: {kind: said}, each) for kind, each in said_of.items()))


@given(st.lists(st.lists(messages, max_size=12), min_size=1, max_size=MAX_CONTAINERS + 3))
def test_whatever_is_said_in_a_container_ends_its_step_at_most(scripts: list[list[Message]]) -> None:
    """With an end or an error of the step's, and every container is gone that it has asked for."""
    containers = ScriptedContainers(scripts)

    async def log(data: bytes) -> None:
        assert data is not None
        await checkpoint()

    async def main() -> None:
        with suppress(StepFailed):
            await delegate(REQUEST, image_of("x"), Delegation(containers=containers), log=log, grown=lambda _: None)

    anyio.run(main)
    assert containers.open_now == 0
    assert containers.most <= MAX_CONTAINERS


def test_results_that_are_too_much_come_out_as_an_error() -> None:
    """The size is named; nothing is cut off silently."""
    came = CameBack(result=StepResult(status=Status.SUCCESS), outputs={"x": "y" * MAX_MESSAGE})
    result = read_end(json.loads(encoded(end_message(came)))["end"]).result
    assert result.status is Status.FAILURE
    assert "at most 16777216 come out of a container" in str(result.error)


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("python", "docker.io/library/python:latest"),
        ("python:3.12-slim", "docker.io/library/python:3.12-slim"),
        ("group/tool:1", "docker.io/group/tool:1"),
        ("localhost/tool", "localhost/tool:latest"),
        ("localhost:5000/a/b:1", "localhost:5000/a/b:1"),
        ("registry.example.com/a@sha256:" + "0" * 64, "registry.example.com/a@sha256:" + "0" * 64),
        ("registry.example.com/a:1@sha256:" + "0" * 64, "registry.example.com/a@sha256:" + "0" * 64),
    ],
)
def test_an_image_is_named_in_full(text: str, whole: str) -> None:
    """As Docker reads it; and what is in full stays as it is."""
    assert str(image_of(text)) == whole
    assert str(image_of(whole)) == whole


@pytest.mark.parametrize(
    "text",
    ["", "-v", "-v.x/a", "x.-/a", "a b", "UPPER", "a:", "a@sha256:0", "a/../b", "a//b", "/a", "https://a/b", "a" * 300],
)
def test_what_is_no_image_is_refused(text: str) -> None:
    """Nothing gets to Docker's command that could be something else there."""
    with pytest.raises(ValueError, match="is not an image; expected one such as"):
        image_of(text)
