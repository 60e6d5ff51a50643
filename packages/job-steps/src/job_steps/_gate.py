"""A policy at the two places where it is applied: to what a job is to run, and to each step right before it is loaded.

Both who admits a job and the agent that runs it call these, with the reader that the runner itself has: nobody sees
another list than the one that runs.
"""

import json
import posixpath
import re
from collections.abc import Callable, Collection

from attrs import define, field

from job_steps._breakpoints import check_steps, parse_breakpoints
from job_steps._definitions import Step
from job_steps._errors import StepsInvalid
from job_steps._expressions import has_expression
from job_steps._policy import Asked, Kind, Policy, PolicyRefused, admit, bounds, check, check_breakpoints, check_own
from job_steps._reading import read_steps
from job_steps._references import (
    BuiltinReference,
    DynamicReference,
    GitReference,
    ImageReference,
    LocalReference,
    image_of,
)
from job_steps._run import Origin
from job_steps._yaml import MAX_LENGTH, Mapping, Node, Sequence, plain, read_documents

_JOB = Origin(kind="job")
_KINDS = {"git": Kind.GIT, "image": Kind.IMAGE, "builtin": Kind.BUILTIN}
_SCRIPT = "script"

_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
"""What JSON may have in a text as it is, and YAML may not."""


def admit_steps(policy: Policy, text: str, *, own: Policy | None = None) -> str:
    """See that a policy allows what a job is to run, and put those steps into it that it has to have.

    Args:
        policy: What is allowed.
        text: What the job runs, as `read_steps` takes it.
        own: The job's own policy, which its steps have to obey beside that.

    Returns:
        What is to be run: the same text, if nothing had to be put into it.

    Raises:
        PolicyRefused: It does not allow a step.
        StepsInvalid: The text cannot be read.
    """
    function = read_steps(text)
    if function.exec is not None:
        check(policy, Asked(step="exec", kind=Kind.SCRIPT))
        if own is not None:
            check_own(own, Asked(step="exec", kind=Kind.SCRIPT))
        if policy.before or policy.after:
            rule = "before" if policy.before else "after"
            raise PolicyRefused(rule, "exec", "steps can be added to a list alone; make the command a step of one")
        return text
    asked = [asked_of(step, (step.name,), _JOB, is_evaluated=False) for step in function.steps]
    documents = [each.root for each in read_documents(text, source="steps")]
    nodes = _list_of(documents[-1])
    calls = [found for each in nodes if isinstance(found := plain(each), dict)]  # each is, or it was not read
    admit(policy, calls, asked, own=own)
    if not (policy.before or policy.after):
        return text
    first, last = bounds(policy, calls)
    copied = _Copy()
    before, after = (map(_json, each) for each in (policy.before, policy.after))
    steps = f"[{', '.join([*before, *map(copied.text, nodes[first:last]), *after])}]"
    root = documents[-1]
    whole = steps if isinstance(root, Sequence) else copied.text(root, run=steps)
    return "\n---\n".join([*map(copied.text, documents[:-1]), whole]) + "\n"


def admit_breakpoints(policy: Policy, breakpoints: tuple[str, ...], text: str) -> None:
    """See that a policy allows that a job is held where these say, and that it has such steps.

    Args:
        policy: What is allowed.
        breakpoints: Such as ``build`` or ``build:after``.
        text: What is to be run, as `admit_steps` returns it.

    Raises:
        PolicyRefused: It does not allow them.
        ValueError: One is none, or names no step of the job.
    """
    if breakpoints:
        points = parse_breakpoints(breakpoints)
        check_breakpoints(policy, breakpoints)
        check_steps(points, read_steps(text))


def gate(
    policy: Policy, *, exempt: Collection[str] = (), is_own: bool = False
) -> Callable[[Step, tuple[str, ...], Origin], None]:
    """Give what looks at each step right before it is loaded; see `run_steps`. The job's list has to be admitted.

    What it gives raises `PolicyRefused`. The policy's own steps need no leave, and neither do those that they call.

    Args:
        policy: What is allowed.
        exempt: Names of the list's steps that need no leave either, such as those of a policy above this one.
        is_own: Whether it is a job's own.
    """
    see = check_own if is_own else check
    own = policy.own_names.union(exempt)

    def look(step: Step, path: tuple[str, ...], origin: Origin) -> None:
        if path[0] not in own:
            see(policy, asked_of(step, path, origin, is_evaluated=True))

    return look


def as_function(text: str) -> str:
    """Make the file of a function of a list of steps, as GitLab's step-runner takes it; another file stays as it is.

    Raises:
        StepsInvalid: It is no YAML.
    """
    documents = read_documents(text, source="steps")
    if len(documents) != 1 or not isinstance(documents[0].root, Sequence):
        return text
    return f'{{}}\n---\n{{"run": {_Copy().text(documents[0].root)}}}\n'


def written(*documents: object) -> str:
    """Write documents, as every reader of YAML reads them."""
    return "\n---\n".join(map(_json, documents)) + "\n"


def _json(document: object) -> str:
    text = json.dumps(document, ensure_ascii=False, allow_nan=False)
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


@define
class _Copy:
    """Writes nodes again, a number as it was written: `1.10` stays that where a text is expected."""

    _left: int = field(init=False, default=MAX_LENGTH)

    def text(self, node: Node, *, run: str = "") -> str:
        """Write a node; *run* stands in place of its `run`."""
        if isinstance(node, Sequence):
            return f"[{', '.join(map(self.text, node.items))}]"
        if isinstance(node, Mapping):
            items = node.items.items()
            pairs = ((key, run if run and key == "run" else self.text(each)) for key, (_, each) in items)
            return f"{{{', '.join(f'{self._counted(_json(key))}: {value}' for key, value in pairs)}}}"
        if node.value is None:
            return self._counted("null")
        return self._counted(_json(node.value) if isinstance(node.value, str) else node.text)

    def _counted(self, text: str) -> str:
        self._left -= len(text)
        if self._left < 0:  # aliases may stand for any number of long texts
            why = f"more than {MAX_LENGTH} characters, those behind aliases included"
            raise StepsInvalid(why, source="steps", line=1)
        return text


def asked_of(step: Step, path: tuple[str, ...], origin: Origin, *, is_evaluated: bool) -> Asked:
    """Say what a step asks for.

    Args:
        step: The step.
        path: The names that lead to it, its own the last.
        origin: Where the list that it is in comes from; of a job that is not running, the directory is not known.
        is_evaluated: Whether expressions in its reference were replaced; else nobody knows what they will be.
    """
    kind, location, version = _place(step, origin)
    if not is_evaluated and (has_expression(location) or has_expression(version)):
        kind = Kind.EXPRESSION
    from_ = _KINDS.get(origin.kind) or (None if origin.kind == "job" and len(path) == 1 else Kind.PATH)
    file = (step.reference.file or "") if isinstance(step.reference, LocalReference) else ""
    name = "/".join(path)
    container = _container(step.container, name) if step.container else None
    return Asked(step=name, kind=kind, location=location, file=file, version=version, origin=from_, container=container)


def _container(image: str, step: str) -> Asked:
    """Say what a step asks for that is to run in a container of an image."""
    if has_expression(image):
        return Asked(step=step, kind=Kind.EXPRESSION, location=image)
    found = image_of(image)
    return Asked(step=step, kind=Kind.IMAGE, location=f"{found.registry}/{found.repository}", version=found.tag)


def _place(step: Step, origin: Origin) -> tuple[Kind, str, str]:
    reference = step.reference
    if isinstance(reference, BuiltinReference):
        is_script = reference.name == _SCRIPT
        return (Kind.SCRIPT, "", "") if is_script else (Kind.BUILTIN, reference.name, "")
    if isinstance(reference, DynamicReference):
        return Kind.EXPRESSION, reference.text, ""
    if isinstance(reference, GitReference):
        return Kind.GIT, reference.url, reference.rev
    if isinstance(reference, ImageReference):
        return Kind.IMAGE, f"{reference.registry}/{reference.repository}", reference.tag
    return Kind.PATH, _located(reference, origin), ""


def _located(reference: LocalReference, origin: Origin) -> str:
    """Where a path leads, from the root of what names it; absolute if that is outside.

    What is in a directory of the machine is named by absolute paths: relative ones are of the job's own files.
    """
    place = posixpath.normpath(posixpath.join(origin.directory, reference.path))
    root = posixpath.normpath(origin.root) if origin.root and origin.kind != "local" else ""
    return posixpath.relpath(place, root) if root and (place == root or place.startswith(f"{root}/")) else place


def _list_of(root: Node) -> "list[Node]":
    found = root.items["run"][1] if isinstance(root, Mapping) else root
    return found.items if isinstance(found, Sequence) else []
