"""Jobs as GitLab hands them out, as far as steps need them: what runs, and the job's variables.

Source: `lib/api/entities/ci/job_request` of GitLab; the key `run` is a string that has JSON.
"""

import json

from attrs import frozen

from job_steps._definitions import Function
from job_steps._errors import StepsInvalid
from job_steps._reading import read_steps
from job_steps._run import Variable

MAX_PAYLOAD = 16 * 1024 * 1024
"""Bytes of one payload."""

_EXPECTED = "expected the JSON of a job, as GitLab's `jobs/request` answers it"


@frozen
class Payload:
    """What of a job is about steps."""

    function: Function
    variables: tuple[Variable, ...]


def read_payload(data: bytes, *, source: str) -> Payload:
    """Read the answer to `POST /api/v4/jobs/request`.

    Raises:
        StepsInvalid: It is not one, or its job has no steps.
    """
    try:
        if len(data) > MAX_PAYLOAD:
            raise ValueError(f"more than {MAX_PAYLOAD:,} bytes; {_EXPECTED}")
        payload = json.loads(data)
        if not isinstance(payload, dict):
            raise ValueError(f"not a JSON object; {_EXPECTED}")
        run = payload.get("run")
        if not run:
            has = "a script and no `run`" if payload.get("steps") else "no `run`"
            raise ValueError(f"the job has {has}; only jobs with `run` can be replayed")
        steps = run if isinstance(run, str) else json.dumps(run)
        listed = payload.get("variables") or []
        if not isinstance(listed, list):
            raise ValueError("`variables` is not a list; expected objects with `key` and `value` in it")
        variables = tuple(map(_variable, listed))
    except RecursionError:
        raise StepsInvalid("JSON with too many levels", source=source, line=1) from None
    except json.JSONDecodeError as error:
        raise StepsInvalid(f"not JSON ({error.msg}); {_EXPECTED}", source=source, line=error.lineno) from error
    except ValueError as error:
        raise StepsInvalid(str(error), source=source, line=1) from error
    return Payload(read_steps(steps, source=f"{source}: run"), variables)


def _variable(data: object) -> Variable:
    key, value = (data.get("key"), data.get("value", "")) if isinstance(data, dict) else (None, None)
    if not isinstance(data, dict) or not isinstance(key, str) or not isinstance(value, str):
        raise ValueError("one of the `variables` is not an object with `key` and `value`, both strings")
    return Variable(key=key, value=value, is_file=data.get("file") is True, is_masked=data.get("masked") is True)
