"""What a sidecar gets of a job: all that GitLab has said, byte for byte, and before its variables ours. Pure."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from gitlab_jobs import Job, encode_job

_SPACE = re.compile(r"[ \t\n\r]*")
_VARIABLES = "variables"
_NONE: Mapping[str, str] = {}
_decoder = json.JSONDecoder()


def for_sidecar(job: Job, *, instance: str, slot: int, ca_chain: str, trace_env: Mapping[str, str] = _NONE) -> bytes:
    """A job as its sidecar gets it.

    Nothing of it is written anew: who reads it may know keys, numbers or an order that mean nothing here.

    A sidecar takes the certificates of whom it talks to for GitLab's own. Here that is us, so those of GitLab are
    named, where they are not everybody's; what the job itself says of them counts, since it comes later.
    """
    named = {"TASKSCALER_INSTANCE": instance, "TASKSCALER_SLOT": str(slot), **trace_env}
    ours = [_said(name, value) for name, value in named.items()]
    if ca_chain:
        ours.append(_said("CI_SERVER_TLS_CA_FILE", ca_chain, file=True))
    raw = job.as_sent or encode_job(job)
    text = raw.decode(json.detect_encoding(raw), "surrogatepass")
    return _before_variables(text, json.dumps(ours)[1:-1]).encode("utf-8", "surrogatepass")


def _said(key: str, value: str, *, file: bool = False) -> Mapping[str, object]:
    return {"key": key, "value": value, "public": True, "masked": False, "file": file, "raw": True}


def _before_variables(text: str, ours: str) -> str:
    """Put variables before those of an object, or where it has none."""
    found = [(start, value) for key, start, value in _members(text) if key == _VARIABLES]
    if not found:
        begin = text.index("{") + 1
        return f'{text[:begin]}"{_VARIABLES}":[{ours}],{text[begin:]}'
    start, value = found[-1]  # of several keys of one name the last one counts
    if value is None:
        return f"{text[:start]}[{ours}]{text[start + len('null') :]}"
    return f"{text[: start + 1]}{ours}{',' if value else ''}{text[start + 1 :]}"


def _members(text: str) -> Iterator[tuple[str, int, Any]]:
    """Yield each key of an object, where its value begins, and what it is."""
    at = text.index("{")
    while text[at] != "}":
        key, at = _decoder.raw_decode(text, _past_space(text, at + 1))
        start = _past_space(text, _past_space(text, at) + 1)
        value, at = _decoder.raw_decode(text, start)
        yield key, start, value
        at = _past_space(text, at)


def _past_space(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return at if space is None else space.end()
