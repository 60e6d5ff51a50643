"""Archives that do not come, or come otherwise than they should: one line each, nothing kept, no token with others."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from gitlab_jobs import Artifact, Dependency, GitLabJobsError, Job
from tests.gitlab_jobs.scripted import HTML, RESET, SECRET, Case, Given, away, flood, one_line, scripted, slow, text
from tests.golden import Golden

pytestmark = [
    pytest.mark.anyio,
    # httpx leaves its own generators open when an answer is not read to its end, and trio tells of them
    pytest.mark.filterwarnings("ignore:.*async_generator object .*Stream:pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:Async generator 'httpx:ResourceWarning"),
]


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Let nothing last long."""
    monkeypatch.setattr("gitlab_jobs._transfers._PAUSE", 0.0)
    if "trickles" in request.node.name:
        monkeypatch.setattr("gitlab_jobs._transfers.SECONDS", 0.3)


def fetched(*answers: Given, to: str = "in", limit: int = 1000, token: str = f"glcbt-{SECRET}") -> Case:
    """An archive: why it is not there, and that nothing of it is."""

    async def case(directory: Path) -> str:
        gitlab = scripted(*answers)
        try:
            await gitlab.client().download(Dependency(id=3, token=token), directory / to, limit=limit)
        except GitLabJobsError as error:
            assert not (directory / "in").exists()
            away = [f"{each.url.host} without our token" for _, each in gitlab.seen if SECRET not in str(each.headers)]
            shown = str(error).replace(str(directory), "")
            return "; ".join([f"{type(error).__name__}: {shown}", f"calls: {len(gitlab.seen)}", *away[:1]])
        raise AssertionError("it should have been refused")

    return case


def uploaded(*answers: Given, name: str = "out") -> Case:
    """A file that is sent: why GitLab does not have it."""

    async def case(directory: Path) -> str:
        gitlab = scripted(*answers)
        (directory / "out").write_bytes(b"content")
        try:
            job = Job(id=3, token=f"glcbt-{SECRET}")
            await gitlab.client().upload(job, Artifact(), directory / name, filename="a.zip")
        except (GitLabJobsError, OSError) as error:
            shown = error.strerror if isinstance(error, OSError) else str(error)
            return f"{type(error).__name__}: {shown}; calls: {len(gitlab.seen)}"
        raise AssertionError("it should have been refused")

    return case


ARCHIVES: Mapping[str, Case] = {
    "download: page": fetched(HTML),
    "download: 401": fetched(text(401)),
    "download: 404": fetched(text(404, '{"message": "404 Not found"}')),
    "download: 500 for ever": fetched(text(500)),
    "download: larger than allowed": fetched(text(200, b"x" * 1001)),
    "download: without end": fetched(flood()),
    "download: that trickles": fetched(slow()),
    "download: connection reset": fetched(RESET),
    "download: redirect to a bucket that is gone": fetched(away("https://bucket.test/x", 302), text(404)),
    "download: redirect to a page": fetched(away("https://sso.test/x", 302), HTML),
    "download: redirect without TLS": fetched(away("http://bucket.test/", 302)),
    "download: redirect in circles": fetched(away("https://bucket.test/", 302)),
    "download: redirect to a file": fetched(away("file:///etc/passwd", 302)),
    "download: token with a line feed": fetched(HTML, token=f"{SECRET}\nX: y"),
    "download: no directory": fetched(text(200, b"abc"), to="missing/in"),
    "download: disk full": fetched(text(200, b"abc"), to="../../../../../../../../dev/full"),
    "upload: 413": uploaded(text(413)),
    "upload: 403": uploaded(text(403, '{"message": "403 Forbidden"}')),
    "upload: 500 for ever, as on a full disk": uploaded(text(500, '{"message": "No space left on device"}')),
    "upload: 503 for ever": uploaded(text(503)),
    "upload: page with 200": uploaded(HTML),
    "upload: redirect": uploaded(away("https://evil.test/", 308)),
    "upload: connection reset": uploaded(RESET),
    "upload: answer that trickles": uploaded(slow(201)),
    "upload: no file": uploaded(text(201), name="missing"),
}


@pytest.mark.parametrize("name", ARCHIVES)
async def test_a_bad_archive_is_one_line(name: str, tmp_path: Path, golden: Golden) -> None:
    """It says what was found, and how often it was tried."""
    line = one_line(await ARCHIVES[name](tmp_path))
    golden(f"gitlab_archives/{name}", line)


def test_nothing_else_is_kept(golden: Golden) -> None:
    """For cases that are gone."""
    golden.has_only("gitlab_archives/", ARCHIVES)
