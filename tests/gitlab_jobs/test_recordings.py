"""What real runners have said to a GitLab is said again to ours, and every answer is what it was."""

import json
from pathlib import Path

import httpx
import pytest

from gitlab_jobs import Outcome
from gitlab_jobs.client import GitLabClient, Runner, info, reporting
from gitlab_jobs.testing import URL, FakeGitLab
from tests.peers.pipeline import job, left
from tests.recordings import HERE, Event, read, write
from tests.recordings.recorder import Recorder, faulty
from tests.recordings.replay import Replay

pytestmark = pytest.mark.anyio

RECORDINGS = sorted(HERE.glob("*.jsonl"))
LARGEST = 64 << 10


@pytest.mark.parametrize("path", RECORDINGS, ids=[path.stem for path in RECORDINGS])
async def test_a_real_runner_gets_the_same_answers(path: Path, tmp_path: Path) -> None:
    """Status, headers and body of each, whatever the runner's version says and leaves out."""
    about, events = read(path)
    assert await Replay(about, events, tmp_path).run() == []


@pytest.mark.parametrize("path", RECORDINGS, ids=[path.stem for path in RECORDINGS])
def test_a_recording_is_small_and_holds_no_secret(path: Path) -> None:
    """Neither a token nor a place of the machine where it was made."""
    text = path.read_text()
    assert len(text) <= LARGEST
    assert [each for each in ("glrt-", "glcbt-", "/home", "/tmp", "/root", "127.0.0.1") if each in text] == []  # noqa: S108
    assert {len(name) for name in ("version", "runner") if name in json.loads(text.splitlines()[0])} == {7, 6}


async def conversation(tmp_path: Path) -> tuple[Event, list[Event]]:
    """One of our own client, with a fault, a file, and a poll that is held."""
    (tmp_path / "kept").mkdir()
    gitlab = FakeGitLab(tmp_path / "kept", faults=[faulty("append", 416)], long_poll=0.05)
    recorder = Recorder(gitlab)
    about = info("refspecs", "artifacts")
    transport = httpx.ASGITransport(recorder.application())
    async with GitLabClient(URL, transport=transport) as client:
        runner = Runner(client, gitlab.runner_token, info=about, system_id="r_0123456789ab")
        number = recorder.enqueue(job("first", "true", artifacts=(left("out"),)))
        taken = await runner.ask()
        assert taken
        async with reporting(client, taken, info=about) as report:
            assert await report.claim()
            report.log(b"hello\n")
            (tmp_path / "left.zip").write_bytes(b"what it leaves")
            await client.upload(taken, taken.artifacts[0], tmp_path / "left.zip", filename="left.zip")
            await report.finish(Outcome(is_success=True))
        assert await runner.ask() is None  # it knows the queue, and is held
        assert gitlab.log(number) == b"hello\n"
    return recorder.about("ours", "1"), recorder.events


async def test_what_is_written_down_can_be_said_again(tmp_path: Path) -> None:
    """In every part: an answer that was another would be named."""
    about, events = await conversation(tmp_path)
    write(tmp_path / "one.jsonl", about, events)
    about, events = read(tmp_path / "one.jsonl")
    for place in ("again", "wrong"):
        (tmp_path / place).mkdir()
    assert await Replay(about, events, tmp_path / "again").run() == []
    answers = [each for each in events if "answer" in each]
    for each in answers:
        each["status"] += 1
    differences = await Replay(about, events, tmp_path / "wrong").run()
    assert len(differences) == len(answers)
    assert all(": status was " in each for each in differences)


async def test_no_secret_is_written_down(tmp_path: Path) -> None:
    """Tokens have names, and what a job prints and leaves is a length and a hash."""
    about, events = await conversation(tmp_path)
    text = json.dumps([about, *events])
    assert [each for each in ("glrt-", "glcbt-", "hello", "r_0123456789ab", "what it leaves") if each in text] == []
    assert "{job 1}" in text
    assert "{runner 0}" in text
    assert [each["do"] for each in events if "do" in each] == ["enqueue"]
