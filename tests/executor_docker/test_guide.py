"""The guide's files are right, as printed, and what a job wishes reaches its executor."""

import re
from pathlib import Path

import pytest

from executor_docker import DockerOptions
from fleeting import ConfigError
from taskscaler._jobsfile import JobsFile, read_jobs_file

GUIDES = Path(__file__).parents[2] / "docs" / "guides"
BLOCKS = [
    block
    for page in ("docker.md", "docker-instances.md")
    for block in re.findall(r"^```toml\n(.*?)^```", (GUIDES / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    if "[autoscaler]" in block
]


def read(directory: Path, text: str) -> JobsFile:
    """Read a jobs file, beside which there is what it names."""
    for name in ("src", "tests"):
        (directory / name).mkdir(exist_ok=True)
    key = directory / "key"
    key.touch()
    path = directory / "jobs.toml"
    path.write_text(text.replace("/home/me/.ssh/ci", str(key)))
    return read_jobs_file(path)


@pytest.mark.parametrize("block", BLOCKS)
def test_a_file_of_the_guides_is_right(tmp_path: Path, block: str) -> None:
    """Every key in it is known, and has a value that it may have."""
    assert read(tmp_path, block).jobs


def test_a_job_s_own_wishes_are_added_to_those_of_all(tmp_path: Path) -> None:
    """Key by key; a job that another executor runs has none of these."""
    test, lint = (job.spec.options for job in read(tmp_path, BLOCKS[0]).jobs)
    assert isinstance(test, DockerOptions)
    assert isinstance(lint, DockerOptions)
    assert test.caches == lint.caches == {"pip": "/root/.cache/pip"}
    assert (test.image, lint.image) == (None, "python:3.13-slim")
    assert [service.names for service in test.services] == [("db",)]
    elsewhere = read(tmp_path, BLOCKS[0].replace('executor = "docker"', 'executor = "instance"'))
    assert [job.spec.options for job in elsewhere.jobs] == [None, None]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            '[defaults]\nexecutor = "docker"\n[jobs.options.docker]\nimage = "x"',
            'jobs[0].options.docker (job "a"): the job may not use the image x; to allow it, add it to allowed_images',
        ),
        (
            '[defaults]\nexecutor = "docker"',
            'jobs[0].executor (job "a"): the job names no image; set image in [executors.docker]',
        ),
        ('[defaults.options.docker]\nimag = "x"', "unknown key `imag` in [defaults.options.docker]"),
        ('[jobs.options.docker]\nmemory = "much"', 'jobs[0].options.docker.memory (job "a"): expected a '),
        ("[jobs.options.docke]\nx = 1", 'jobs[0].options.docke (job "a"): "docke" is '),
        ("[jobs.options.instance]\nx = 1", 'jobs[0].options.instance (job "a"): the executor "instance" has '),
    ],
)
def test_wrong_wishes_are_told_once_and_where_they_stand(tmp_path: Path, options: str, said: str) -> None:
    """Those of all jobs are not told again for each."""
    file = f'[autoscaler]\nplugin = "local"\n[[jobs]]\nname = "a"\nscript = "true"\n{options}\n'
    with pytest.raises(ConfigError) as error:
        read(tmp_path, file)
    assert [line.partition("jobs.toml: ")[2][: len(said)] for line in error.value.lines] == [said]
