"""A policy at the two places where it is applied: to what a job is to run, and to each step right before it is loaded.

Both who admits a job and the agent that runs it call these, with the reader that the runner itself has: nobody sees
another list than the one that runs.
"""

import json
import posixpath
import re
from collections.abc import Callable

from job_steps._definitions import Step
from job_steps._expressions import has_expression
from job_steps._policy import Asked, Kind, Policy, PolicyRefused, admit, check
from job_steps._reading import read_steps
from job_steps._references import BuiltinReference, DynamicReference, GitReference, ImageReference, LocalReference
from job_steps._run import Origin
from job_steps._values import Value
from job_steps._yaml import plain, read_documents

_JOB = Origin(kind="job")
_KINDS = {"git": Kind.GIT, "image": Kind.IMAGE, "builtin": Kind.BUILTIN}
_SCRIPT = "script"

_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
"""What JSON may have in a text as it is, and YAML may not."""


def admit_steps(policy: Policy, text: str) -> str:
    """See that a policy allows what a job is to run, and put those steps into it that it has to have.

    Args:
        policy: What is allowed.
        text: What the job runs, as `read_steps` takes it.

    Returns:
        What is to be run: the same text, if nothing had to be put into it.

    Raises:
        PolicyRefused: It does not allow a step.
        StepsInvalid: The text cannot be read.
    """
    function = read_steps(text)
    if function.exec is not None:
        check(policy, Asked(step="exec", kind=Kind.SCRIPT))
        if policy.before or policy.after:
            rule = "before" if policy.before else "after"
            raise PolicyRefused(rule, "exec", "steps can be added to a list alone; make the command a step of one")
        return text
    asked = [asked_of(step, (step.name,), _JOB, is_evaluated=False) for step in function.steps]
    documents = [plain(each.root) for each in read_documents(text, source="steps")]
    calls = _list_of(documents[-1])
    admitted = admit(policy, calls, asked)
    if admitted == tuple(calls):
        return text
    last = documents[-1]
    return written(*documents[:-1], {**last, "run": admitted} if isinstance(last, dict) else admitted)


def gate(policy: Policy) -> Callable[[Step, tuple[str, ...], Origin], None]:
    """Give what looks at each step right before it is loaded; see `run_steps`. The job's list has to be admitted.

    What it gives raises `PolicyRefused`. The policy's own steps need no leave, and neither do those that they call.
    """
    own = {str(call.get("name")) for call in (*policy.before, *policy.after)}

    def look(step: Step, path: tuple[str, ...], origin: Origin) -> None:
        if path[0] not in own:
            check(policy, asked_of(step, path, origin, is_evaluated=True))

    return look


def written(*documents: object) -> str:
    """Write documents, as every reader of YAML reads them."""
    texts = (json.dumps(each, ensure_ascii=False, allow_nan=False) for each in documents)
    return "\n---\n".join(_UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text) for text in texts) + "\n"


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
    return Asked(step="/".join(path), kind=kind, location=location, version=version, origin=from_)


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
    """Where a path leads, from the root of what names it; absolute if that is outside."""
    place = posixpath.normpath(posixpath.join(origin.directory, reference.path))
    root = posixpath.normpath(origin.root) if origin.root else ""
    return posixpath.relpath(place, root) if root and (place == root or place.startswith(f"{root}/")) else place


def _list_of(document: Value) -> list[dict[str, Value]]:
    found = document["run"] if isinstance(document, dict) else document
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
