"""Events on their way to systemd's journal: all fields, whatever is in them; nobody waits for it if it hangs."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskscaler.cli import _journald
from taskscaler.cli._journald import LONGEST_EVENT, LONGEST_VALUE, JournalHandler, encode, field_name, is_journal
from taskscaler.cli._log import logging_on
from taskscaler.cli._log_formats import JournalFormatter
from tests.taskscaler.journald import FakeJournal, parse

log = logging.getLogger("taskscaler.test")


@given(
    st.dictionaries(st.from_regex(r"[a-z_][a-z0-9_.-]{0,70}", fullmatch=True).map(field_name), st.text(), max_size=8)
)
def test_what_is_encoded_is_what_the_journal_reads(fields: dict[str, str]) -> None:
    """Each field, with any name and any text, of one line or many."""
    expected = {name: value.encode(errors="backslashreplace").decode() for name, value in fields.items()}
    assert parse(encode(fields)) == expected


@given(st.lists(st.integers(0, 3 * LONGEST_VALUE), max_size=12), st.sampled_from(["a", "\n", "é"]))
def test_an_event_has_a_bound(sizes: list[int], letter: str) -> None:
    """It fits into a datagram, and can be read, however much is in it."""
    sent = encode({f"F{number}": letter * size for number, size in enumerate(sizes)})
    assert len(sent) <= LONGEST_EVENT
    for value in parse(sent).values():
        assert len(value.encode()) <= LONGEST_VALUE + len(" [cut off]")


@contextmanager
def logging_into(journal: Path, otherwise: StringIO) -> Iterator[JournalHandler]:
    """Log to a journal; what it cannot have goes elsewhere."""
    stream = logging.StreamHandler(otherwise)
    stream.setFormatter(JournalFormatter())
    handler = JournalHandler(stream, str(journal))
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    try:
        yield handler
    finally:
        log.removeHandler(handler)
        log.setLevel(logging.NOTSET)
        handler.close()


def test_each_field_is_one_of_the_journal(tmp_path: Path) -> None:
    """Behind our own prefix, beside the level and a message for people; a traceback is part of that."""
    with closing(FakeJournal(tmp_path / "socket")) as journal, logging_into(journal.path, StringIO()):
        log.warning("update_failed", extra={"pool": "spot", "error": "two\nlines", "asked": 3})
        try:
            raise ValueError("deep")
        except ValueError:
            log.exception("job_stuck", extra={"job": 7})
        update, stuck = journal.read()
    assert update == {
        "MESSAGE": "update_failed pool='spot' error='two\\nlines' asked=3",
        "PRIORITY": "4",
        "SYSLOG_IDENTIFIER": "taskscaler",
        "TASKSCALER_EVENT": "update_failed",
        "TASKSCALER_LOGGER": "taskscaler.test",
        "TASKSCALER_POOL": "spot",
        "TASKSCALER_ERROR": "two\nlines",
        "TASKSCALER_ASKED": "3",
    }
    assert stuck["PRIORITY"] == "3"
    assert stuck["MESSAGE"].splitlines()[-1] == "ValueError: deep"


def test_without_a_journal_events_go_to_standard_error(tmp_path: Path) -> None:
    """Also if it goes away in between; one that comes back has the next."""
    otherwise, place = StringIO(), tmp_path / "socket"
    with logging_into(place, otherwise):
        log.info("first")
        with closing(FakeJournal(place)) as journal:
            log.info("second")
            assert [each["TASKSCALER_EVENT"] for each in journal.read()] == ["second"]
        log.info("third")
    assert otherwise.getvalue() == "<6>taskscaler.test first\n<6>taskscaler.test third\n"


def test_a_journal_that_hangs_holds_up_nobody_and_is_told_what_it_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is waited for once, for a moment; once it reads again, it learns how many events are gone."""
    monkeypatch.setattr(_journald, "PATIENCE", 0.001)
    otherwise = StringIO()
    with closing(FakeJournal(tmp_path / "socket")) as journal, logging_into(journal.path, otherwise) as handler:
        for number in range(5_000):
            log.info("increased", extra={"asked": number})
        lost = handler.lost
        assert lost
        taken = journal.read()
        log.info("increased")
        last, missing = journal.read()
    assert len(taken) + lost == 5_000
    assert (last["TASKSCALER_EVENT"], missing["TASKSCALER_EVENT"]) == ("increased", "events_lost")
    assert (missing["TASKSCALER_EVENTS"], missing["PRIORITY"]) == (str(lost), "4")
    assert not otherwise.getvalue()


def test_only_a_stream_that_systemd_names_leads_to_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that was inherited by a process whose output goes elsewhere does not count."""
    with (tmp_path / "stream").open("w") as stream, (tmp_path / "other").open("w") as other:
        status = os.fstat(stream.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino}")
        assert is_journal(stream)
        assert not is_journal(other)
        assert not is_journal(StringIO())
        monkeypatch.delenv("JOURNAL_STREAM")
        assert not is_journal(stream)


@pytest.mark.parametrize("style", ["journal", "text"])
def test_the_protocol_is_spoken_where_it_is_asked_for(
    style: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only with that format, and only if standard error leads there."""
    with closing(FakeJournal(tmp_path / "socket")) as journal, (tmp_path / "stream").open("w+") as stream:
        monkeypatch.setattr(_journald, "SOCKET", str(journal.path))
        status = os.fstat(stream.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino}")
        with logging_on(stream, style=style):  # type: ignore[arg-type]
            log.info("increased")
        stream.seek(0)
        assert len(journal.read()) == (style == "journal")
        assert bool(stream.read()) == (style == "text")


JOURNALD = Path("/lib/systemd/systemd-journald")

REAL = """
mount -t tmpfs none /run && mkdir -p /run/systemd/journal /run/log/journal
{journald} & journald=$!
until test -S /run/systemd/journal/stdout; do sleep 0.05; done
systemd-cat {python} -c '{program}'
journalctl --sync
journalctl -o json --no-pager -p warning TASKSCALER_EVENT=update_failed
kill $journald
"""

PROGRAM = """
import logging, os, sys
from taskscaler.cli._log import logging_on
status = os.fstat(2)
os.environ["JOURNAL_STREAM"] = f"{status.st_dev}:{status.st_ino}"
with logging_on(sys.stderr, style="journal"):
    logging.getLogger("taskscaler").warning("update_failed", extra={"pool": "spot", "error": "a\\nb"})
    logging.getLogger("taskscaler").info("update_failed", extra={"pool": "info"})
"""


@pytest.mark.slow
@pytest.mark.needs("journalctl", "systemd-cat", "unshare", "mount")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a systemd-journald apart from the machine's")
def test_a_real_journal_finds_events_by_their_fields() -> None:
    """journalctl, asked for an event and a level, gives that one, with its fields."""
    script = REAL.format(journald=JOURNALD, python=sys.executable, program=PROGRAM)
    done = subprocess.run(
        ["/usr/bin/unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", script],
        capture_output=True,
        text=True,
        check=False,
    )
    (event,) = map(json.loads, done.stdout.splitlines())
    assert event["MESSAGE"] == "update_failed pool='spot' error='a\\nb'", done.stderr
    assert (event["TASKSCALER_ERROR"], event["_TRANSPORT"]) == ("a\nb", "journal")
