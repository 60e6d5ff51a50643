"""What a sidecar gets of a job: what GitLab has written, and nothing is lost of it, or looks otherwise."""

import json

from hypothesis import given
from hypothesis import strategies as st

from gitlab_jobs import Job, Variable, decode_job
from taskscaler_gitlab.relay._payload import for_sidecar

TRACE = {"TRACEPARENT": "00-1", "TRACESTATE": "a=1"}
OURS = ["TASKSCALER_INSTANCE", "TASKSCALER_SLOT", *TRACE, "CI_SERVER_TLS_CA_FILE"]

NUMBERS = st.sampled_from(
    ["0", "-0", "1.0", "1.10", "1e5", "1E+05", "0.1000000000000000055511151231257827", "9007199254740993", "1" * 300]
)
"""As text: Python's own numbers lose what some of these say."""

SPACES = st.sampled_from(["", "", " ", "\n\t", "\r\n  "])
TEXTS = st.builds(json.dumps, st.text(st.characters(exclude_categories=()), max_size=5), ensure_ascii=st.booleans())
VALUES = st.recursive(
    st.one_of(NUMBERS, TEXTS, st.sampled_from(["null", "true", "false", "{}", "[]", '"a\\/b"', '"]},{["'])),
    lambda inner: st.one_of(
        st.builds(lambda space, items: f"[{space}{','.join(items)}{space}]", SPACES, st.lists(inner, max_size=3)),
        st.builds(
            lambda space, items: f"{{{space}{','.join(f'{key}{space}:{value}' for key, value in items)}{space}}}",
            SPACES,
            st.lists(st.tuples(TEXTS, inner), max_size=3),
        ),
    ),
    max_leaves=6,
)
UNKNOWN = st.builds(lambda key, value: (f'"new_{key}"', value), st.integers(0, 3), VALUES)
VARIABLE = st.builds('{{"key":"K","new":{}}}'.format, VALUES)
VARIABLES = st.one_of(
    st.just("null"),
    st.builds(lambda space, each: f"[{space}{','.join(each)}{space}]", SPACES, st.lists(VARIABLE, max_size=2)),
)
"""Theirs, with keys that we do not know."""

NAMES = st.sampled_from(['"variables"', '"vari\\u0061bles"'])
MEMBERS = st.lists(st.one_of(UNKNOWN, st.tuples(NAMES, VARIABLES)), max_size=5).flatmap(
    lambda more: st.permutations([('"id"', "7"), ('"token"', '"t"'), *more])
)


@given(members=MEMBERS, space=SPACES)
def test_a_sidecar_gets_what_gitlab_has_written(members: list[tuple[str, str]], space: str) -> None:
    """Without what is added it is the same to the byte, and that is added before the variables that count."""
    sent = f"{space}{{{','.join(f'{space}{key}{space}:{space}{value}{space}' for key, value in members)}}}{space}"
    raw = sent.encode("utf-8", "surrogatepass")
    job = decode_job(raw)
    got = for_sidecar(job, instance="i-1", slot=3, ca_chain="pem", trace_env=TRACE).decode("utf-8", "surrogatepass")
    added = json.loads(got)["variables"][: len(OURS)]
    assert [each["key"] for each in added] == OURS
    ours = json.dumps(added)[1:-1]
    assert got.count(ours) == 1
    before, after = got.split(ours)
    assert sent in _without(before, after)
    assert json.loads(got) == {**json.loads(sent), "variables": [*added, *(json.loads(sent).get("variables") or ())]}


def _without(before: str, after: str) -> list[str]:
    """What there may have been: a list with something in it, an empty one, null, or no such key."""
    return [
        before + after.removeprefix(","),
        before[:-1] + "null" + after[1:],
        before.removesuffix('"variables":[') + after.removeprefix("],"),
    ]


def test_a_job_that_was_made_here_is_written() -> None:
    """Such as that of a test, which nobody has sent."""
    got = for_sidecar(Job(id=7, token="t", variables=(Variable(key="K"),)), instance="i", slot=0, ca_chain="")
    assert [each.key for each in decode_job(got).variables] == [*OURS[:2], "K"]


def test_a_job_in_another_encoding_is_understood() -> None:
    """JSON may be in UTF-16; what goes on is in UTF-8, as everybody reads it."""
    raw = json.dumps({"id": 7, "token": "t", "new": "é"}, ensure_ascii=False).encode("utf-16")
    got = for_sidecar(decode_job(raw), instance="i", slot=0, ca_chain="")
    assert json.loads(got)["new"] == "é"
    assert "é".encode() in got
