"""``taskscaler compare``: prints what several fleets would have made of the same jobs."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from attrs import asdict, evolve
from rich.console import Console

from fleeting.cli import EXPECTED, FAILED, SUCCEEDED, WRONG, report_errors
from fleeting.errors import WrongArguments
from fleeting.plugins import span, write_whole
from taskscaler._errors import SimulationStuck
from taskscaler._wording import counted
from taskscaler.cli._answer_of import Setting, read_fleet, read_setting
from taskscaler.cli._console import PatientConsole
from taskscaler.cli._paragraphs import Paragraphs
from taskscaler.cli._text import amount
from taskscaler.cli._what_if import Question
from taskscaler.simulation import Fleet
from taskscaler.simulation._compare import Comparison, Entry, compare
from taskscaler.simulation._policies import parse_policy, write_policy

VERSION = 1
"""Of what ``--json`` prints; raised when a key changes its meaning or goes."""

CLAIRVOYANT = "clairvoyant"
ALWAYS_MAX = "always the peak's size"


def compare_files(
    question: Question, others: Sequence[Path], policies: Sequence[str], *, as_json: bool, report: Path | None
) -> int:
    """Simulate all that is asked about, print what came of it, and return the exit status."""
    try:
        setting = read_setting(question)
        fleets = _fleets(question, setting, others, policies)
        if report is not None:
            from taskscaler.simulation._page import check_drawing

            check_drawing()
        with Console(stderr=True).status(f"simulating {counted(len(fleets), 'fleet')} …"):
            comparison = compare(fleets, setting.jobs, environment=setting.environment, seed=question.seed)
        if report is not None:
            from taskscaler.simulation._frontier import frontier_page

            text = frontier_page("Cost against waiting", setting.rows(), comparison, table(comparison))
            write_whole(report, text.encode(errors="replace"))
    except SimulationStuck as error:
        return report_errors([error], FAILED)
    except EXPECTED as error:
        return report_errors([error], WRONG)
    if as_json:
        print(json.dumps(as_data(setting, comparison), indent=2))  # noqa: T201  (what was asked for)
        return SUCCEEDED
    paragraphs = Paragraphs(PatientConsole())
    paragraphs.add(*setting.rows())
    for number, line in enumerate(aligned([*table(comparison)])):
        (paragraphs.go_on if number else paragraphs.add)(("", line))
    best = [entry.name for entry in comparison.frontier]
    knows = f"knows all jobs in advance and lets none wait; a boot takes {span(comparison.boot)}"
    paragraphs.add(
        ("frontier", "; ".join(best) or "none: every fleet refuses jobs"),
        (CLAIRVOYANT, f"{knows}. A fleet that lets jobs wait can cost less"),
    )
    if report is not None:
        paragraphs.add(("report", str(report)))
    return SUCCEEDED


def _fleets(question: Question, setting: Setting, others: Sequence[Path], policies: Sequence[str]) -> dict[str, Fleet]:
    """All fleets by name. Raises WrongArguments if two are one, or a policy is none."""
    named = [(str(question.fleet), setting.fleet), *((str(path), read_fleet(path, question)) for path in others)]
    try:
        parsed = [parse_policy(text) for text in policies]
    except ValueError as error:
        raise WrongArguments(f"--policy: {error}") from error
    named += [(write_policy(policy), evolve(setting.fleet, policies=(policy,))) for policy in parsed]
    fleets = dict(named)
    if len(fleets) < len(named):
        names = [name for name, _ in named]
        twice = next(name for name in names if names.count(name) > 1)
        raise WrongArguments(f"{twice} is given twice; name each fleet and each policy once")
    return fleets


def table(comparison: Comparison) -> Iterator[list[str]]:
    """Give the table: its head, a line for each fleet, and one for each bound."""
    money = comparison.currency
    head = ["", "hours", "× clairvoyant", "bought", "undone", "peak", "p50", "p95", "p99"]  # noqa: RUF001  (it is "times")
    refuses = any(entry.outcome.refused for entry in comparison.entries)
    head += ["refused"] if refuses else []
    yield [*head, money] if money else head
    for entry in comparison.entries:
        waits = entry.outcome.waits
        cells = [
            entry.name,
            amount(entry.outcome.instance_hours),
            f"{comparison.times_the_bound(entry):.2f}",
            f"{entry.outcome.bought:,}",
            "" if entry.outcome.undone_share is None else f"{entry.outcome.undone_share:.0%}",
            f"{entry.outcome.peak_instances:,}",
            *(span(waits.quantile(share)) for share in (0.5, 0.95, 0.99)),
            *([f"{entry.outcome.refused:,}"] if refuses else []),
        ]
        yield [*cells, amount(comparison.cost(entry))] if money else cells
    for name, bound in ((CLAIRVOYANT, comparison.clairvoyant), (ALWAYS_MAX, comparison.always_max)):
        hours = comparison.clairvoyant.instance_hours
        times = f"{bound.instance_hours / hours:.2f}" if hours else "1.00"
        cells = [
            name,
            amount(bound.instance_hours),
            times,
            f"{bound.bought:,}",
            "",
            f"{bound.peak:,}",
            *["0s"] * 3,
            *["0"] * refuses,
        ]
        yield [*cells, ""] if money else cells


def aligned(cells: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines of a table: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        first, *others = row
        rest = (f"{cell:>{width}}" for cell, width in zip(others, widths[1:], strict=True))
        yield "  ".join([f"{first:<{widths[0]}}", *rest]).rstrip()


def as_data(setting: Setting, comparison: Comparison) -> Mapping[str, object]:
    """Give all of it to programs; durations are seconds."""
    best = comparison.frontier
    return {
        "version": VERSION,
        "jobs": len(setting.jobs),
        "boot": comparison.boot,
        "currency": comparison.currency,
        "clairvoyant": asdict(comparison.clairvoyant),
        "always_max": asdict(comparison.always_max),
        "fleets": [entry_as_data(comparison, entry, frontier=entry in best) for entry in comparison.entries],
        "notes": [*setting.notes],
    }


def entry_as_data(comparison: Comparison, entry: Entry, *, frontier: bool) -> Mapping[str, object]:
    """Give one fleet to programs."""
    outcome = entry.outcome
    return {
        "name": entry.name,
        "instance_hours": outcome.instance_hours,
        "billed_hours": outcome.billed_hours,
        "times_clairvoyant": comparison.times_the_bound(entry),
        "cost": outcome.cost,
        "bought": outcome.bought,
        "undone_share": outcome.undone_share,
        "peak": outcome.peak_instances,
        "waits": {f"{share:g}": outcome.waits.quantile(share) for share in (0.5, 0.95, 0.99)},
        "mean_wait": outcome.waits.mean,
        "refused": outcome.refused,
        "frontier": frontier,
    }
