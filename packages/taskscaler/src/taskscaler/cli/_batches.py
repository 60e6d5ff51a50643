"""Batches that a daemon owns, from the command line: submit, look, wait and cancel.

A batch is named by its id, or by its results directory if a command of its own runs it.
"""

import os
import signal
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from secrets import token_hex
from shlex import quote
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any

from fleeting import ConfigError
from fleeting.archives import ArchiveRefused, pack, unpack
from fleeting.cli import EXPECTED, FAILED, SUCCEEDED, WRONG, WRONG_FILE, outcome, report_errors
from fleeting.errors import WrongArguments
from taskscaler._batch_id import BATCH_ID, JOB_ID, TICKET, directory_of
from taskscaler._errors import DaemonRefused, NoDaemon
from taskscaler._jobsfile import files_to_submit
from taskscaler._recorded_run import Progress, RecordedRun, is_locked, read_run, runner_of
from taskscaler._socket import Place, find_socket
from taskscaler._wording import counted, iso, used_in_words
from taskscaler.batch import Results
from taskscaler.batch._described import counts_of, record_as_data
from taskscaler.cli._ask import answered, ask, lines_of, pieces_of, show
from taskscaler.cli._console import PatientConsole
from taskscaler.cli._paragraphs import Paragraphs, Row

Pause = Callable[[float], object]
"""Lets so many seconds pass."""

LARGEST = 64 << 30
"""Bytes of results that are fetched, as an archive and unpacked."""

MOST_MEMBERS = 4_000_000
"""Files, directories and links of them."""

PAGE = 1000
"""Jobs that are asked for at once."""

INTERVAL = 0.5
"""Seconds between two looks at a batch of another command, or for a daemon that is being restarted."""

RESTARTING = 60.0
"""Seconds for which a daemon that does not answer may be restarting."""


def submit(path: Path, socket: Place | None, *, as_json: bool, pause: Pause | None = None) -> int:
    """Hand a batch over to a daemon; once, also if the daemon is restarted before its answer is there."""
    try:
        files = {file: path.parent / file for file in (*files_to_submit(path), path.name)}
    except WRONG_FILE as error:
        return report_errors([error], WRONG)
    try:
        data = _submitted(path, files, socket, pause)
    except (ConfigError, WrongArguments) as error:
        return report_errors([error], WRONG)
    except EXPECTED as error:
        return report_errors([error], FAILED)
    return show(lambda: data, _submitted_rows, as_json=as_json)


def _submitted(path: Path, files: Mapping[str, Path], socket: Place | None, pause: Pause | None) -> dict[str, Any]:
    """Send the files; again, if a daemon was there, and its answer was lost: the same request is one batch."""
    asked = {"name": path.name, "request": token_hex(16)}
    missed, begun = 0.0, False

    def archive() -> Iterator[bytes]:
        nonlocal begun
        begun = True  # nothing is read before somebody listens
        try:
            yield from pack(files)
        except OSError as error:
            raise WrongArguments(f"{error.filename or path} cannot be read ({error.strerror or error})") from error

    while True:
        try:
            return ask(socket, "POST", "/batches", timeout=None, params=asked, content=archive())
        except NoDaemon:
            if not begun or missed >= RESTARTING:
                raise
        (pause or Event().wait)(INTERVAL)
        missed += INTERVAL


def list_batches(socket: Place | None, *, as_json: bool) -> int:
    """List the batches of a daemon."""
    return show(partial(ask, socket, "GET", "/batches"), _batch_rows, as_json=as_json)


def list_jobs(given: str, socket: Place | None, *, as_json: bool) -> int:
    """List the jobs of a batch."""
    if status := _refused(given):
        return status
    return show(partial(_jobs_of, given, socket), _job_rows, as_json=as_json)


def wait(given: str, socket: Place | None, *, as_json: bool, pause: Pause | None = None) -> int:
    """Wait until a batch is over, and return how it went."""
    if status := _refused(given):
        return status
    ended: list[bool] = []

    def look() -> dict[str, Any]:
        directory = directory_of(given)
        data = _wait_for_run(directory, pause) if directory else _wait_for_batch(given, socket, pause)
        ended.append(data["state"] == "succeeded")
        return data

    status = show(look, _over_rows, as_json=as_json)
    return status if status or all(ended) else FAILED


def cancel(given: str, socket: Place | None, *, as_json: bool, pause: Pause | None = None) -> int:
    """End a batch: of a daemon, or one that another command runs."""
    directory = directory_of(given)
    if status := _refused(given):
        return status

    def end() -> dict[str, Any]:
        if directory is not None and (id_ := _id_of(directory)) is None:
            return _cancel_run(directory, pause)
        return ask(socket, "POST", "/batch/cancel", json={"batch": given if directory is None else id_}, timeout=60)

    return show(end, _over_rows, as_json=as_json)


def _id_of(directory: Path) -> str | None:
    """Name the batch whose results are in a directory, if it is a daemon's."""
    above = directory.absolute().parent
    return above.name if BATCH_ID.fullmatch(above.name) and (above / TICKET).exists() else None


def _cancel_run(directory: Path, pause: Pause | None) -> dict[str, Any]:
    """End what runs a batch, as a service manager would, and wait until it has let go of it."""
    events = Results(directory).events
    if is_locked(events):
        runner = runner_of(events)
        if runner is None or runner == os.getpid():
            raise WrongArguments(
                f"no process can be found that runs the batch in {directory}; press Ctrl-C where it is"
            )
        os.kill(runner, signal.SIGTERM)
    return _wait_for_run(directory, pause)


def results_of(given: str, socket: Place | None) -> Path:
    """Find the results directory of a batch that a daemon has.

    Raises:
        NoDaemon, DaemonRefused: It does not say.
    """
    found = ask(socket, "GET", "/batch", params={"batch": given, "most": 0})["results"]
    if found is None:
        why = "only the daemon's own user may read the results where they are"
        raise DaemonRefused(f"{why}; use `taskscaler fetch {given}` once the batch is over")
    return Path(found)


def fetch(given: str, output: Path | None, socket: Place | None) -> int:
    """Bring the results of a batch that is over here."""
    target = output or Path("taskscaler-results", given)

    def run() -> int:
        if (directory := directory_of(given)) and directory.exists():
            raise WrongArguments(f"{directory} does not belong to a daemon; its results are here already")
        if directory:
            raise WrongArguments(f"{given!r} is not the id of a batch; `taskscaler jobs` lists all batches")
        if target.exists():
            raise WrongArguments(f"{target} exists already; name another directory with --output")
        target.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as place:
            archive, unpacked = Path(place, "results.tar"), Path(place, "results")
            _download(given, socket, archive)
            unpacked.mkdir(mode=0o700)
            unpack(archive, unpacked, size=LARGEST, members=MOST_MEMBERS)
            unpacked.rename(target)
        Paragraphs(PatientConsole()).add(("results", str(target)), ("next", f"taskscaler report {quote(str(target))}"))
        return SUCCEEDED

    try:
        return outcome(run)
    except ArchiveRefused as error:
        return report_errors([DaemonRefused(f"the results cannot be used ({error}); fetch them again")], FAILED)


def _download(batch: str, socket: Place | None, archive: Path) -> None:
    """Write the archive of a batch's results."""
    place, size = find_socket(socket), 0
    with archive.open("wb") as file, answered(place, "GET", "/batch/results", params={"batch": batch}) as answer:
        for piece in pieces_of(answer, place):
            size += len(piece)
            if size > LARGEST:
                raise DaemonRefused(f"the results are larger than {LARGEST >> 30} GiB; ask the daemon's user for them")
            file.write(piece)


def show_log(
    given: str, job: str, socket: Place | None, *, lines: int, follow: bool, pause: Pause | None = None
) -> int:
    """Show the last lines of a job's log, of a batch that a daemon has; follow it also while that is restarted."""
    from taskscaler.cli._logs import Lines, print_lines

    def run() -> int:
        console, printed, place = PatientConsole(), Lines(), find_socket(socket)
        asked = {"batch": given, "job": job, "lines": str(lines)}
        for piece in _followed(place, asked, pause) if follow else _printed(place, asked):
            print_lines(console, printed.take(piece))
        print_lines(console, printed.rest())
        return SUCCEEDED

    return outcome(run)


def _printed(place: Place, asked: Mapping[str, str]) -> Iterator[bytes]:
    """Give the end of a log, as it is now."""
    with answered(place, "GET", "/batch/log", timeout=60, params=asked) as answer:
        yield from pieces_of(answer, place)


def _followed(place: Place, asked: Mapping[str, str], pause: Pause | None) -> Iterator[bytes]:
    """Give the end of a log, and what follows until the job is over, whichever daemon it runs under."""
    asked = {**asked, "follow": "true", "places": "true"}
    missed, begun = 0.0, False
    while True:
        try:
            with answered(place, "GET", "/batch/log", timeout=None, params=asked) as answer:
                missed, begun = 0.0, True
                for line in lines_of(answer, place):
                    if "over" not in line:
                        asked["after"] = str(line["next"])
                        yield b64decode(line["data"])
                    elif line["over"]:
                        return
        except NoDaemon:
            if not begun or missed >= RESTARTING:
                raise
        (pause or Event().wait)(INTERVAL)
        missed += INTERVAL


def _refused(given: str) -> int:
    """Report what is wrong with a directory; returns the exit status."""
    try:
        if directory := directory_of(given):
            read_run(directory)
    except EXPECTED as error:
        return report_errors([error], WRONG)
    return SUCCEEDED


def _jobs_of(given: str, socket: Place | None) -> dict[str, Any]:
    directory = directory_of(given)
    if directory is not None:
        run = read_run(directory)
        return {**_run_as_data(run), "list": [record_as_data(record) for record in run.jobs.values()]}
    jobs: list[object] = []
    while True:
        data = ask(socket, "GET", "/batch", params={"batch": given, "first": len(jobs), "most": PAGE}, timeout=60)
        jobs += data["list"]
        if not data["list"] or len(jobs) >= data["total"]:
            return {**data, "list": jobs}


def _wait_for_run(directory: Path, pause: Pause | None) -> dict[str, Any]:
    while is_locked(Results(directory).events):
        (pause or Event().wait)(INTERVAL)
    return _run_as_data(read_run(directory))


def _wait_for_batch(given: str, socket: Place | None, pause: Pause | None) -> dict[str, Any]:
    """Wait, also while the daemon is restarted."""
    missed = 0.0
    while True:
        try:
            return ask(socket, "GET", "/batch/wait", params={"batch": given}, timeout=None)
        except NoDaemon:
            if missed >= RESTARTING:
                raise
            (pause or Event().wait)(INTERVAL)
            missed += INTERVAL


def _run_as_data(run: RecordedRun) -> dict[str, Any]:
    """Describe a batch from its results as a daemon describes its own."""
    over = "succeeded" if run.state.succeeded else "failed"
    return {
        "batch": str(run.directory),
        "name": str(run.directory),
        "submitted": iso(run.started),
        "state": over if run.progress is Progress.OVER else run.progress.value,
        "why": "",
        "jobs": counts_of(run.state),
        "total": len(run.state),
    }


def _submitted_rows(data: Mapping[str, Any]) -> Iterator[Row]:
    batch = data["batch"]
    yield "batch", f"{batch}, with {counted(data['jobs'], 'job')}"
    yield "next", f"taskscaler wait {batch}, taskscaler jobs {batch}, taskscaler logs -f {batch} JOB"


def _batch_rows(data: Mapping[str, Any]) -> Iterator[Row]:
    if not data["batches"]:
        yield "batches", "none"
    for each in data["batches"]:
        why = f" ({each['why']})" if each["why"] else ""
        yield each["batch"], f"{each['name']}, {each['state']}{why}{_counts_of(each)}; submitted {each['submitted']}"


def _over_rows(data: Mapping[str, Any]) -> Iterator[Row]:
    why = f" ({data['why']})" if data["why"] else ""
    yield data["state"], f"{data['batch']}{why}{_counts_of(data)}"


def _job_rows(data: Mapping[str, Any]) -> Iterator[Row]:
    yield "batch", f"{data['batch']}, {data['state']}{_counts_of(data)}"
    for job in data["list"]:
        used = used_in_words(job.get("cpu_time"), job.get("peak_memory"), job.get("disk_written"))
        is_said = str(job["exit_code"]) in job["why"].split()  # as in "exited with 3"
        parts = [
            *([f"on {job['instance']}"] if job["instance"] else []),
            *([f"exit code {job['exit_code']}"] if job["exit_code"] and not is_said else []),
            *([f"{job['tries']} tries"] if job["tries"] > 1 else []),
            *([job["why"]] if job["why"] else []),
            *([used] if used else []),
        ]
        yield job["state"].replace("_", " "), f"{job['name']}{': ' if parts else ''}{', '.join(parts)}"


def _counts_of(data: Mapping[str, Any]) -> str:
    """Say how many jobs of a batch stand where; of what is one job, its state says it all."""
    return "" if JOB_ID.fullmatch(data["batch"]) else f": {_counts(data)}"


def _counts(data: Mapping[str, Any]) -> str:
    """Say how many jobs stand where."""
    counts = data["jobs"]
    total = sum(counts.values())
    parts = [f"{number} {state.replace('_', ' ')}" for state, number in counts.items()]
    return f"{counted(total, 'job')} ({', '.join(parts)})" if parts else "no job has started"
