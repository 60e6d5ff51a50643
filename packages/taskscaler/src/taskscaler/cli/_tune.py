"""``taskscaler tune``: prints the cheapest policy that meets a waiting target, and how sure that is."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import asdict, evolve, frozen
from rich.console import Console

from fleeting.cli import EXPECTED, FAILED, SUCCEEDED, WRONG, report_errors
from fleeting.config import read_toml
from fleeting.errors import WrongArguments
from fleeting.plugins import format_duration, span
from taskscaler._errors import SimulationStuck
from taskscaler._types import Policy
from taskscaler._wording import counted, enumerated, iso
from taskscaler.cli._answer_of import Setting, read_setting
from taskscaler.cli._compare import aligned, entry_as_data, table
from taskscaler.cli._console import PatientConsole
from taskscaler.cli._paragraphs import Paragraphs, Row
from taskscaler.cli._what_if import Question
from taskscaler.simulation import Jobs, simulate
from taskscaler.simulation._cells import read_time
from taskscaler.simulation._days import DRAWS, FEWEST, days_of
from taskscaler.simulation._given import parse_share
from taskscaler.simulation._judge import Judgement, Parts, judge, parted
from taskscaler.simulation._policies import KEYS, write_policy
from taskscaler.simulation._targets import Target, parse_targets
from taskscaler.simulation._tune import SURE, Candidate, Tuned, cost_of, tune

VERSION = 1
"""Of what ``--json`` prints; raised when a key changes its meaning or goes."""


@frozen(kw_only=True)
class Answer:
    """All that was found."""

    question: Question
    setting: Setting
    targets: Sequence[Target]
    parts: Parts
    tuned: Tuned
    given: tuple[float, bool]
    """What the given fleet costs on the fitted part, and whether it meets the targets there."""

    judged: Judgement

    @property
    def is_met(self) -> bool:
        """Whether all targets are met on both parts."""
        return self.tuned.best.is_met and self.judged.is_met


def tune_file(question: Question, waits: Sequence[str], judge_from: str | None, *, as_json: bool) -> int:
    """Find settings, print them, and return the exit status."""
    try:
        targets = _targets(waits)
        setting = read_setting(question)
        table_name = _table_of(question)
        answer = _find(question, setting, targets, _parts(setting.jobs, judge_from))
    except SimulationStuck as error:
        return report_errors([error], FAILED)
    except EXPECTED as error:
        return report_errors([error], WRONG)
    text = as_toml(answer.tuned.best.policy, table_name)
    if as_json:
        print(json.dumps(as_data(answer, text), indent=2))  # noqa: T201  (what was asked for)
    else:
        _print(answer, text)
    return SUCCEEDED if answer.is_met else FAILED


def _targets(waits: Sequence[str]) -> Sequence[Target]:
    try:
        return parse_targets(waits)
    except ValueError as error:
        raise WrongArguments(f"--wait: {error}") from error


def _parts(jobs: Jobs, judge_from: str | None) -> Parts:
    """Part the jobs where somebody says. Raises WrongArguments."""
    cut = None
    try:
        if judge_from is not None and judge_from.strip().endswith("%"):
            cut = jobs.begins + parse_share(judge_from) * (jobs.ends - jobs.begins)
        elif judge_from is not None:
            cut = read_time(judge_from)
    except ValueError as error:
        expected = f"expected a share such as 60%, or a time such as 2026-01-05T00:00Z, found {judge_from!r}"
        raise WrongArguments(f"--judge-from: {expected}") from error
    try:
        return parted(jobs, cut)
    except ValueError as error:
        raise WrongArguments(str(error)) from error


def _table_of(question: Question) -> str:
    """What policies are called in the file."""
    _, data = read_toml(question.fleet)
    return "runners.autoscaler.policy" if "runners" in data else "autoscaler.policy"


def _find(question: Question, setting: Setting, targets: Sequence[Target], parts: Parts) -> Answer:
    """Fit and judge, and report the progress of it on standard error."""
    environment, seed = setting.environment, question.seed
    with Console(stderr=True).status("simulating the fleet as it is …") as status:
        before = simulate(setting.fleet, parts.fitted, environment=environment, seed=seed)

        def report(simulations: int, best: Candidate) -> None:
            found = write_policy(best.policy) if best.is_met else "none"
            status.update(f"{counted(simulations, 'policy')} simulated; the best so far: {found} …")

        tuned = tune(
            setting.fleet, parts.fitted, targets, since=parts.begins, environment=environment, seed=seed, report=report
        )
        status.update("judging …")
        judged = judge(
            (str(question.fleet), setting.fleet),
            evolve(setting.fleet, policies=(tuned.best.policy,)),
            parts.judged,
            targets,
            since=parts.cut,
            environment=environment,
            seed=seed,
        )
    meets = not before.refused and not any(target.missed_by(target.of(before.waits)) for target in targets)
    return Answer(
        question=question,
        setting=setting,
        targets=targets,
        parts=parts,
        tuned=tuned,
        given=(cost_of(before), meets),
        judged=judged,
    )


# --- for people ------------------------------------------------------------------------------------------


def _print(answer: Answer, text: str) -> None:
    paragraphs = Paragraphs(PatientConsole())
    paragraphs.add(("fleet", str(answer.question.fleet)), *answer.setting.rows())
    paragraphs.add(("target", enumerated([target.in_words() for target in answer.targets])), *_part_rows(answer))
    for number, line in enumerate(aligned([*table(answer.judged.comparison)])):
        (paragraphs.go_on if number else paragraphs.add)(("", line))
    paragraphs.add(*_miss_rows(answer), *_sure_rows(answer))
    paragraphs.add(("settings", f"{_where(answer)}:"))
    paragraphs.console.print()
    paragraphs.console.print(text, end="", markup=False, highlight=False, soft_wrap=True)


def _where(answer: Answer) -> str:
    cost, meets = answer.given
    if meets and cost <= answer.tuned.best.cost:
        return "the file's own meet the target and cost no more; keep them. The best of those that were tried"
    has = len(answer.setting.fleet.policies)
    instead = f", in place of its {counted(has, 'policy') if has > 1 else 'policy'}" if has else ""
    runner = f" for the runner {answer.question.runner}" if answer.question.runner is not None else ""
    return f"put this into {answer.question.fleet}{runner}{instead}"


def _part_rows(answer: Answer) -> Iterator[Row]:
    parts, tuned = answer.parts, answer.tuned
    tried = f"{counted(tuned.simulations, 'simulation')}"
    yield "fitted on", f"{_part(parts.fitted, parts.begins)}, in {tried}"
    yield "judged on", f"{_part(parts.judged, parts.cut)}; all that follows is of these"


def _part(jobs: Jobs, since: float) -> str:
    days = counted(days_of(jobs, since), "day")
    return f"{len(jobs):,} jobs from {iso(jobs.begins)[:19]}Z to {iso(jobs.ends)[:19]}Z, on {days}"


def _miss_rows(answer: Answer) -> Iterator[Row]:
    """Say which target is missed where, and by how much."""
    if not answer.tuned.best.is_met:
        yield "problem", "no settings meet the target on the fitted part; these come closest"
    elif not answer.judged.is_met:
        yield "problem", "the settings meet the target on the fitted part, and miss it on the judged one"
    for where, values in (("fitted", answer.tuned.best.values), ("judged", answer.judged.values)):
        for target, found in zip(answer.targets, values, strict=True):
            if target.missed_by(found):
                more = f"{span(found - target.seconds)} longer than {span(target.seconds)}"
                yield "problem", f"{target.name} is {span(found)} on the {where} part, {more}"
    refused = answer.judged.comparison.entries[-1].outcome.refused
    if refused:
        yield "problem", f"{counted(refused, 'job')} got no slot in time on the judged part; see --acquire-timeout"


def _sure_rows(answer: Answer) -> Iterator[Row]:
    """Say how far other days may differ."""
    for target, fitted, found in zip(answer.targets, answer.tuned.best.values, answer.judged.values, strict=True):
        yield "how sure", f"{target.name} is {span(found)}, and was {span(fitted)} on the fitted part"
    best, judged, sure = answer.tuned.best, answer.judged, answer.judged.certainty
    if best.is_met and not best.suffices and best.share is not None:
        yield (
            "how sure",
            f"they suffice narrowly: in {best.share:.0%} of the draws of the fitted days, not in {SURE:.0%}",
        )
    if sure is None:
        yield "how sure", f"the judged part has {counted(judged.days, 'day')}; to say more takes {FEWEST} or more"
        return
    yield "how sure", f"of {DRAWS:,} draws of the {judged.days} judged days, {sure.share_met:.1%} meet the target"
    for target, (low, high) in zip(answer.targets, sure.values, strict=True):
        yield "how sure", f"in 90% of them, {target.name} is from {span(low)} to {span(high)}"
    low, high = sure.hours
    yield "how sure", f"in 90% of them, the hours are {low:.0%} to {high:.0%} of those of {answer.question.fleet}"


def as_toml(policy: Policy, table_name: str) -> str:
    """Write a policy as it stands in a file: what is not the default, and the first two settings."""
    settings: dict[str, object] = {
        "idle_count": policy.idle_count,
        "idle_time": f'"{format_duration(policy.idle_time)}"',
    }
    if policy.scale_factor:
        settings["scale_factor"] = policy.scale_factor
    if policy.scale_factor_limit:
        settings["scale_factor_limit"] = policy.scale_factor_limit
    if policy.preemptive_mode is not None:
        settings["preemptive_mode"] = str(policy.preemptive_mode).lower()
    if policy.adaptive:
        settings["mode"] = f'"{policy.mode}"'
    return "".join([f"[[{table_name}]]\n", *(f"{key} = {value}\n" for key, value in settings.items())])


# --- for programs ----------------------------------------------------------------------------------------


def as_data(answer: Answer, text: str) -> Mapping[str, object]:
    """Give all of it to programs; durations are seconds, times seconds since the epoch."""
    best, judged, comparison = answer.tuned.best, answer.judged, answer.judged.comparison
    frontier = comparison.frontier
    cost, meets = answer.given
    return {
        "version": VERSION,
        "seed": answer.question.seed,
        "met": answer.is_met,
        "policy": _settings(best.policy),
        "toml": text,
        "targets": [
            {"name": target.name, "at_most": target.seconds, "fitted": fitted, "judged": found}
            for target, fitted, found in zip(answer.targets, best.values, judged.values, strict=True)
        ],
        "fitted": {
            **_as_data(answer.parts.fitted, answer.parts.begins),
            "met": best.is_met,
            "cost": best.cost,
            "share_met": best.share,
            "given": {"cost": cost, "met": meets},
            "simulations": answer.tuned.simulations,
            "tried": [_tried(each) for each in answer.tuned.tried],
        },
        "judged": {
            **_as_data(answer.parts.judged, answer.parts.cut),
            "met": judged.is_met,
            "certainty": None if judged.certainty is None else asdict(judged.certainty),
        },
        "boot": comparison.boot,
        "currency": comparison.currency,
        "fleets": [entry_as_data(comparison, entry, frontier=entry in frontier) for entry in comparison.entries],
        "clairvoyant": asdict(comparison.clairvoyant),
        "always_max": asdict(comparison.always_max),
        "notes": [*answer.setting.notes],
    }


def _as_data(jobs: Jobs, since: float) -> Mapping[str, object]:
    return {"jobs": len(jobs), "begins": jobs.begins, "ends": jobs.ends, "days": days_of(jobs, since)}


def _settings(policy: Policy) -> Mapping[str, Any]:
    return {key: getattr(policy, key) for key in KEYS}


def _tried(candidate: Candidate) -> Mapping[str, object]:
    return {
        **_settings(candidate.policy),
        "cost": candidate.cost,
        "values": [*candidate.values],
        "met": candidate.is_met,
        "share_met": candidate.share,
    }
