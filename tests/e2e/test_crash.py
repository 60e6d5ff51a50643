"""A real command is killed with SIGKILL, again and again, and its batch is gone on with until it is done."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from attrs import define, field

from fleeting.core import PLAN_RECORDS
from taskscaler._state import StateJournal
from taskscaler.core._slots import LEDGER_RECORDS
from tests.e2e.leftovers import wait_for_the_end_of

COMMAND = (str(Path(sys.executable).with_name("taskscaler")), "run")
JOBS = 16
MAX_INSTANCES = 2
MAX_USES = 5
KILLS, ALL_KILLS = 4, 10
"""Of each test: in the suite, and with ``pytest --full``."""

SEEDS, ALL_SEEDS = 3, 5
"""Tests: in the suite, one for each time that instances wait for a manager, and with ``pytest --full``."""

LINES = 10
"""A batch is killed after one of its first lines; a whole one prints more than twice as many."""

FILE = """
[autoscaler]
plugin = "local"
max_instances = {instances}
capacity_per_instance = 2
max_use_count = {uses}
update_interval = "1s"
update_interval_when_expecting = "20ms"
deletion_retry_interval = "1s"
shutdown_deletion_interval = "1s"
plugin_config = {{ directory = "{base}/fleet", orphan_ttl = "{orphan_ttl}" }}
state_storage = {{ dir = "{base}/state" }}

[[jobs]]
name = "job"
copies = {jobs}
script = "echo >> {runs}/$TASKSCALER_JOB_NAME.began; sleep 0.05; echo >> {runs}/$TASKSCALER_JOB_NAME.ended"
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@define
class Trial:
    """One fleet, and batches on it, one after the other, that are killed at random."""

    base: Path
    chance: random.Random
    orphan_ttl: str
    wanted: int
    """Kills."""

    kills: int = 0
    batches: int = 0
    interrupted: int = 0
    """Tries, of all batches, that a kill cut short, or that went on after it."""

    done: set[str] = field(factory=set)
    """Jobs of the current batch that were said to have succeeded."""

    @property
    def output(self) -> Path:
        """Results of the current batch."""
        return self.base / f"out-{self.batches}"

    @property
    def runs(self) -> Path:
        """Where the jobs of the current batch write down that they ran."""
        return self.base / f"runs-{self.batches}"

    def begin(self) -> None:
        """Write the next batch's file."""
        self.batches += 1
        self.done.clear()
        self.runs.mkdir()
        sizes = {"instances": MAX_INSTANCES, "uses": MAX_USES, "jobs": JOBS}
        text = FILE.format(base=self.base, runs=self.runs, orphan_ttl=self.orphan_ttl, **sizes)
        (self.base / "jobs.toml").write_text(text)

    def start(self) -> "subprocess.Popen[str]":
        """Run the batch, or go on with it if it was begun."""
        begun = (self.output / "events.jsonl").exists()
        what = ("--resume", str(self.output)) if begun else (str(self.base / "jobs.toml"), "--output", str(self.output))
        return subprocess.Popen(
            [*COMMAND, *what],
            env={**os.environ, "TMPDIR": str(self.base / "tmp"), "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run_and_kill(self) -> bool:
        """Run the batch, kill it at a random line if it comes to that, and tell whether it was done."""
        left = self.chance.randint(0, LINES) if self.kills < self.wanted else -1
        with self.start() as process:
            assert process.stdout is not None
            said = []
            while left:
                if not (line := process.stdout.readline()):
                    break
                left -= 1
                said.append(line)
                self.hear(line)
            if not left:
                process.kill()
                self.kills += 1
            for line in process.stdout:
                said.append(line)
                self.hear(line)
        assert process.returncode in (0, -signal.SIGKILL), "".join(said)
        return process.returncode == 0

    def hear(self, line: str) -> None:
        """See that the ceiling holds, and that what was said to be done is not done again."""
        assert len(agents(self.base)) <= MAX_INSTANCES, line
        _, _, words = line.partition("] ")
        name, _, rest = words.partition(" ")
        if rest.startswith("succeeded on "):
            self.done.add(name)
        elif rest.startswith("runs on "):
            assert name not in self.done, line

    def see_through(self) -> None:
        """Kill and resume one batch until it is done."""
        self.begin()
        while not self.run_and_kill():
            if self.chance.random() < 0.5 and self.orphan_ttl == "300ms":
                wait_for_the_end_of(agents(self.base))
        self.check()

    def check(self) -> None:
        """All jobs have succeeded, ran no more often than was counted, and no instance took too many."""
        summary = json.loads((self.output / "results.json").read_text())
        assert {job["state"] for job in summary["jobs"]} == {"succeeded"}
        assert len(summary["jobs"]) == JOBS
        attempts = [attempt for job in summary["jobs"] for attempt in job["attempts"]]
        assert max(Counter(attempt["instance"] for attempt in attempts).values()) <= MAX_USES
        self.interrupted += sum(attempt["interrupted"] for attempt in attempts)
        for job in summary["jobs"]:
            *earlier, last = job["attempts"]
            assert {attempt["state"] for attempt in earlier} <= {"lost"}
            assert last["state"] == "succeeded"
            began, ended = (len((self.runs / f"{job['name']}.{what}").read_text()) for what in ("began", "ended"))
            assert 1 <= ended <= began <= len(job["attempts"])
        _, *events = map(json.loads, (self.output / "events.jsonl").read_text().splitlines())
        self.interrupted += sum(event["event"] == "joined" for event in events)
        assert (events[-1]["event"], events[-1]["well"]) == ("over", True)


def agents(base: Path) -> list[int]:
    """Instances that live, by their processes; what they have forked is not counted."""
    found = {}
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            try:
                command = (directory / "cmdline").read_bytes()
                if b"_agent.py" in command and os.fsencode(base / "fleet") in command:
                    found[int(directory.name)] = int((directory / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue  # it ended while we looked
    return [process for process, parent in found.items() if parent not in found]


@pytest.fixture
def base(tmp_path: Path) -> Iterator[Path]:
    """A directory for everything; in the end nothing of the fleet is left in it."""
    (tmp_path / "tmp").mkdir()
    yield tmp_path
    wait_for_the_end_of(agents(tmp_path))
    assert list((tmp_path / "tmp").iterdir()) == []
    assert not (tmp_path / "fleet").exists()


async def left_in_the_journal(base: Path) -> dict[str, list[str]]:
    """Open the journal as the next manager would, and list what it knows, by kind."""
    identity = f"local:{socket.gethostname()}:{(base / 'fleet').resolve()}"
    journal = StateJournal(base / "state")
    assert journal.path([identity]).exists()
    recovered = await journal.open([identity], "the test", {**PLAN_RECORDS, **LEDGER_RECORDS})
    await journal.close()
    return {kind: list(records) for kind, records in recovered.records.items()}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Take as many seeds as are wanted."""
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", range(ALL_SEEDS if metafunc.config.getoption("--full") else SEEDS))


def test_a_batch_survives_every_kill(base: Path, seed: int, *, full: bool) -> None:
    """However often it is killed: every job succeeds, none again, within the ceiling, and nothing is left."""
    kills = ALL_KILLS if full else KILLS
    trial = Trial(base, random.Random(seed), ("300ms", "600ms", "2s")[seed % 3], kills)
    while trial.kills < trial.wanted:
        trial.see_through()
    assert trial.interrupted
    left = anyio.run(left_in_the_journal, base)
    assert (left["lease"], left["instance"], left["intent"]) == ([], [], [])
