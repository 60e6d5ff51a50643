"""Jobs from JSON and to JSON: strict as Go, and nothing lost."""

import json
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gitlab_jobs import Job, PayloadInvalid, Variable, _payload, decode_job, encode_job

SHEET: dict[str, Any] = {
    "id": 9223372036854775807,
    "token": "glcbt-64_x",
    "allow_git_fetch": True,
    "job_info": {
        "name": "build",
        "stage": "test",
        "project_id": 2,
        "project_name": "p",
        "project_full_path": "g/p",
        "instance_id": "i",
        "instance_uuid": "u",
        "pipeline_id": 3,
        "namespace_id": 4,
        "root_namespace_id": 5,
        "organization_id": 6,
        "user_id": 7,
        "scoped_user_id": 8,
        "queue_size": 9,
        "queue_depth": 10,
        "time_in_queue_seconds": 1.5,
        "project_jobs_running_on_instance_runners_count": "+Inf",
    },
    "git_info": {
        "repo_url": "https://gitlab-ci-token:x@gitlab.example/g/p.git",
        "repo_object_format": "sha1",
        "ref": "main",
        "sha": "0" * 40,
        "before_sha": "1" * 40,
        "ref_type": "branch",
        "refspecs": ["+refs/heads/main:refs/remotes/origin/main"],
        "depth": 20,
        "protected": True,
    },
    "runner_info": {"uuid": "", "timeout": 3600},
    "inputs": [{"key": "i", "value": {"type": "array", "content": [1, "a", None], "sensitive": True}}],
    "variables": [{"key": "A", "value": "é\u0000\ud800", "public": True, "file": True, "masked": True, "raw": True}],
    "steps": [{"name": "script", "script": ["true"], "timeout": 1, "when": "always", "allow_failure": True}],
    "image": {
        "name": "alpine",
        "alias": "",
        "command": ["a"],
        "entrypoint": ["b"],
        "ports": [{"number": 80, "protocol": "http", "name": "web"}],
        "variables": [],
        "pull_policy": ["always"],
        "executor_opts": {"docker": {"platform": "linux/arm64", "user": "1"}},
    },
    "services": [{"name": "redis", "alias": "a,b"}],
    "artifacts": [
        {
            "name": "a",
            "untracked": True,
            "paths": ["out"],
            "exclude": ["tmp"],
            "when": "always",
            "artifact_type": "archive",
            "artifact_format": "zip",
            "expire_in": "1 day",
        }
    ],
    "cache": [
        {"key": "k", "untracked": True, "policy": "pull", "paths": ["c"], "when": "always", "fallback_keys": ["f"]}
    ],
    "credentials": [{"type": "registry", "url": "r", "username": "u", "password": "p"}],
    "dependencies": [{"id": 1, "token": "t", "name": "d", "artifacts_file": {"filename": "a.zip", "size": 12}}],
    "features": {
        "trace_sections": True,
        "token_mask_prefixes": ["mine-"],
        "failure_reasons": ["unknown_failure"],
        "tracing": {"trace_id": "t", "span_parent_id": "s", "otel_endpoints": [{"url": "u", "auth": "a"}]},
    },
    "secrets": {"S": {"vault": {"path": "p"}, "file": False}},
    "hooks": [{"name": "pre_get_sources_script", "script": ["true"]}],
    "run": '[{"name":"s","script":"true"}]',
    "policy_options": {
        "execution_policy_job": True,
        "policy_name": "p",
        "policy_variables_override_allowed": False,
        "policy_variables_override_exceptions": ["E"],
    },
    "suspend_options": {"suspend_on_success": True, "suspend_on_failure": True, "runtime_environment_key": "k"},
}
"""Every key of the fact sheet."""


def has(whole: object, part: object) -> bool:
    """Whether all of a JSON value is in another, with the same types."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(key in whole and has(whole[key], each) for key, each in part.items())
    if isinstance(part, list):
        return isinstance(whole, list) and len(whole) == len(part) and all(map(has, whole, part))
    return type(whole) is type(part) and whole == part


def test_every_key_is_known_and_comes_out_again() -> None:
    """Nothing of the sheet is only kept: each key has a field."""
    job = decode_job(json.dumps(SHEET).encode())
    assert has(json.loads(encode_job(job)), SHEET)
    parts: list[Any] = [job]
    for part in parts:
        assert part.extra == {}
        for each in attrs.fields(type(part)):
            value = getattr(part, each.name)
            values = value if isinstance(value, tuple) else value.values() if isinstance(value, dict) else [value]
            parts += [one for one in values if attrs.has(type(one))]
    kinds = {each for each in vars(_payload).values() if isinstance(each, type) and attrs.has(each)}
    assert {type(part) for part in parts} == kinds - {_payload._Part}


def test_the_smallest_job_is_one() -> None:
    """Missing keys and null are the empty value, as for Go; a time limit of nothing is two hours."""
    job = decode_job(b'{"id": 1, "token": "t", "steps": null, "runner_info": null, "run": null}')
    assert (job.steps, job.run, job.timeout) == ((), "", 7200)
    assert b'"run"' not in encode_job(job)
    assert decode_job(encode_job(job)) == job


def test_what_there_is_nothing_of_is_not_made_up() -> None:
    """An archive that is not there is left out, and a word that the user did not choose is null: runners differ."""
    raw = b'{"id": 1, "token": "t", "dependencies": [{"id": 2}], "artifacts": [{"paths": ["a"]}]}'
    found = json.loads(encode_job(decode_job(raw)))
    assert "artifacts_file" not in found["dependencies"][0]
    assert (found["artifacts"][0]["when"], found["artifacts"][0]["artifact_format"]) == (None, None)


def test_a_payload_that_is_cut_off_shows_nothing_of_its_token() -> None:
    """It is among the first bytes."""
    for raw in (b'{"token": "glcbt-64_SECRET', b'["SECRET', b'"glrt-SECRET'):
        with pytest.raises(PayloadInvalid) as error:
            decode_job(raw)
        assert "SECRET" not in str(error.value)
    with pytest.raises(PayloadInvalid) as error:
        decode_job(b'{"id": 1, "token": "SECRET\\u0007"}')
    assert str(error.value) == "expected a token, found a character that no header can have @ job.token"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(
    extra=st.dictionaries(st.text().filter(lambda key: key not in SHEET), JSON, max_size=3),
    number=st.integers(-(2**63), 2**63 - 1),
    text=st.text(st.characters()),
)
def test_what_is_unknown_is_kept(extra: dict[str, Any], number: int, text: str) -> None:
    """At the top and below, whatever it is; integers and strings to the last digit and character."""
    payload = {
        "id": number,
        "token": "t",
        "job_info": {**extra, "name": text, "pipeline_id": number},
        **extra,
    }
    payload["job_info"].pop("extra", None)
    job = decode_job(json.dumps(payload).encode())
    assert (job.id, job.job_info.name, dict(job.extra)) == (number, text, extra)
    assert has(json.loads(encode_job(job)), payload)


def test_secrets_are_not_shown() -> None:
    """A job in a log or a traceback says neither tokens nor values."""
    secret = {
        "token": "SECRET",
        "variables": [{"key": "A", "value": "SECRET"}],
        "credentials": [{"password": "SECRET"}],
        "dependencies": [{"token": "SECRET"}],
        "git_info": {"repo_url": "https://u:SECRET@h/"},
        "secrets": {"S": {"vault": {"path": "SECRET"}}},
    }
    shown = repr(decode_job(json.dumps({**SHEET, **secret}).encode()))
    assert "'A'" in shown
    assert "SECRET" not in shown


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "expected JSON, found nothing (Expecting value: line 1 column 1 (char 0))"),
        (b'{"id": 1, "tok', "expected JSON, found 14 bytes (Unterminated string starting"),
        (b"<!DOCTYPE html><title>502</title>", "expected JSON, found '<!DOCTYPE html>"),
        (b"\xff\xfe\x00", "expected JSON, found "),
        (b"[" * 100_000, "(nested too deeply)"),
        (b'{"id": 1' + b"0" * 5000 + b"}", "expected JSON, found 5009 bytes (an integer has too many digits)"),
        (b"[]", "expected a JSON object, found a list"),
        (b"NaN", "NaN is not a number of JSON"),
        (b'{"id": 1, "token": "t", "x": 1e999}', "a number is too large"),
        (b"{}", "the key 'id' is missing"),
        (b'{"id": 1}', "the key 'token' is missing"),
        (b'{"id": null, "token": "t"}', "expected an integer of 64 bits, found null @ job.id"),
        (b'{"id": "1", "token": "t"}', "expected an integer of 64 bits, found a string @ job.id"),
        (b'{"id": 1.0, "token": "t"}', "expected an integer of 64 bits, found a number with a fraction @ job.id"),
        (b'{"id": true, "token": "t"}', "expected an integer of 64 bits, found true or false @ job.id"),
        (b'{"id": 9223372036854775808, "token": "t"}', "expected an integer of 64 bits, found an integer @ job.id"),
        (b'{"id": 1, "token": "t\\nX: y"}', "expected a token, found"),
        (b'{"id": 1, "token": ""}', "expected a token, found"),
        (b'{"id": 1, "token": "t", "runner_info": {"timeout": 3.6e3}}', "@ job.runner_info.timeout"),
        (b'{"id": 1, "token": "t", "variables": [{"key": "A", "value": 1}]}', "@ job.variables[0].value"),
        (b'{"id": 1, "token": "t", "variables": {"A": "b"}}', "expected a list, found an object @ job.variables"),
        (b'{"id": 1, "token": "t", "steps": [{"script": "true"}]}', "found a string @ job.steps[0].script"),
        (b'{"id": 1, "token": "t", "steps": ["true"]}', "expected an object, found a string @ job.steps[0]"),
        (b'{"id": 1, "token": "t", "secrets": "S"}', "expected an object, found a string @ job.secrets"),
        (b'{"id": 1, "token": "t", "run": [{"name": "s"}]}', "expected a string, found a list @ job.run"),
        (b'{"id": 1, "token": "t", "image": {"executor_opts": []}}', "@ job.image.executor_opts"),
    ],
    ids=lambda value: value[-30:] if isinstance(value, bytes) else None,
)
def test_a_wrong_payload_is_one_line(raw: bytes, message: str) -> None:
    """It says what was found, what was expected and where, and fits on a line."""
    with pytest.raises(PayloadInvalid) as error:
        decode_job(raw)
    text = str(error.value)
    assert message in text
    assert "\n" not in text
    assert len(text) < 500


def test_a_wrong_payload_can_be_reported() -> None:
    """GitLab believes that the job runs: its id and token are there, if they are right, to report it as failed."""
    with pytest.raises(PayloadInvalid) as error:
        decode_job(b'{"id": 7, "token": "t", "steps": 3}')
    assert (error.value.job_id, error.value.token) == (7, "t")
    with pytest.raises(PayloadInvalid) as error:
        decode_job(b'{"id": "7", "token": "t"}')
    assert (error.value.job_id, error.value.token) == (None, None)


def test_a_payload_of_many_mistakes_is_still_one_line() -> None:
    """Ten thousand variables, and none of them right: five are named, the others counted."""
    payload = {"id": 1, "token": "t", "variables": [{"key": str(number), "value": number} for number in range(10_000)]}
    with pytest.raises(PayloadInvalid, match=r"job\.variables\[4\]\.value; and 9995 more$"):
        decode_job(json.dumps(payload).encode())


def test_large_payloads_are_read() -> None:
    """Ten thousand variables and a script of 20 MiB are a job."""
    variables = tuple(Variable(key=f"V{number}", value="A;B") for number in range(10_000))
    job = Job(id=1, token="t", variables=variables, run="x" * (20 << 20))
    assert decode_job(encode_job(job)) == job


def test_a_payload_has_a_limit() -> None:
    """It is not parsed to find out."""
    with pytest.raises(PayloadInvalid, match="expected at most 67108864 bytes of JSON, found 67108865"):
        decode_job(b"[" * ((64 << 20) + 1))


def test_a_job_has_its_description_as_it_was_sent() -> None:
    """To the byte; it is no part of what the job says, nor of what is written of it."""
    raw = b'{ "token":"t", "id" : 1, "as_sent": 1.10 }'
    job = decode_job(raw)
    assert job.as_sent == raw
    assert job.extra == {"as_sent": 1.1}
    assert job == decode_job(encode_job(job))
    assert "as_sent" not in repr(job)
    assert json.loads(encode_job(job))["as_sent"] == 1.1
