"""``taskscaler simulate``: prints what a fleet would have made of some jobs, and what it would have cost."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import asdict
from rich.console import Console

from fleeting.cli import EXPECTED, FAILED, SUCCEEDED, WRONG, report_errors
from fleeting.plugins import span, write_whole
from taskscaler._errors import SimulationStuck
from taskscaler._wording import counted, iso
from taskscaler.cli._answer_of import Setting, read_setting
from taskscaler.cli._console import PatientConsole
from taskscaler.cli._paragraphs import Paragraphs, Row
from taskscaler.cli._text import amount, listed
from taskscaler.cli._what_if import Question
from taskscaler.simulation import Outcome, simulate
from taskscaler.simulation._given import in_words

VERSION = 1
"""Of what ``--json`` prints; raised when a key changes its meaning or goes."""

QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)

MOST_REASONS = 12
"""So many are printed; JSON has all."""


def simulate_file(question: Question, *, as_json: bool, report: Path | None) -> int:
    """Simulate what is asked, print what came of it, and return the exit status."""
    try:
        setting = read_setting(question)
        drawn = report is not None and _drawing()
        with Console(stderr=True).status("simulating …"):
            outcome = simulate(setting.fleet, setting.jobs, environment=setting.environment, seed=question.seed)
        if report is not None and drawn:
            from taskscaler.simulation._page import page

            rows = [*setting.rows(), *outcome_rows(outcome)]
            write_whole(report, page(question.fleet.name, rows, outcome, setting.fleet).encode(errors="replace"))
    except SimulationStuck as error:
        return report_errors([error], FAILED)
    except EXPECTED as error:
        return report_errors([error], WRONG)
    if as_json:
        print(json.dumps(as_data(setting, outcome), indent=2))  # noqa: T201  (what was asked for)
        return SUCCEEDED
    paragraphs = Paragraphs(PatientConsole())
    paragraphs.add(("fleet", str(question.fleet)), *setting.rows())
    paragraphs.add(*outcome_rows(outcome))
    paragraphs.add_if(*reason_rows(outcome))
    if report is not None:
        paragraphs.add(("report", str(report)))
    return SUCCEEDED


def _drawing() -> bool:
    """See that there is something to draw with, before hours are simulated. Raises PicturesMissing."""
    from taskscaler.simulation._page import check_drawing

    check_drawing()
    return True


def outcome_rows(outcome: Outcome) -> Iterator[Row]:
    """Say what came of it."""
    waits = outcome.waits
    ended = [f"{outcome.done:,} done"]
    ended += [f"{outcome.refused:,} got no slot in time"] if outcome.refused else []
    ended += [f"{counted(outcome.interrupted, 'try')} lost"] if outcome.interrupted else []
    yield "ended", f"{listed(ended)}, by {iso(outcome.ended)[:19]}Z"
    if waits.count:
        spread = [f"median {span(waits.quantile(0.5))}"]
        spread += [f"{share * 100:g}% {span(waits.quantile(share))}" for share in QUANTILES[1:]]
        yield "waiting", f"{listed(spread)}, longest {span(waits.max)}, mean {span(waits.mean)}"
        yield "", f"{waits.at_once / waits.count:.1%} got a slot at once; at most {outcome.peak_waiting:,} waited"
    lost = [f"{sum(pool.failed for pool in outcome.pools):,} failed to come"]
    lost += [f"{sum(pool.preempted for pool in outcome.pools):,} taken by the cloud"]
    some = "".join(f", {each}" for each in lost if not each.startswith("0 "))
    yield "instances", f"{outcome.bought:,} bought, at most {outcome.peak_instances:,} at once{some}"
    if outcome.idle_removed:
        again = f"{outcome.undone_share:.1%} of them requested again within a minute"
        yield "removed", f"{outcome.idle_removed:,} idle, {again}"
    yield (
        "paid for",
        (
            f"{amount(outcome.instance_hours)} instance-hours, billed as {amount(outcome.billed_hours)};"
            f" {outcome.utilisation:.1%} of their slots' time in use"
        ),
    )
    if outcome.cost is not None:
        each = f", {amount(outcome.cost / outcome.done)} a job" if outcome.done and outcome.cost else ""
        yield "cost", f"{amount(outcome.cost)} {outcome.currency}".strip() + each
    if len(outcome.pools) > 1:
        for pool in outcome.pools:
            cost = "" if pool.cost is None else f", {amount(pool.cost)} {pool.currency}".rstrip()
            hours = f"{amount(pool.instance_hours)} instance-hours"
            yield "pools", f"{pool.name}: {pool.bought:,} bought, at most {pool.peak:,} at once, {hours}{cost}"


def reason_rows(outcome: Outcome) -> Iterator[Row]:
    """Say what decisions did, and why."""
    reasons = list(outcome.reasons.items())
    for why, reason in reasons[:MOST_REASONS]:
        times = "once" if reason.decisions == 1 else f"{reason.decisions:,} times"
        yield "decisions", f"{times}: {why} ({counted(reason.instances, 'instance')})"
    if len(reasons) > MOST_REASONS:
        yield "decisions", f"and for {counted(len(reasons) - MOST_REASONS, 'more reason')}; --json has all"
    whole = max(outcome.ended - outcome.began, 1.0)
    for why, seconds in outcome.held_back.items():
        yield "held back", f"for {span(seconds)} ({min(1.0, seconds / whole):.1%} of the time): {why}"


def as_data(setting: Setting, outcome: Outcome) -> Mapping[str, object]:
    """Give all of it to programs; durations are seconds, times seconds since the epoch."""
    waits = outcome.waits
    return {
        "version": VERSION,
        "seed": outcome.seed,
        "began": outcome.began,
        "ended": outcome.ended,
        "jobs": {
            "total": outcome.jobs,
            "done": outcome.done,
            "refused": outcome.refused,
            "interrupted": outcome.interrupted,
        },
        "waits": {
            "mean": waits.mean,
            "max": waits.max,
            "at_once": waits.at_once,
            "quantiles": {f"{share:g}": waits.quantile(share) for share in QUANTILES},
            "peak_waiting": outcome.peak_waiting,
        },
        "instances": {
            "bought": outcome.bought,
            "peak": outcome.peak_instances,
            "idle_removed": outcome.idle_removed,
            "undone": outcome.undone,
            "undone_share": outcome.undone_share,
        },
        "instance_hours": outcome.instance_hours,
        "billed_hours": outcome.billed_hours,
        "busy_hours": outcome.busy_hours,
        "slot_hours": outcome.slot_hours,
        "utilisation": outcome.utilisation,
        "cost": outcome.cost,
        "currency": outcome.currency,
        "pools": [{**asdict(pool), "cloud": in_words(setting.environment.of(pool.name))} for pool in outcome.pools],
        "decisions": outcome.decisions,
        "reasons": [{"why": why, **asdict(reason)} for why, reason in outcome.reasons.items()],
        "held_back": dict(outcome.held_back),
        "series": _columns(asdict(outcome.series)),
        "notes": [*setting.notes],
    }


def _columns(series: Mapping[str, Any]) -> Mapping[str, object]:
    return {name: [*column] if isinstance(column, Sequence) else column for name, column in series.items()}
