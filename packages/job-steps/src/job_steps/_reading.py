"""Files of functions, and lists of steps, into definitions; every mistake is named with its line.

Source: docs.gitlab.com/ci/functions/create, and the JSON schemas of GitLab's step runner.
"""

import re
from collections.abc import Iterator, Mapping
from typing import NoReturn

from attrs import frozen

from job_steps import _yaml
from job_steps._definitions import Exec, Function, Parameter, Step
from job_steps._errors import StepFailed, StepsInvalid
from job_steps._expressions import check_template, has_expression
from job_steps._nearest import nearest
from job_steps._references import (
    ACTION,
    SCRIPT,
    Reference,
    git_reference,
    image_of,
    image_reference,
    parse_reference,
)
from job_steps._values import KINDS, Value, kind_of
from job_steps._yaml import Document, Node, Scalar, read_documents

MAX_STEPS = 1000
"""Steps of one list."""

_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,254}")
_OLD = {"steps": "run", "workDir": "work_dir", "uses": "func", "with": "inputs", "image": "func"}
"""Keys of earlier versions and of others' files, and what stands there now."""

_SPEC = ("spec",)
_SIGNATURE = ("inputs", "outputs")
_PARAMETER = ("type", "default", "sensitive", "description")
_DEFINITION = ("exec", "run", "env", "outputs", "delegate")
_EXEC = ("command", "work_dir")
_STEP = ("name", "func", "step", "script", "action", "inputs", "env", "container")
_GIT = ("url", "rev", "dir", "file")
_OCI = ("registry", "repository", "tag", "dir", "file")


def read_steps(text: str, *, source: str = "steps") -> Function:
    """Read a function's file, or a list of steps.

    Args:
        text: Two documents (`spec:`, then `exec:` or `run:`), or one that is a list of steps, as a job's `run:` has it.
        source: What it is called, for errors.

    Returns:
        The function. A list is one without inputs and outputs.

    Raises:
        StepsInvalid: It is neither; the message names the line, what is there, and what was expected.
    """
    reader = Reader(source)
    documents = read_documents(text, source=source)
    if len(documents) == 1 and isinstance(documents[0].root, _yaml.Sequence):
        return Function(source=source, steps=reader.steps(documents[0].root))
    return reader.function(documents)


@frozen
class Reader:
    """Reads the nodes of one file."""

    source: str

    def function(self, documents: list[Document]) -> Function:
        """Read a file of two documents."""
        if len(documents) != 2:  # noqa: PLR2004
            self.fail(documents[2].line if documents[2:] else 1, _not_a_function(documents))
        spec = dict(self.keys(documents[0].root, _SPEC, "the first document"))
        signature = dict(self.keys(spec["spec"], _SIGNATURE, "`spec`")) if "spec" in spec else {}
        root = documents[1].root
        body = dict(self.keys(root, _DEFINITION, "the second document"))
        if ("exec" in body) == ("run" in body):
            found = "both `exec` and `run`" if "exec" in body else "neither `exec` nor `run`"
            self.fail(root.line, f"{found} in the second document; expected one of them")
        is_delegating, outputs = self.outputs(signature)
        for key in ("outputs", "delegate"):
            if key in body and "exec" in body:
                self.fail(body[key].line, f"`{key}` beside `exec`; only a function with `run` has it")
        steps = self.steps(body["run"]) if "run" in body else ()
        delegate = self.text(body["delegate"], "`delegate`") if "delegate" in body else ""
        if is_delegating and "run" in body and delegate not in {each.name for each in steps}:
            line = body["delegate"].line if "delegate" in body else root.line
            found = f"no step is called `{delegate}`" if delegate else "`delegate` is missing"
            self.fail(line, f"the outputs are delegated, and {found}; expected the name of a step of `run`")
        return Function(
            source=self.source,
            inputs=self.parameters(signature["inputs"], "input") if "inputs" in signature else {},
            outputs=outputs,
            is_delegating=is_delegating,
            env=self.texts(body["env"], "`env`") if "env" in body else {},
            exec=self.exec(body["exec"]) if "exec" in body else None,
            steps=steps,
            output_values=self.values(body["outputs"], "`outputs`") if "outputs" in body else {},
            delegate=delegate,
        )

    def outputs(self, signature: Mapping[str, Node]) -> tuple[bool, Mapping[str, Parameter]]:
        """Read what a function returns: whether something else decides, or the outputs by name."""
        node = signature.get("outputs")
        if node is None:
            return False, {}
        if isinstance(node, Scalar) and node.value is not None:
            if node.value != "delegate":
                self.fail(node.line, f"`{node.text}` as `outputs`; expected `delegate`, or the outputs by name")
            return True, {}
        return False, self.parameters(node, "output")

    def parameters(self, node: Node, what: str) -> Mapping[str, Parameter]:
        """Read inputs or outputs by name."""
        return {name: self.parameter(each, f"{what} `{name}`", line) for name, line, each in self.named(node, what)}

    def parameter(self, node: Node, what: str, line: int) -> Parameter:
        """Read one input or output."""
        found = dict(self.keys(node, _PARAMETER, what))
        kinds = ", ".join(f"`{kind}`" for kind in KINDS)
        if "type" not in found:
            self.fail(line, f"{what} has no `type`; expected one of {kinds}")
        kind = found["type"].value if isinstance(found["type"], Scalar) else None
        if kind not in KINDS:
            self.fail(found["type"].line, f"{_shown(found['type'])} as the type of {what}; expected one of {kinds}")
        default = self.value(found["default"]) if "default" in found else None
        if default is not None and kind_of(default) != kind:
            self.fail(found["default"].line, f"the default of {what} is a {kind_of(default)}; expected a {kind}")
        return Parameter(
            kind=str(kind),
            default=default,
            is_sensitive=self.flag(found["sensitive"], f"`sensitive` of {what}") if "sensitive" in found else False,
            description=self.text(found["description"], f"`description` of {what}") if "description" in found else "",
        )

    def exec(self, node: Node) -> Exec:
        """Read a command."""
        found = dict(self.keys(node, _EXEC, "`exec`"))
        expected = "expected a list: the program, then its arguments"
        if "command" not in found:
            self.fail(node.line, f"`exec` has no `command`; {expected}")
        command = found["command"]
        if not isinstance(command, _yaml.Sequence) or not command.items:
            self.fail(command.line, f"{_shown(command)} as `command`; {expected}")
        return Exec(
            command=tuple(self.template(each, "an item of `command`") for each in command.items),
            work_dir=self.template(found["work_dir"], "`work_dir`") if "work_dir" in found else "",
        )

    def steps(self, node: Node) -> tuple[Step, ...]:
        """Read a list of steps."""
        if not isinstance(node, _yaml.Sequence):
            self.fail(node.line, f"{_shown(node)} where a list of steps was expected")
        if len(node.items) > MAX_STEPS:
            self.fail(node.line, f"{len(node.items)} steps; at most {MAX_STEPS} can be in one list")
        return tuple(self.step(each) for each in node.items)

    def step(self, node: Node) -> Step:
        """Read one call of a function."""
        found = dict(self.keys(node, _STEP, "a step"))
        if "name" not in found:
            self.fail(node.line, "a step has no `name`")
        name = self.text(found["name"], "`name`")
        if not _NAME.fullmatch(name):
            self.fail(found["name"].line, _bad_name(name, "a step"))
        what = f"step `{name}`"
        ways = [key for key in ("func", "step", "script", "action") if key in found]
        if len(ways) != 1:
            has = " and ".join(f"`{key}`" for key in ways) or "nothing to run"
            self.fail(node.line, f"{what} has {has}; expected either `func` or `script`")
        way = ways[0]
        inputs = self.values(found["inputs"], f"`inputs` of {what}") if "inputs" in found else {}
        script = None
        if way == "script":
            script = self.template(found[way], f"`script` of {what}")
            if not script:
                self.fail(found[way].line, f"`script` of {what} is empty")
            if "inputs" in found:
                self.fail(
                    found["inputs"].line, f"{what} has `script` and `inputs`; a script takes expressions and `env`"
                )
            reference: Reference = SCRIPT
            inputs = {"script": script}
        elif way == "action":
            reference = ACTION
            inputs = {"action": self.template(found[way], f"`action` of {what}"), "inputs": inputs}
        else:
            reference = self.reference(found[way], what)
        env = self.texts(found["env"], f"`env` of {what}") if "env" in found else {}
        container = self.container(found["container"], what) if "container" in found else ""
        return Step(
            name=name,
            reference=reference,
            script=script,
            inputs=inputs,
            env=env,
            container=container,
            line=node.line,
        )

    def container(self, node: Node, what: str) -> str:
        """Read the image of a container."""
        image = self.template(node, f"`container` of {what}")
        try:
            if not has_expression(image):
                image_of(image)
        except ValueError as error:
            self.fail(node.line, f"`container` of {what}: {error}")
        return image

    def reference(self, node: Node, what: str) -> Reference:
        """Read where a function comes from."""
        try:
            if isinstance(node, Scalar):
                return parse_reference(self.template(node, f"the function of {what}"))
            found = dict(self.keys(node, ("git", "oci"), f"the function of {what}"))
            if len(found) != 1:
                has = "both `git` and `oci`" if found else "neither `git` nor `oci`"
                self.fail(node.line, f"the function of {what} has {has}; expected one of them")
            (kind, place), *_ = found.items()
            keys, needed = (_GIT, ("url", "rev")) if kind == "git" else (_OCI, ("registry", "repository", "tag"))
            parts = {key: self.template(each, f"`{key}`") for key, each in self.keys(place, keys, f"`{kind}`")}
            for key in needed:
                if not parts.get(key):
                    self.fail(place.line, f"`{kind}` of {what} has no `{key}`")
            directory, file = parts.get("dir", ""), parts.get("file") or None
            if kind == "git":
                return git_reference(parts["url"], parts["rev"], directory=directory, file=file)
            of = (parts["registry"], parts["repository"], parts["tag"])
            return image_reference(*of, directory=directory, file=file)
        except ValueError as error:
            self.fail(node.line, f"{what}: {error}")

    def keys(self, node: Node, known: tuple[str, ...], what: str) -> Iterator[tuple[str, Node]]:
        """Go through a mapping whose keys are known; one that is nothing has none."""
        for key, (line, each) in self.mapping(node, what).items():
            if key not in known:
                self.fail(line, f"unknown key `{key[:40]}` in {what}; {_nearest(key, known)}")
            yield key, each

    def named(self, node: Node, what: str) -> Iterator[tuple[str, int, Node]]:
        """Go through a mapping whose keys are names: the name, its line, and what stands there."""
        for name, (line, each) in self.mapping(node, f"the {what}s").items():
            if not _NAME.fullmatch(name):
                self.fail(line, _bad_name(name, f"an {what}"))
            yield name, line, each

    def mapping(self, node: Node, what: str) -> Mapping[str, tuple[int, Node]]:
        """Take a node for a mapping."""
        if isinstance(node, Scalar) and node.value is None:
            return {}
        if not isinstance(node, _yaml.Mapping):
            self.fail(node.line, f"{_shown(node)} as {what}; expected keys and values")
        return node.items

    def texts(self, node: Node, what: str) -> Mapping[str, str]:
        """Read texts by name, such as environment variables."""
        found = {}
        for name, (line, each) in self.mapping(node, what).items():
            if not _NAME.fullmatch(name):
                self.fail(line, _bad_name(name, "a variable"))
            found[name] = self.template(each, f"`{name}` in {what}")
        return found

    def values(self, node: Node, what: str) -> Mapping[str, Value]:
        """Read values by name, such as the inputs of a step."""
        found = {}
        for name, (line, each) in self.mapping(node, what).items():
            if not _NAME.fullmatch(name):
                self.fail(line, _bad_name(name, "an input or output"))
            found[name] = self.value(each)
        return found

    def value(self, node: Node) -> Value:
        """Read a value, and look at the expressions in it."""
        if isinstance(node, Scalar):
            if isinstance(node.value, str):
                self.check(node)
            return node.value
        if isinstance(node, _yaml.Sequence):
            return [self.value(each) for each in node.items]
        return {key: self.value(each) for key, (_, each) in node.items.items()}

    def template(self, node: Node, what: str) -> str:
        """Read a text that may have expressions, and look at those."""
        text = self.text(node, what)
        self.check(node)
        return text

    def check(self, node: Node) -> None:
        """Look whether the expressions in a text are such."""
        try:
            check_template(node.text if isinstance(node, Scalar) else "")
        except StepFailed as error:
            self.fail(node.line, str(error))

    def text(self, node: Node, what: str) -> str:
        """Read a text; a number is taken as it is written."""
        if not isinstance(node, Scalar) or node.value is None:
            self.fail(node.line, f"{_shown(node)} as {what}; expected a string")
        return node.text

    def flag(self, node: Node, what: str) -> bool:
        """Read true or false."""
        value = node.value if isinstance(node, Scalar) else None
        if not isinstance(value, bool):
            self.fail(node.line, f"{_shown(node)} as {what}; expected `true` or `false`")
        return value

    def fail(self, line: int, message: str) -> NoReturn:
        """Say what is wrong."""
        raise StepsInvalid(message, source=self.source, line=line)


def _not_a_function(documents: list[Document]) -> str:
    """Say what a file is that is neither a function nor a list of steps."""
    root = documents[0].root if len(documents) == 1 else None
    keys = root.items if isinstance(root, _yaml.Mapping) else {}
    if "run" in keys:
        return "`run` without a `spec` before it; expected `spec:` and `---` above it, or the list of steps alone"
    if "spec" in keys or len(documents) > 1:
        found = f"{len(documents)} documents" if documents[1:] else "one document"
        return f"found {found}; expected two, with `---` between them: `spec:`, then `exec:` or `run:`"
    found = _shown(root) if root else "nothing"
    return f"found {found}; expected a list of steps, or a function: `spec:`, `---`, `exec:` or `run:`"


def _shown(node: Node) -> str:
    if isinstance(node, Scalar):
        return "nothing" if node.value is None else f"`{node.text[:40]}`"
    return "a list" if isinstance(node, _yaml.Sequence) else "a mapping"


def _bad_name(name: str, what: str) -> str:
    expected = "letters, digits and underscores, 255 at most, and no digit at the front"
    return f"`{name[:40]}` cannot be the name of {what}; expected {expected}"


def _nearest(key: str, known: tuple[str, ...]) -> str:
    """Name the key that somebody may have meant, or those that there are."""
    near = _OLD[key] if _OLD.get(key) in known else nearest(key, known)
    return f"did you mean `{near}`?" if near else f"expected {', '.join(f'`{each}`' for each in known)}"
