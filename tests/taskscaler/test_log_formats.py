"""How a daemon writes its events: for people, for programs, for systemd's journal; the same events in each."""

import json
import logging
import os
import signal
import subprocess
from io import StringIO
from math import inf
from pathlib import Path

import anyio
import pytest

from fleeting import Capability, ProviderError
from fleeting.testing import DecreaseFault, FakeCloud, IncreaseFault, virtual_time
from taskscaler import Policy
from taskscaler._fleet_log import FleetLog
from taskscaler._observe import DecisionEvent, InstanceEvent, LeaseEvent
from taskscaler.cli._log import logging_on, logging_to, note
from taskscaler.cli._log_formats import LogFormat
from taskscaler.core._decide import Decision, Demand, PoolDecision, Removal
from tests.taskscaler.scaling import scaling
from tests.taskscaler.services import COMMAND, command, serving, write

anyio_backend = virtual_time

log = logging.getLogger("taskscaler.test")


def written(style: LogFormat) -> str:
    """Some events, as they are written."""
    stream = StringIO()
    with logging_on(stream, style=style):
        log.info("increased", extra={"pool": "spot", "asked": 3})
        log.warning("update_failed", extra={"error": "two\nlines"})
        try:
            raise ValueError("deep")
        except ValueError:
            log.exception("job_stuck", extra={"job": 7})
    return stream.getvalue()


def test_as_json_each_line_is_an_event() -> None:
    """With its name, its level and its own fields, whatever these hold."""
    first, second, third = map(json.loads, written("json").splitlines())
    assert (first["event"], first["level"], first["pool"], first["asked"]) == ("increased", "info", "spot", 3)
    assert (second["event"], second["error"]) == ("update_failed", "two\nlines")
    assert third["job"] == 7
    assert "ValueError: deep" in third["error"]


def test_as_text_each_event_has_its_fields() -> None:
    """Time, level, logger and name, then fields as key=value, on one line."""
    first, second, *_ = written("text").splitlines()
    assert first.endswith("Z INFO taskscaler.test increased pool='spot' asked=3")
    assert second.endswith("WARNING taskscaler.test update_failed error='two\\nlines'")


def test_what_an_event_has_is_beside_its_name_and_not_behind_a_traceback() -> None:
    """Which follows, on lines of its own, and ends with the error."""
    lines = written("text").splitlines()
    assert lines[2].endswith("ERROR taskscaler.test job_stuck job=7")
    assert lines[-1] == "ValueError: deep"


def test_no_field_of_an_event_hides_what_each_has() -> None:
    """Whatever a plugin calls its own."""
    stream = StringIO()
    with logging_on(stream, style="json"):
        log.info("increased", extra={"level": 10, "time": 0, "event": "other", "logger": "x", "pool": "spot"})
    event = json.loads(stream.getvalue())
    assert (event["event"], event["level"], event["logger"]) == ("increased", "info", "taskscaler.test")
    assert event["pool"] == "spot"


def test_for_the_journal_each_line_has_its_level() -> None:
    """Also those of a traceback: the journal takes each line for an event of its own."""
    first, second, *third = written("journal").splitlines()
    assert first == "<6>taskscaler.test increased pool='spot' asked=3"
    assert second.startswith("<4>taskscaler.test update_failed")
    assert len(third) > 2
    assert all(line.startswith("<3>") for line in third)


def test_a_sentence_for_people_is_an_event_where_nothing_else_is_written() -> None:
    """A warning is one for programs, too."""
    stream = StringIO()
    with logging_on(stream, style="json"):
        note("ready: it is served")
        note("warning: the disk is full")
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert (first["event"], first["level"], first["text"]) == ("notice", "info", "ready: it is served")
    assert (second["event"], second["level"]) == ("notice", "warning")


# --- units of work -----------------------------------------------------------------------------------------


def decided(*, increase: int = 0, removals: tuple[Removal, ...] = ()) -> DecisionEvent:
    """A decision."""
    pool = PoolDecision("spot", 1, increase, increase, "", 0, 0)
    decision = Decision(
        at=5.0,
        demand=Demand(1, 0, 2),
        idle_target=0,
        target=3,
        target_instances=3,
        spare=0,
        pools=(pool,),
        look_again_at=inf,
        removals=removals,
    )
    return DecisionEvent(at=5.0, decision=decision)


def lease(at: float, what: str) -> LeaseEvent:
    """Something that happens to a lease."""
    return LeaseEvent(at=at, key="a", pool="spot", instance="i-1", slot=0, what=what)


def heard(*events: InstanceEvent | LeaseEvent | DecisionEvent, level: int = logging.INFO) -> list[dict[str, object]]:
    """What of them is logged."""
    stream = StringIO()
    with logging_on(stream, style="json", level=level):
        log_of_fleet = FleetLog()
        for event in events:
            log_of_fleet(event)
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_lease_is_one_event() -> None:
    """At its end: how long it was held, and how it ended; all else of it is for who looks closely."""
    life = [lease(1.0, "acquired"), lease(2.0, "suspended"), lease(3.0, "resumed"), lease(4.5, "lost")]
    (ended,) = heard(*life)
    assert (ended["event"], ended["key"], ended["held_s"], ended["how"]) == ("lease_ended", "a", 3.5, "lost")
    closely = heard(*life, level=logging.DEBUG)
    names = [each["event"] for each in closely]
    assert names == ["lease_changed", "lease_changed", "lease_changed", "lease_ended"]
    assert heard(*life, level=logging.WARNING) == []


def test_a_decision_that_changes_nothing_is_for_who_looks_closely() -> None:
    """One that asks for instances, or gives some up, says what it rests on."""
    (event,) = heard(decided(), decided(increase=2))
    assert (event["event"], event["increase"], event["waiting"]) == ("scaling_decided", 2, 2)
    assert "requests 2 more" in str(event["text"])
    assert len(heard(decided(removals=(Removal("spot", "i-1", "idle"),)))) == 1
    assert len(heard(decided(), level=logging.DEBUG)) == 1


def test_an_instance_in_another_state_is_an_event() -> None:
    """With what became of it, and why."""
    change = InstanceEvent(at=1.0, pool="spot", instance="i-1", state="gone", why="it was preempted", lost=True)
    (event,) = heard(change)
    assert (event["event"], event["state"], event["lost"]) == ("instance_changed", "gone", True)


def test_a_terminal_that_shows_a_picture_gets_events_through_who_paints_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else they would stand in the middle of it; the file has those that are not in the results anyway."""

    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    terminal, painter = Terminal(), StringIO()
    monkeypatch.setattr("sys.stderr", terminal)
    with logging_to(tmp_path / "fleet.log", "text"):
        log.info("increased")
        monkeypatch.setattr("sys.stderr", painter)
        logging.getLogger("taskscaler.work").info("try_ended")
    assert "increased" in terminal.getvalue()
    assert "try_ended" in painter.getvalue()
    assert [line.split()[-1] for line in (tmp_path / "fleet.log").read_text().splitlines()] == ["increased"]


# --- commands ----------------------------------------------------------------------------------------------

BATCH = """
[autoscaler]
plugin = "local"
update_interval_when_expecting = "20ms"
plugin_config = { directory = "HERE/fleet" }
max_instances = 1

[[jobs]]
name = "well"
script = "true"

[[jobs]]
name = "badly"
script = "exit 3"

[[jobs]]
name = "never"
script = "true"
needs = ["badly"]
"""


@pytest.mark.slow
def test_a_batch_writes_events_beside_what_it_shows(tmp_path: Path) -> None:
    """On standard error one object a line, on standard output what is for people, in the file what always was."""
    (tmp_path / "jobs.toml").write_text(BATCH.replace("HERE", str(tmp_path)))
    out = tmp_path / "out"
    arguments = [*COMMAND, "run", str(tmp_path / "jobs.toml"), "--output", str(out), "--log-format", "json"]
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 1, done.stderr
    events = [json.loads(line) for line in done.stderr.splitlines()]
    ended = {each["job"]: (each["state"], each["exit_code"]) for each in events if each["event"] == "try_ended"}
    assert ended == {"well": ("succeeded", 0), "badly": ("failed", 3)}
    names = {each["event"] for each in events}
    assert {"increased", "decreased", "scaling_decided", "instance_changed", "lease_ended", "jobs_given_up"} <= names
    assert "badly failed" in done.stdout
    assert not any(line.startswith("{") for line in done.stdout.splitlines())
    kept = [line.split()[3] for line in (out / "fleet.log").read_text().splitlines()]
    assert "increased" in kept
    assert not {"try_ended", "lease_ended", "instance_changed", "scaling_decided"} & {*kept}


@pytest.mark.slow
def test_a_daemon_writes_as_it_is_asked_to(tmp_path: Path) -> None:
    """Events of the fleet on standard error in that format, and the unit that it prints asks for the same."""
    write(tmp_path, idle=1, most=1)
    with serving(tmp_path, "--log-format", "json") as service:
        event = json.loads(service.line_with('"event": "increased"'))
        assert event["asked"] == 1
        assert service.end(signal.SIGTERM) == 0
    status, unit = command("serve", str(tmp_path / "fleet.toml"), "--log-format", "journal", "--unit")
    assert status == 0
    assert "--log-format=journal" in unit


# --- groups ------------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_each_call_of_a_cloud_is_one_event_that_says_how_it_went(caplog: pytest.LogCaptureFixture) -> None:
    """What was asked for, what the cloud accepted, and why it did not."""
    cloud, why = FakeCloud(capabilities=frozenset({Capability.NAMED_CREATE, Capability.WITHDRAW})), ProviderError("no")
    cloud.faults.increase.once(IncreaseFault(refuse=why))
    cloud.faults.decrease.once(DecreaseFault(refuse=why))
    with caplog.at_level(logging.INFO, "fleeting"):
        async with scaling(cloud, policies=[Policy(idle_time=1)]) as scaler:
            async with scaler.acquire("job"):
                pass
            await anyio.sleep(600)
    calls = [
        (each.getMessage(), vars(each).get("error")) for each in caplog.records if each.name.startswith("fleeting")
    ]
    assert ("increase_failed", "no") in calls
    assert ("decrease_failed", "no") in calls
    (grown,) = [vars(each) for each in caplog.records if each.getMessage() == "increased"]
    assert (grown["asked"], grown["accepted"]) == (1, 1)
    (shrunk,) = [vars(each) for each in caplog.records if each.getMessage() == "decreased"]
    assert len(shrunk["accepted"]) == 1
