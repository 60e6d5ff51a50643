"""Feature flags of GitLab Runner that have an effect here, and what else jobs ask of their stages, in every shell."""

import gzip
import io
import re
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from gitlab_jobs import Cache, Features, GitInfo, Step, Variable
from taskscaler_gitlab._settings import FEATURE_FLAGS
from taskscaler_gitlab.runner._artifacts import pack_artifacts
from taskscaler_gitlab.runner._caches import name_of
from taskscaler_gitlab.runner._options import Compression, read_options
from taskscaler_gitlab.runner._sources import cleanup_script
from tests.taskscaler_gitlab.desks import leaving, script
from tests.taskscaler_gitlab.projects import Project, Server, Slot
from tests.taskscaler_gitlab.stage_runs import run

PAGE = Path("docs/reference/gitlab-variables.md")


def on(*names: str) -> tuple[Variable, ...]:
    """Variables that turn these on."""
    return tuple(Variable(key=name, value="true") for name in names)


def test_the_page_has_them_all() -> None:
    """Each that has an effect says which, in a row of its own."""
    rows = re.findall(r"^\| `(FF_\w+)`", PAGE.read_text(), flags=re.MULTILINE)
    assert set(rows) >= FEATURE_FLAGS


@pytest.mark.parametrize("says", [True, False])
def test_the_runners_configuration_counts_first(*, says: bool) -> None:
    """A job's variable does not change what the operator has set."""
    for name in FEATURE_FLAGS:
        wanted = {name: str(not says).lower()}
        read = [
            read_options(
                lambda each, wanted=wanted: wanted.get(each, ""),  # type: ignore[misc]
                GitInfo(),
                may_fetch=False,
                job_timeout=60.0,
                feature_flags=flags,
            )
            for flags in ({}, {name: says}, {name: not says})
        ]
        assert read[0] == read[2] != read[1]


def test_a_command_of_several_lines_has_a_section(shell: Sequence[str], tmp_path: Path) -> None:
    """FF_SCRIPT_SECTIONS: it is shown whole, and collapsed; a plain one is shown as before."""
    job = script("echo one\necho 'two %s'", "echo three", variables=on("FF_SCRIPT_SECTIONS"))
    ran = run(shell, job, tmp_path)
    shown = re.search(
        r"section_start:\d+:section_script_step_0\[hide_duration=true,collapsed=true\]\r\x1b\[0K\x1b\[32;1m(.*?)\x1b\[0;m\n"
        r"section_end:\d+:section_script_step_0\r\x1b\[0K\none\ntwo %s\n\x1b\[32;1m\$ echo three\x1b\[0;m\nthree\n",
        ran.log,
        re.DOTALL,
    )
    assert shown is not None, ran.log
    assert shown[1] == "$ echo one\necho 'two %s'"


def test_a_gitlab_without_sections_gets_none(shell: Sequence[str], tmp_path: Path) -> None:
    """Whatever the job asks for."""
    job = script("echo one\necho two", variables=on("FF_SCRIPT_SECTIONS"), features=Features())
    ran = run(shell, job, tmp_path)
    assert "section_script_step" not in ran.log
    assert "$ echo one # collapsed multi-line command" in ran.log


@pytest.mark.parametrize("flags", [(), ("FF_ENABLE_BASH_EXIT_CODE_CHECK",)])
def test_each_command_is_checked(shell: Sequence[str], tmp_path: Path, flags: tuple[str, ...]) -> None:
    """FF_ENABLE_BASH_EXIT_CODE_CHECK: a job that turns off errexit ends at the command that fails even so."""
    ran = run(shell, script("set +e", "(exit 7)", "echo reached", variables=on(*flags)), tmp_path)
    assert (ran.code, "reached" in ran.log.splitlines()) == ((7, False) if flags else (0, True)), ran.log


def test_a_project_is_not_left(shell: Sequence[str], tmp_path: Path) -> None:
    """FF_ENABLE_JOB_CLEANUP: once its artifacts are kept, its directory goes, as it would before the next job."""
    more = (*on("FF_ENABLE_JOB_CLEANUP"), Variable(key="GIT_STRATEGY", value="empty"))
    ran = run(shell, script("echo x > f; mkdir -p d/e", variables=more, artifacts=(leaving("f"),)), tmp_path)
    assert (ran.code, ran.files()) == (0, {"f"}), ran.log
    assert not list((tmp_path / "builds").rglob("f"))


def test_a_clone_is_left_as_it_was_checked_out(slot: Slot, project: Project, server: Server) -> None:
    """FF_ENABLE_JOB_CLEANUP with fetched sources: what the job made is gone, what it changed is back."""
    inner = server.project(f"{project.path}-lib")
    inner.commit({"lib": "1"})
    project.add_submodule("lib", f"{server.url}/{inner.path}.git", inner)
    job = project.job(
        project.commit({"a": "1"}),
        GIT_STRATEGY="fetch",
        GIT_SUBMODULE_STRATEGY="recursive",
        GIT_CLEAN_FLAGS="-ffdx -e kept",
    )
    assert slot.fetch(job).status == 0
    place = slot.project(job)
    assert slot.run(f"cd {place} && echo 2 > a && touch new kept lib/new && echo 2 > lib/lib").status == 0
    ran = slot.run(cleanup_script(slot.environment(job)))
    assert ran.status == 0, ran.output
    assert slot.files(job) == {"a", "kept", "lib/lib", ".gitmodules"}
    assert [(place / name).read_text() for name in ("a", "lib/lib")] == ["1", "1"]


@pytest.mark.parametrize("flags", [(), ("FF_CLEAN_UP_FAILED_CACHE_EXTRACT",)])
def test_half_a_cache_is_removed(shell: Sequence[str], tmp_path: Path, flags: tuple[str, ...]) -> None:
    """FF_CLEAN_UP_FAILED_CACHE_EXTRACT: the job begins without it, and with whatever else is there."""
    archive = tmp_path / "cache" / name_of("k") / "cache.tar"
    archive.parent.mkdir(parents=True)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name in ("kept/an a", "kept/b"):
            member = tarfile.TarInfo(name)
            member.size = 10_000
            tar.addfile(member, io.BytesIO(b"x" * 10_000))
    archive.write_bytes(packed.getvalue()[:15_000])
    cache = (Cache(key="k", paths=("kept/",), policy="pull", when="on_success"),)
    ran = run(shell, script("ls kept || :", variables=on(*flags), cache=cache), tmp_path)
    assert "could not be extracted" in ran.log
    assert ("an a" in ran.log.splitlines()) == (not flags), ran.log


@pytest.mark.parametrize("form", ["zip", "gzip"])
def test_artifacts_are_packed_as_hard_as_is_wanted(tmp_path: Path, form: str) -> None:
    """ARTIFACT_COMPRESSION_LEVEL: from nothing at all to as small as can be."""
    archive, content = tmp_path / "archive.tar", b"".join(b"%d " % (number * number % 9999) for number in range(20_000))
    with tarfile.open(archive, "w") as tar:
        member = tarfile.TarInfo("f")
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))

    async def packed(level: Compression) -> bytes:
        place = tmp_path / level
        place.mkdir()
        await to_thread.run_sync(pack_artifacts, archive, place / "scratch", place / "target", form, level)
        return (place / "target").read_bytes()

    sizes = []
    levels: tuple[Compression, ...] = ("fastest", "fast", "default", "slow", "slowest")
    for level in levels:
        data = anyio.run(packed, level)
        sizes.append(len(data))
        if form == "zip":
            with zipfile.ZipFile(io.BytesIO(data)) as found:
                assert found.read("f") == content
        else:
            assert gzip.decompress(data) == content
    assert sizes[0] > len(content) > max(sizes[1:])
    assert sizes[1] > sizes[4]


def test_a_step_may_be_called_anything(shell: Sequence[str], tmp_path: Path) -> None:
    """No shell reads its name."""
    name = f"a b; touch {tmp_path}/evil; 'x\n$(touch {tmp_path}/evil)"
    ran = run(shell, script("echo ran", steps=(Step(name=name, script=("echo ran",), when="on_success"),)), tmp_path)
    assert (ran.code, "ran" in ran.log.splitlines()) == (0, True), ran.log
    assert not (tmp_path / "evil").exists()
    assert any(section.startswith("step_a_b__touch") for section in ran.phases)
