"""Reads what a `Question` asks about: the file of the fleet, the jobs, and what the cloud is like."""

from collections.abc import Callable, Iterator
from math import inf
from pathlib import Path
from typing import TypeVar

from attrs import evolve, frozen

from fleeting.errors import WrongArguments
from fleeting.plugins import span
from taskscaler._wording import counted, enumerated, iso
from taskscaler.cli._paragraphs import Row
from taskscaler.cli._subject import read_subject
from taskscaler.cli._what_if import Question
from taskscaler.simulation import Environment, Fleet, Jobs, fit, parse_columns, parse_synthetic, read_trace
from taskscaler.simulation._cells import read_time
from taskscaler.simulation._given import in_words, with_given

T = TypeVar("T")

OLD = 1e8
"""Seconds since the epoch: in 1973. Jobs that begin earlier have times since any."""


@frozen(kw_only=True)
class Setting:
    """What is simulated."""

    fleet: Fleet
    jobs: Jobs
    environment: Environment
    notes: tuple[str, ...]
    """What was left out or found, in sentences."""

    def rows(self) -> Iterator[Row]:
        """Say what it is."""
        jobs = self.jobs
        yield (
            "jobs",
            (
                f"{len(jobs):,} from {iso(jobs.begins)[:19]}Z on, over {span(jobs.ends - jobs.begins)};"
                f" they run for {span(jobs.work / len(jobs))} on average"
            ),
        )
        yield from (("note", note) for note in self.notes)
        words = {pool.name: in_words(self.environment.of(pool.name)) for pool in self.fleet.pools}
        if len(words) == 1:
            yield "cloud", next(iter(words.values()))
        else:
            yield from (("cloud", f"{name}: {what}") for name, what in words.items())


def read_setting(question: Question) -> Setting:
    """Read it all.

    Raises:
        WrongArguments: An option is wrong.
        ConfigError, PluginNotFound, TraceUnreadable, OSError: A file is.
    """
    fleet = read_fleet(question.fleet, question)
    notes: list[str] = []
    try:
        if question.trace is not None:
            columns = _option("--columns", parse_columns, question.columns) if question.columns is not None else {}
            trace = read_trace(question.trace, columns)
            jobs = trace.jobs
            notes += trace.notes
        else:
            jobs = _option("--synthetic", parse_synthetic, question.synthetic or "").make(question.seed)
        jobs = _between(jobs, question)
        environment, found = fit(question.fit) if question.fit else (Environment(), [])
        notes += [f"fitted {each}" for each in found]
        given = {field: texts for field, texts in question.cloud.items() if texts}
        _check_fitted(environment, fleet)
        environment = with_given(environment, given, [pool.name for pool in fleet.pools])
    except ValueError as error:
        raise WrongArguments(str(error)) from error
    return Setting(fleet=fleet, jobs=jobs, environment=environment, notes=tuple(notes))


def _check_fitted(environment: Environment, fleet: Fleet) -> None:
    """See that what was fitted is of use: the one pool of a run stands for any, several by their names alone."""
    strange = [name for name in environment.pools if name not in {pool.name for pool in fleet.pools}]
    if strange and len(environment.pools) > 1:
        names, own = enumerated(strange), enumerated([pool.name for pool in fleet.pools])
        raise ValueError(f"--fit: the results have the pools {names}, and the fleet only {own}; name them alike")


def read_fleet(path: Path, question: Question) -> Fleet:
    """Read one fleet. Raises ConfigError, PluginNotFound or OSError."""
    fleet = Fleet.of(read_subject(path, question.runner).fleet)
    return fleet if question.acquire_timeout is None else evolve(fleet, acquire_timeout=question.acquire_timeout)


def _between(jobs: Jobs, question: Question) -> Jobs:
    """Those in the time that was asked for."""
    if question.since is None and question.until is None:
        return jobs
    since = -inf if question.since is None else _time("--since", question.since, jobs)
    until = inf if question.until is None else _time("--until", question.until, jobs)
    some = jobs.between(since, until)
    if not len(some):
        whole = f"the {counted(len(jobs), 'job')} come from {iso(jobs.begins)[:19]}Z to {iso(jobs.ends)[:19]}Z"
        raise ValueError(f"no job is submitted between --since and --until; {whole}")
    return some


def _time(option: str, text: str, jobs: Jobs) -> float:
    try:
        at = read_time(text)
    except ValueError as error:
        raise ValueError(f"{option}: expected {error}, found {text!r}") from None
    if abs(at) < OLD <= jobs.begins:  # a year, or a date without its dashes
        raise ValueError(f"{option}: expected a time such as {iso(jobs.begins)[:19]}Z, found {text!r}")
    return at


def _option(option: str, read: Callable[[str], T], text: str) -> T:
    try:
        return read(text)
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from error
