"""``taskscaler explain``: answers about a batch from its results, also while it runs."""

import json
from datetime import UTC, datetime
from pathlib import Path

from fleeting.cli import EXPECTED, SUCCEEDED, WRONG, report_errors
from taskscaler._recorded_run import read_run
from taskscaler.batch._select import is_name, select_one
from taskscaler.cli._console import PatientConsole
from taskscaler.cli._paragraphs import Paragraphs
from taskscaler.diagnose._answer import Answer
from taskscaler.diagnose._explain_run import explain_instance_of, explain_job, explain_run


def explain_results(directory: Path, *, job: str | None, instance: str | None, as_json: bool) -> int:
    """Explain the batch whose results are in *directory*, or one job or instance of it; return the exit status."""
    try:
        explanation = _explain(directory, job, instance)
    except EXPECTED as error:
        return report_errors([error], WRONG)
    console = PatientConsole()
    if as_json:
        text = json.dumps(explanation.as_dict(), indent=2, allow_nan=False)
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    else:
        Paragraphs(console).add(*explanation.rows())
    return SUCCEEDED


def _explain(directory: Path, job: str | None, instance: str | None) -> Answer:
    run, now = read_run(directory), datetime.now(UTC).timestamp()
    if job is not None:
        return explain_job(run, job if is_name(job) else select_one(list(run.jobs), job), now)
    if instance is not None:
        return explain_instance_of(run, instance, now)
    return explain_run(run, now)
