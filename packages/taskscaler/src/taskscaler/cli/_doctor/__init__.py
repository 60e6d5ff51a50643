"""``taskscaler doctor``: looks at what a fleet needs, says what is wrong and what to do; changes nothing."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, redirect_stderr, redirect_stdout, suppress
from functools import partial
from pathlib import Path
from typing import IO

import anyio
from attrs import define, field, frozen

from fleeting import FleetingError
from fleeting.cli import FAILED, SUCCEEDED, fitted, outcome
from fleeting.config import read_toml
from taskscaler._state import default_directory
from taskscaler._wording import counted
from taskscaler.cli._doctor import _host, _plugins, _state
from taskscaler.cli._doctor._checks import GRACE, Check, Checks, Report
from taskscaler.cli._doctor._finding import VERSION, Finding, Grade, Veil, of_error, worst
from taskscaler.cli._doctor._pool import PoolLook
from taskscaler.cli._log import logging_to
from taskscaler.cli._look import PATIENCE
from taskscaler.cli._subject import Subject, read_subject

INDENT = " " * 9
"""Where the text of a line begins."""


def examine(file: Path | None, *, runner: str | None, offline: bool, as_json: bool, patience: float = PATIENCE) -> int:
    """Look at everything, print what is found, and return the exit status.

    Args:
        file: A jobs file, a fleet's, or GitLab's ``config.toml``. None: only this machine is looked at, with all
            plugins that are installed.
        runner: The name of the runner, in a ``config.toml`` with several.
        offline: Whether neither the cloud nor an instance is asked.
        as_json: Whether to print JSON, for programs, once everything is known.
        patience: Seconds for each check.
    """
    checks = Checks()
    show = _Shown(sys.stdout, as_json=as_json)
    doctor = _Doctor(file, runner, checks, show, offline=offline, patience=patience)

    def run() -> int:
        with ExitStack() as quiet:  # what plugins print is not a finding, and may be a secret
            nowhere = quiet.enter_context(Path(os.devnull).open("w"))
            for context in (redirect_stdout(nowhere), redirect_stderr(nowhere), logging_to(None)):
                quiet.enter_context(context)
            anyio.run(doctor.run)
        return show.close()

    status = outcome(run)
    if checks.hangs:  # the interpreter would wait for that thread
        show.flush()
        os._exit(status)
    return status


@define
class _Shown:
    """Prints findings as they come, or all at once for programs."""

    _stream: IO[str]
    _as_json: bool = field(kw_only=True)
    veil: Veil = field(factory=lambda: Veil.over({}, os.environ), init=False)
    _findings: list[Finding] = field(factory=list, init=False)

    def __call__(self, finding: Finding) -> None:
        """Print it, or keep it."""
        finding = self.veil(finding)
        self._findings.append(finding)
        if not self._as_json:
            self._print(fitted(str(finding), self._stream, indent=INDENT))

    def close(self) -> int:
        """Print the sum of it; return the exit status."""
        grade = worst(self._findings)
        if self._as_json:
            found = [finding.as_dict() for finding in self._findings]
            self._print(json.dumps({"version": VERSION, "grade": grade.value, "findings": found}, indent=2))
        else:
            count = {each: sum(finding.grade is each for finding in self._findings) for each in Grade}
            problems, warnings = (counted(count[each], each.value) for each in (Grade.PROBLEM, Grade.WARNING))
            self._print(f"\n{problems}, {warnings}, {count[Grade.OK]} ok")
        return FAILED if grade is Grade.PROBLEM else SUCCEEDED

    def flush(self) -> None:
        """Have the last line read, if anybody reads."""
        with suppress(OSError):
            self._stream.flush()

    def _print(self, text: str) -> None:
        try:
            self._stream.write(f"{text}\n")
            self._stream.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())  # else the interpreter's last flush fails


@frozen
class _Doctor:
    """Knows what is to be looked at."""

    file: Path | None
    runner: str | None
    checks: Checks
    show: "_Shown"
    offline: bool = field(kw_only=True)
    patience: float = field(kw_only=True)

    async def run(self) -> None:
        """Read the file first: it says what else there is to look at."""
        subjects: list[Subject] = []
        if self.file is not None:
            await self.checks.run([self._check("file", partial(self._read, self.file, subjects))], self.show)
        subject = subjects[0] if subjects else None
        await self.checks.run([*self._of_host(subject)], self.show)  # first: groups need the plugins, which load slowly
        await self.checks.run([*self._of_fleet(subject)], self.show)

    def _read(self, path: Path, subjects: list[Subject], report: Report) -> None:
        try:
            _, data = read_toml(path)
            self.show.veil = Veil.over(data, os.environ)
            subject = read_subject(path, self.runner)
            keys = frozenset(_plugins.secret_keys(subject.fleet.all_pools if subject.groups else ()))
            self.show.veil = Veil.over(data, os.environ, keys)
        except Exception as error:  # noqa: BLE001  (its plugins', too)
            for finding in of_error("file", error):
                report(finding)
            return
        subjects.append(subject)
        report(Finding(check="file", grade=Grade.OK, found=f"{path} is valid"))
        for label, sentence in subject.rows:
            if label in ("note", "unsupported"):
                found, _, do = sentence.partition("; ")
                report(Finding(check="file", grade=Grade.WARNING, found=found, do=do))
        if subject.missing is not None:
            for finding in of_error("plugin", subject.missing):
                report(finding)

    def _of_host(self, subject: Subject | None) -> Iterator[Check]:
        yield self._look("python", _host.look_at_python)
        yield self._look("versions", _host.look_at_versions)
        yield self._look("clock", _host.look_at_clock)
        yield self._look("extras", _host.look_at_extras)
        plugins = _plugins.installed_plugins() if self.file is None else ()
        if subject is not None:
            plugins = _plugins.needed_connectors(subject.fleet.all_pools)
        for plugin in plugins:
            yield Check("plugin", plugin.run, self.patience, about=f"{plugin.what}: ")
        yield from self._of_state(subject)
        yield self._look("results", partial(_state.look_at_results, Path.cwd()))

    def _of_state(self, subject: Subject | None) -> Iterator[Check]:
        try:
            directory = _state_of(subject)
        except FleetingError as error:
            yield self._look("state", partial(of_error, "state", error))
            return
        yield self._look("state", partial(_state.look_at_state, directory))
        if directory is not None:
            yield self._look("managers", partial(_state.look_at_managers, directory))

    def _of_fleet(self, subject: Subject | None) -> Iterator[Check]:
        if subject is None:
            return
        if self.offline:
            finding = Finding(check="group", grade=Grade.OK, found="not looked at: --offline")
            yield self._look("group", lambda: [finding])
            return
        state = None
        with suppress(FleetingError):  # which has a line of its own
            state = _state_of(subject)
        for pool, group in zip(subject.fleet.all_pools, subject.groups, strict=False):
            name = pool.name if subject.fleet.pools else ""
            look = PoolLook(pool=pool, group=group, name=name, state=state, patience=self.patience)
            yield Check("group", look.run, 2 * self.patience + GRACE, name, doing=look.under_way)

    def _look(self, name: str, look: Callable[[], Iterable[Finding]]) -> Check:
        def run(report: Report) -> None:
            for finding in look():
                report(finding)

        return self._check(name, run)

    def _check(self, name: str, run: Callable[[Report], None]) -> Check:
        return Check(name, run, self.patience)


def _state_of(subject: Subject | None) -> Path | None:
    """Where the fleet's state is kept, or by default any fleet's; None: nowhere.

    Raises:
        JournalError: The user has no home directory.
    """
    if subject is None:
        return default_directory()
    storage = subject.fleet.state_storage
    if not storage.enabled:
        return None
    return default_directory() if storage.dir is None else Path(storage.dir)
