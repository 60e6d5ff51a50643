"""Jobs from JSON and to JSON, as strictly as Go reads it: pure."""

import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from math import isfinite
from typing import Any, cast

import attrs
from attrs import NOTHING
from cattrs import ClassValidationError, Converter, IterableValidationError, transform_error
from cattrs.gen import make_dict_structure_fn

from gitlab_jobs._errors import PayloadInvalid
from gitlab_jobs._payload import Job, Json

MAX_PAYLOAD = 64 << 20
"""Bytes of a description; GitLab's largest are the variables of a pipeline, and far below that."""

_TOKEN = re.compile("[!-~]+")
_INT64 = range(-(1 << 63), 1 << 63)
_MOST_PROBLEMS = 5
"""So many mistakes of one description are named: more have one cause."""

_LONGEST_PROBLEM = 200
"""Characters of one mistake that are shown; the names in it are the sender's."""

_OMITTED_IF_EMPTY = {"run", "artifacts_file"}
"""GitLab Runner from 19 on refuses the first when it is there and empty; other runners take the second, if it is there,
for something to fetch."""

_NULL_IF_EMPTY = {"when", "artifact_format"}
"""One of several words, or what GitLab has if the user says nothing; no runner needs to know an empty word."""


def decode_job(raw: bytes) -> Job:
    """Read a job's description.

    Raises:
        PayloadInvalid: What is wrong and where; with the job's id and token if those are right.
    """
    found = decode_object(raw)
    try:
        job = _converter().structure(found, Job)
    except (ClassValidationError, IterableValidationError) as error:
        problems = transform_error(error, path="job", format_exception=_in_words)
        more = f"; and {len(problems) - _MOST_PROBLEMS} more" if len(problems) > _MOST_PROBLEMS else ""
        shown = "; ".join(each[:_LONGEST_PROBLEM] for each in problems[:_MOST_PROBLEMS])
        raise PayloadInvalid(shown + more, **_identity(found)) from None
    if not is_token(job.token):
        found_instead = "a character that no header can have" if job.token else "an empty string"
        raise PayloadInvalid(f"expected a token, found {found_instead} @ job.token")
    return attrs.evolve(job, as_sent=raw)


def decode_object(raw: bytes) -> Json:
    """Read a JSON object.

    Raises:
        PayloadInvalid: It is none, or is too large.
    """
    if len(raw) > MAX_PAYLOAD:
        raise PayloadInvalid(f"expected at most {MAX_PAYLOAD} bytes of JSON, found {len(raw)}")
    try:
        found = json.loads(raw, parse_constant=_no_number, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise PayloadInvalid(f"expected JSON, found {_shown(raw)} ({_reason(error)})") from None
    if not isinstance(found, dict):
        raise PayloadInvalid(f"expected a JSON object, found {_kind(found)}")
    return cast("Json", found)


def encode_job(job: Job) -> bytes:
    """Write a job's description: every key that is known, those that were not, integers as integers."""
    return json.dumps(_converter().unstructure(job), separators=(",", ":")).encode()


def _identity(found: Json) -> dict[str, Any]:
    job_id, token = found.get("id"), found.get("token")
    usable = type(job_id) is int and job_id in _INT64 and is_token(token)
    return {"job_id": job_id, "token": token} if usable else {}


def is_token(token: object) -> bool:
    """Whether a header can have it: HTTP knows no line breaks there, no spaces at the ends, and nothing but ASCII."""
    return isinstance(token, str) and _TOKEN.fullmatch(token) is not None


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is not a number of JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError("a number is too large")
    return number


def _shown(raw: bytes) -> str:
    """What something is that is no JSON; of what might be a job, nothing: its token is near the beginning."""
    if not raw:
        return "nothing"
    if raw.lstrip()[:1] in (b"{", b"[", b'"'):
        return f"{len(raw)} bytes"
    start = raw[:40].decode(errors="replace").rstrip("\N{REPLACEMENT CHARACTER}")
    if "\N{REPLACEMENT CHARACTER}" in start or "\0" in start or not start:
        return "what is not text"
    return f"{start!r}…" if len(raw) > len(start.encode()) else repr(start)


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    text = str(error).partition("\n")[0][:120]
    return "an integer has too many digits" if "integer string conversion" in text else text


_KINDS = {
    type(None): "null",
    bool: "true or false",
    int: "an integer",
    float: "a number with a fraction",
    str: "a string",
    list: "a list",
    dict: "an object",
}


def _kind(value: object) -> str:
    return _KINDS[type(value)]


def _in_words(error: BaseException, _: type | None) -> str:
    if isinstance(error, KeyError):
        return f"the key {error} is missing"
    return str(error)


def _expected(what: str, is_right: Callable[[object], bool]) -> Callable[[object, object], Any]:
    def check(value: object, _: object) -> object:
        if not is_right(value):
            raise ValueError(f"expected {what}, found {_kind(value)}")
        return value

    return check


def _is_integer(value: object) -> bool:
    return type(value) is int and value in _INT64


@cache
def _converter() -> Converter:
    """How values and JSON become each other; made once, since that takes longer than a hundred jobs."""
    converter = Converter(detailed_validation=True)
    for kind, check in (
        (int, _expected("an integer of 64 bits", _is_integer)),
        (str, _expected("a string", lambda value: isinstance(value, str))),
        (bool, _expected("true or false", lambda value: isinstance(value, bool))),
        (float, _expected("a number", lambda value: isinstance(value, float) or _is_integer(value))),
    ):
        converter.register_structure_hook(kind, check)
    converter.register_structure_hook_func(
        lambda kind: kind == Json, _expected("an object", lambda value: isinstance(value, dict))
    )
    converter.register_structure_hook_factory(_is_mapping, lambda kind: _structure_mapping(converter, kind))
    converter.register_structure_hook_factory(_is_list, lambda kind: _structure_list(converter, kind))
    converter.register_structure_hook_factory(_is_part, lambda kind: _structure_part(converter, kind))
    converter.register_unstructure_hook_factory(_is_part, lambda _: lambda part: _unstructure_part(converter, part))
    return converter


def _is_list(kind: object) -> bool:
    return getattr(kind, "__origin__", None) is tuple


def _is_mapping(kind: object) -> bool:
    return getattr(kind, "__origin__", None) is Mapping and kind != Json


def _is_part(kind: Any) -> bool:  # noqa: ANN401  (cattrs asks about anything)
    return isinstance(kind, type) and attrs.has(kind)


def _structure_list(converter: Converter, kind: Any) -> Callable[[object, object], object]:  # noqa: ANN401  (a type)
    of = list[kind.__args__[0]]

    def structure(value: object, _: object) -> object:
        if not isinstance(value, list):
            raise ValueError(f"expected a list, found {_kind(value)}")
        return tuple(converter.structure(value, of))

    return structure


def _structure_mapping(converter: Converter, kind: Any) -> Callable[[object, object], object]:  # noqa: ANN401  (a type)
    of = kind.__args__[1]

    def structure(value: object, _: object) -> object:
        if not isinstance(value, dict):
            raise ValueError(f"expected an object, found {_kind(value)}")
        return {key: converter.structure(each, of) for key, each in value.items()}

    return structure


def _structure_part(converter: Converter, kind: Any) -> Callable[[object, object], object]:  # noqa: ANN401  (a type)
    structure_known = make_dict_structure_fn(kind, converter)
    required = {each.name for each in attrs.fields(kind) if each.default is NOTHING}
    known = set(_keys(kind))

    def structure(value: object, _: object) -> object:
        if not isinstance(value, Mapping):
            raise ValueError(f"expected an object, found {_kind(value)}")
        given = {key: each for key, each in value.items() if key in known and (each is not None or key in required)}
        extra = {key: each for key, each in value.items() if key not in known}
        part = structure_known(given, kind)
        return attrs.evolve(cast("Any", part), extra=extra) if extra else part

    return structure


def _keys(kind: Any) -> dict[str, "attrs.Attribute[Any]"]:  # noqa: ANN401  (a type)
    """The fields that are keys of the JSON."""
    return {each.name: each for each in attrs.fields(kind) if each.metadata.get("is_key", True)}


def _unstructure_part(converter: Converter, part: Any) -> dict[str, Any]:  # noqa: ANN401  (any part)
    kept: dict[str, Any] = {}
    for key, each in _keys(type(part)).items():
        value = getattr(part, key)
        if key in _NULL_IF_EMPTY and not value:
            kept[key] = None
        elif value is not None and not (key in _OMITTED_IF_EMPTY and value == each.default):
            kept[key] = converter.unstructure(value)
    return kept | dict(part.extra)


def encode_object(value: Json) -> bytes:
    """Write a JSON object; what JSON cannot have, such as a date, is an error."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
