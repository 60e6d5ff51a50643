"""Calls a function on an instance. Sent there as text, to any Python from 3.8: imports nothing of ours."""

import importlib
import json
import sys
import traceback
from functools import reduce
from pathlib import Path
from typing import Any

RESULT = "taskscaler-result.json"
"""What it leaves in the working directory: ``{"value": …}`` or ``{"error": …, "traceback": …}``."""


def main(request: str) -> None:
    """Carry out a request: a JSON array of the reference, the positional and the named arguments."""
    here = Path.cwd()
    sys.path[0] = str(here)  # beside the script are those of other slots
    reference, args, kwargs = json.loads(request)
    try:
        module, _, name = reference.partition(":")
        found: Any = importlib.import_module(module)
        function = reduce(getattr, name.split("."), found)
        answer = json.dumps({"value": function(*args, **kwargs)})
    except Exception as error:  # noqa: BLE001  (whatever it raises is the answer)
        why = traceback.format_exception_only(type(error), error)[-1].strip()
        answer = json.dumps({"error": why, "traceback": traceback.format_exc()})
    (here / RESULT).write_text(answer)
    sys.exit("error" in json.loads(answer))
