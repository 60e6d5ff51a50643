"""What jobs leave, what they get of others, and what they keep: on a real instance."""

import gzip
import io
import os
import stat
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from attrs import evolve

from gitlab_jobs import Cache, Variable
from gitlab_jobs.coordinator import Reply
from gitlab_jobs.testing import Fault
from taskscaler_gitlab._settings import CacheSettings, OwnSettings
from taskscaler_gitlab.runner._caches import caches_of
from taskscaler_gitlab.runner._transfers import keep_caches
from tests.fleeting.local_agents import POLL
from tests.taskscaler_gitlab.desks import Desk, Stopped, after, desk_on, leaving, script

pytestmark = pytest.mark.anyio


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    """A GitLab and an instance."""
    async with desk_on(tmp_path) as made:
        yield made


# --- artifacts ----------------------------------------------------------------------------------------------


async def test_files_are_chosen_by_patterns(desk: Desk) -> None:
    """A directory means what is in it; stars and exclusions mean what they do at GitLab."""
    make = "mkdir -p out/sub deep/a/b && touch out/1 out/sub/2.o 'out/sub/3 x' deep/a/b/t.xml deep/t.xml other .hidden"
    artifact = leaving("out/", "deep/**/*.xml", "$NAME", ".hid*", exclude=("out/**/*.o",))
    job = await desk.run(script(make, artifacts=(artifact,), variables=(Variable(key="NAME", value="oth?r"),)))
    assert job.state.value == "success", desk.log(job)
    assert set(desk.archive(job.job.id)) == {
        "out/1", "out/sub/3 x", "deep/a/b/t.xml", "deep/t.xml", "other", ".hidden",
    }  # fmt: skip
    assert "found 6 matching artifact files and directories" in desk.log(job)


async def test_names_that_shells_stumble_over(desk: Desk) -> None:
    """Backslashes, quotes, stars, leading hyphens and what is no ASCII are parts of names like others."""
    names = ["-rf", "a\\nb", "star*", "it's", 'say "x"', "é ü", "$HOME", "[b]"]
    make = "mkdir out && cd out && " + " && ".join(f": > ./{_quoted(name)}" for name in names)
    job = await desk.run(script(make, artifacts=(leaving("out"),)))
    assert set(desk.archive(job.job.id)) == {f"out/{name}" for name in names}, desk.log(job)


def _quoted(name: str) -> str:
    return "'" + name.replace("'", "'\\''") + "'"


async def test_modes_links_and_empty_directories_are_kept(desk: Desk) -> None:
    """In a zip file as on Unix."""
    make = "mkdir -p out/empty && echo x > out/run && chmod 755 out/run && ln -s run out/link && ln out/run out/hard"
    job = await desk.run(script(make, artifacts=(leaving("out"),)))
    data = desk.gitlab.artifacts[job.job.id][0].path.read_bytes()
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        modes = {each.filename: each.external_attr >> 16 for each in archive.infolist()}
        assert modes.keys() == {"out/empty/", "out/run", "out/link", "out/hard"}
        assert stat.S_ISLNK(modes["out/link"])
        assert (archive.read("out/link"), archive.read("out/hard")) == (b"run", b"x\n")
        assert modes["out/run"] & 0o111


async def test_reports_are_packed_as_they_are_wanted(desk: Desk) -> None:
    """Zip, gzip and raw, each under its kind; raw is one file."""
    make = "echo a > a.xml && echo b > b.xml"
    artifacts = (
        leaving("*.xml"),
        leaving("*.xml", name="junit.xml", artifact_type="junit", artifact_format="gzip", when="always"),
        leaving("a.xml", name="a.xml", artifact_type="dotenv", artifact_format="raw"),
        leaving("*.xml", artifact_type="sast", artifact_format="raw"),
    )
    job = await desk.run(script(make, artifacts=artifacts))
    kept = desk.gitlab.artifacts[job.job.id]
    assert [(each.artifact_type, each.artifact_format) for each in kept] == [
        ("archive", "zip"), ("junit", "gzip"), ("dotenv", "raw"),
    ]  # fmt: skip
    assert gzip.decompress(kept[1].path.read_bytes()) == b"a\nb\n"
    assert kept[2].path.read_bytes() == b"a\n"
    assert (job.state.value, job.failure_reason) == ("failed", "script_failure")
    assert "artifacts of the format raw are one file, found 2" in desk.log(job)


async def test_artifacts_of_failures_and_of_successes(desk: Desk) -> None:
    """Each set is sent when it is wanted."""
    artifacts = tuple(leaving("f", name=when, when=when) for when in ("on_success", "on_failure", "always"))
    good = await desk.run(script("echo 1 > f", artifacts=artifacts))
    bad = await desk.run(script("echo 1 > f", "false", artifacts=artifacts))
    assert [len(desk.gitlab.artifacts[each.job.id]) for each in (good, bad)] == [2, 2]
    assert bad.failure_reason == "script_failure"


async def test_nothing_to_send_is_no_failure(desk: Desk) -> None:
    """The log names the pattern."""
    job = await desk.run(script("true", artifacts=(leaving("nowhere/"),)))
    assert job.state.value == "success"
    assert "WARNING: nowhere/: no matching files" in desk.log(job)


async def test_artifacts_that_gitlab_refuses_fail_a_job(desk: Desk) -> None:
    """One that would have succeeded; one line says why."""
    desk.gitlab.faults = (Fault(call="upload", reply=Reply(status=413, body={"message": "too large"}), times=9),)
    good = await desk.run(script("echo 1 > f", artifacts=(leaving("f"),)))
    bad = await desk.run(script("echo 1 > f", "exit 5", artifacts=(leaving("f", when="always"),)))
    assert (good.state.value, good.failure_reason, good.exit_code) == ("failed", "script_failure", 1)
    assert "413" in desk.log(good)
    assert bad.exit_code == 5


@pytest.mark.parametrize("path", ["../../etc/passwd", "/etc/passwd", "a/../../b", "", "a\nb", "link/passwd"])
async def test_what_is_outside_the_project_is_left_out(desk: Desk, path: str) -> None:
    """Whatever a pattern says, and wherever a link leads."""
    job = await desk.run(script("ln -s /etc link", "echo 1 > f", artifacts=(leaving(path, "f"),)))
    assert job.state.value == "success", desk.log(job)
    assert set(desk.archive(job.job.id)) == {"f"}
    assert "WARNING" in desk.log(job)


async def test_a_link_that_leads_out_is_no_way_out(desk: Desk) -> None:
    """The artifacts are refused, and one line says which link."""
    job = await desk.run(script("mkdir out; ln -s /etc/passwd out/x", artifacts=(leaving("out"),)))
    assert (job.state.value, job.failure_reason) == ("failed", "script_failure")
    assert "the artifacts were refused" in desk.log(job)
    assert not desk.gitlab.artifacts.get(job.job.id)


@pytest.mark.slow
async def test_a_zip_of_very_many_files(desk: Desk, *, full: bool) -> None:
    """All of them come to GitLab."""
    number = 70_000 if full else 7_000  # a zip's list has 16 bits for them
    make = f"mkdir out && cd out && i=0 && while [ $i -lt {number} ]; do : > $i; i=$((i + 1)); done"
    job = await desk.run(script(make, artifacts=(leaving("out"),)))
    assert job.state.value == "success", desk.log(job)
    assert len(desk.archive(job.job.id)) == number


# --- dependencies -------------------------------------------------------------------------------------------


async def test_a_job_starts_with_what_another_left(desk: Desk) -> None:
    """Content, modes and links are those of the other job."""
    make = "mkdir out && echo x > out/run && chmod 755 out/run && ln -s run out/link"
    first = await desk.run(script(make, artifacts=(leaving("out"),)))
    second = await desk.run(
        script("cat out/link", "[ -x out/run ] && [ -L out/link ]", dependencies=after(first.job)), builds_dir="other"
    )
    assert second.state.value == "success", desk.log(second)
    assert "\nx\n" in desk.log(second)
    assert f"Downloading artifacts for job {first.job.id}" in desk.log(second)


async def test_a_download_is_tried_again_as_often_as_is_said(desk: Desk) -> None:
    """ARTIFACT_DOWNLOAD_ATTEMPTS."""
    first = await desk.run(script("echo x > f", artifacts=(leaving("f"),)))
    desk.gitlab.faults = (Fault(call="download", reply=Reply(status=404)),)
    gone = await desk.run(script("cat f", dependencies=after(first.job)))
    assert (gone.state.value, gone.failure_reason) == ("failed", "script_failure")
    assert "404" in desk.log(gone).splitlines()[-1]
    again = await desk.run(script("cat f", dependencies=after(first.job)))
    assert again.state.value == "success"


async def test_artifacts_that_do_not_come_in_time_end_the_job(desk: Desk) -> None:
    """The job's time covers all of it: what it gets of others too."""
    first = await desk.run(script("echo x > f", artifacts=(leaving("f"),)))
    desk.gitlab.faults = (Fault(call="download", times=1000),)
    often = (Variable(key="ARTIFACT_DOWNLOAD_ATTEMPTS", value="10"),)
    second = script("echo ran", dependencies=after(first.job), variables=often)
    ended = await desk.run(evolve(second, runner_info=evolve(second.runner_info, timeout=1)))
    assert (ended.state.value, ended.failure_reason) == ("failed", "job_execution_timeout")
    assert desk.log(ended).endswith("execution took longer than 1s seconds\x1b[0;m\n")


def hostile(directory: Path, *members: tuple[str, int, bytes]) -> Path:
    """An archive that no runner makes."""
    path = directory / "hostile.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, mode, content in members:
            info = zipfile.ZipInfo(name)
            info.create_system, info.external_attr = 3, mode << 16
            archive.writestr(info, content)
    return path


LINK = stat.S_IFLNK | 0o777


@pytest.mark.parametrize(
    "members",
    [
        (("../up", 0o644, b"x"),),
        (("link", LINK, b"/etc/passwd"),),
        (("link", LINK, b"../../.."), ("link/x", 0o644, b"x")),
        (("a", 0o644, b"x"), ("a/b", 0o644, b"x")),
    ],
)
async def test_an_archive_that_leads_out_is_refused(
    desk: Desk, tmp_path: Path, members: tuple[tuple[str, int, bytes], ...]
) -> None:
    """Nothing of it gets to the instance."""
    first = await desk.run(script("echo x > f", artifacts=(leaving("f"),)))
    stored = desk.gitlab.artifacts[first.job.id][0]
    os.replace(hostile(tmp_path, *members), stored.path)  # noqa: PTH105
    second = await desk.run(script("echo ran", dependencies=after(first.job)))
    assert (second.state.value, second.failure_reason) == ("failed", "script_failure"), desk.log(second)
    assert "cannot be used" in desk.log(second).splitlines()[-1]


async def test_what_is_no_archive_is_refused(desk: Desk) -> None:
    """One line says so."""
    first = await desk.run(script("echo x > f", artifacts=(leaving("f"),)))
    desk.gitlab.artifacts[first.job.id][0].path.write_bytes(b"<html>")
    second = await desk.run(script("echo ran", dependencies=after(first.job)))
    assert "cannot be used" in desk.log(second).splitlines()[-1]


# --- caches -------------------------------------------------------------------------------------------------


def cached(*paths: str, **more: Any) -> tuple[Cache, ...]:  # noqa: ANN401  (a cache's)
    """A cache of a job."""
    return (evolve(Cache(key="the key", paths=paths, policy="pull-push", when="on_success"), **more),)


CLEAN = "rm -rf kept"


async def test_a_cache_is_there_for_the_next_job(desk: Desk) -> None:
    """By its key; another key has nothing."""
    first = await desk.run(script("mkdir kept; echo warm > kept/f", cache=cached("kept/")))
    assert "Created cache: 1 files" in desk.log(first)
    await desk.run(script(CLEAN))
    second = await desk.run(script("cat kept/f", CLEAN, cache=cached("kept/", policy="pull")))
    third = await desk.run(script("[ ! -e kept ]", cache=cached("kept/", key="another")))
    assert "Successfully extracted cache" in desk.log(second)
    assert "\nwarm\n" in desk.log(second)
    assert "No cache was found" in desk.log(third)
    assert [each.state.value for each in (first, second, third)] == ["success"] * 3


async def test_policies_and_ends_decide_what_is_kept(desk: Desk) -> None:
    """``pull`` keeps nothing, ``push`` takes nothing; ``when`` is about the job's end."""
    await desk.run(script("mkdir kept; echo 1 > kept/f", "exit 1", cache=cached("kept/", when="on_failure")))
    await desk.run(script("echo 2 > kept/f", cache=cached("kept/", policy="pull")))
    await desk.run(script("echo 3 > kept/f", "exit 1", cache=cached("kept/")))
    await desk.run(script(CLEAN))
    pushing = await desk.run(script("[ ! -e kept ]", cache=cached("kept/", policy="push")))
    found = await desk.run(script("cat kept/f", cache=cached("kept/", policy="pull")))
    assert pushing.state.value == "success", desk.log(pushing)
    assert "\n1\n" in desk.log(found)


async def test_keys_that_are_fallen_back_to(desk: Desk) -> None:
    """In their order; and no key is a path."""
    await desk.run(script("mkdir -p kept; echo old > kept/f", cache=cached("kept/", key="../../old")))
    await desk.run(script(CLEAN))
    wanted = cached("kept/", key="new-$CI_JOB_ID", fallback_keys=("none", "../../old"))
    found = await desk.run(script("cat kept/f", cache=wanted))
    assert found.state.value == "success", desk.log(found)
    assert "\nold\n" in desk.log(found)


async def test_a_cache_that_the_manager_keeps_is_there_on_another_instance(desk: Desk, tmp_path: Path) -> None:
    """An instance that does not have it gets it."""
    kept = OwnSettings(cache_on_manager=str(tmp_path / "caches"))
    first = await desk.run(
        script("mkdir kept; echo warm > kept/f", cache=cached("kept/")), taskscaler=kept, cache_dir="one"
    )
    assert first.state.value == "success", desk.log(first)
    second = await desk.run(
        script("cat kept/f", cache=cached("kept/")), taskscaler=kept, cache_dir="two", builds_dir="elsewhere"
    )
    assert "\nwarm\n" in desk.log(second), desk.log(second)


async def test_runners_that_share_a_manager_do_not_share_its_caches(desk: Desk, tmp_path: Path) -> None:
    """A project of another GitLab may have the same number; with `Shared`, they do."""
    kept = OwnSettings(cache_on_manager=str(tmp_path / "caches"))
    job, here = script("mkdir -p kept; echo warm > kept/f", cache=cached("kept/")), CacheSettings(shared=True)
    await desk.run(job, taskscaler=kept)
    await desk.run(job, taskscaler=kept, token="glrt-ofanotherone")
    assert len(list((tmp_path / "caches").glob("*/project-*/*.tar"))) == 2
    await desk.run(job, taskscaler=kept, cache=here)
    assert len(list((tmp_path / "caches").glob("project-*/*.tar"))) == 1


def test_jobs_that_keep_one_cache_at_a_time_do_not_mix_it(tmp_path: Path) -> None:
    """What the manager has is always the whole cache of one of them, while another copies its own."""
    job = script("true", cache=cached("kept/"))
    caches, _ = caches_of(job, str, "/builds/x")
    kept = tmp_path / "kept"
    kept.mkdir()
    for number, text in ((1, b"short"), (2, b"longer")):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "cache-0.tar").write_bytes(text)
    draft, whole = kept / f".{caches[0].names[0]}.1.draft", kept / f"{caches[0].names[0]}.tar"
    draft.write_bytes(b"sho")
    keep_caches(caches, tmp_path / "2", kept, job="2", most=1 << 20)
    assert (whole.read_bytes(), draft.read_bytes()) == (b"longer", b"sho")
    keep_caches(caches, tmp_path / "1", kept, job="1", most=1 << 20)
    assert (whole.read_bytes(), list(kept.iterdir())) == (b"short", [whole])


async def test_a_cache_that_is_broken_fails_nobody(desk: Desk) -> None:
    """The job goes on without it."""
    await desk.run(script("mkdir kept; echo 1 > kept/f", cache=cached("kept/")))
    for path in desk.home.glob("cache/**/cache.tar"):
        path.write_bytes(b"nonsense")
    job = await desk.run(script("true", cache=cached("kept/")))
    assert job.state.value == "success"
    assert "could not be extracted" in desk.log(job)


# --- restarts -----------------------------------------------------------------------------------------------


async def test_artifacts_are_sent_by_the_next_manager(desk: Desk) -> None:
    """A manager that is killed while it sends them; the log has one line about each."""
    artifacts = (leaving("f", name="one"), leaving("f", name="two"))
    taken = await desk.take(script("echo x > f", artifacts=artifacts))
    desk.gitlab.faults = (Fault(call="upload", after=1, reply=Reply(status=503), times=100),)

    async def stop(*_: object) -> None:
        while desk.gitlab.calls["upload"] < 2:  # noqa: ASYNC110  (only looking tells)
            await anyio.sleep(POLL)
        raise Stopped

    await desk.carry_out(taken, meanwhile=stop)
    desk.gitlab.faults = ()
    await desk.carry_out(taken, is_again=True)
    job = await desk.gitlab.ended(taken.id)
    assert job.state.value == "success"
    assert len(desk.gitlab.artifacts[taken.id]) == 2
    assert desk.log(job).count("201 Created") == 2
    assert desk.log(job).count("Uploading artifacts for successful job") == 1
