"""Jobs as GitLab hands them out, as far as steps need them: what runs, and the job's variables.

Source: `lib/api/entities/ci/job_request` of GitLab; the key `run` is a string that has JSON.
"""

import json
from collections.abc import Mapping
from typing import Any

from attrs import frozen

from job_steps._definitions import Function
from job_steps._errors import StepsInvalid
from job_steps._reading import read_steps
from job_steps._run import Variable

MAX_PAYLOAD = 16 * 1024 * 1024
"""Bytes of one payload."""


@frozen
class Payload:
    """What of a job is about steps."""

    function: Function
    variables: tuple[Variable, ...]
    name: str
    """The job's, for people."""


def read_payload(data: bytes, *, source: str) -> Payload:
    """Read the answer to `POST /api/v4/jobs/request`.

    Raises:
        StepsInvalid: It is not one, or its job has no steps.
    """
    try:
        if len(data) > MAX_PAYLOAD:
            raise ValueError(f"{len(data)} bytes; at most {MAX_PAYLOAD} are read")
        payload = json.loads(data)
        if not isinstance(payload, dict):
            raise ValueError("expected the JSON object of a job, as GitLab's `jobs/request` answers it")
        run = payload.get("run")
        if not run:
            has = "a script" if payload.get("steps") else "nothing to run"
            raise ValueError(f"the job has {has}, and no `run`; only jobs with `run` can be replayed")
        steps = run if isinstance(run, str) else json.dumps(run)
        variables = tuple(_variable(each) for each in payload.get("variables") or ())
        job = payload.get("job_info") or {}
        name = str(job.get("name") or payload.get("id") or "job")
    except RecursionError:
        raise StepsInvalid("JSON with too many levels", source=source, line=1) from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StepsInvalid(_wrong(error), source=source, line=1) from error
    return Payload(read_steps(steps, source=f"{source}: run"), variables, name)


def _variable(data: Mapping[str, Any]) -> Variable:
    key, value = data["key"], data.get("value", "")
    if not isinstance(key, str) or not isinstance(value, str):
        raise TypeError("a variable whose key or value is not a string")
    return Variable(key=key, value=value, is_file=data.get("file") is True, is_masked=data.get("masked") is True)


def _wrong(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON: {error.msg} (line {error.lineno})"
    return f"the variable without {error}" if isinstance(error, KeyError) else str(error)
