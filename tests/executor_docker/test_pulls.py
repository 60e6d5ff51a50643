"""Where images come from: the policies in their order, logins, and what is told when none of them helps."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from executor_docker import DockerError, PullPolicy
from executor_docker import Registry as Login
from taskscaler.executors import Verdict
from tests.executor_docker.benches import Bench, bench_on
from tests.executor_docker.registries import PASSWORD, USER, Registry, registry
from tests.fleeting_docker_engine.daemons import Daemon

pytestmark = pytest.mark.anyio

ALWAYS, PRESENT, NEVER = PullPolicy.ALWAYS, PullPolicy.IF_NOT_PRESENT, PullPolicy.NEVER


@pytest.fixture(scope="module")
def images(docker: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """Run a registry."""
    with registry(tmp_path_factory.mktemp("registry"), docker) as running:
        yield running


@pytest.fixture
async def bench(docker: Daemon, images: Registry, tmp_path: Path) -> AsyncIterator[Bench]:
    """Start an instance whose daemon does not have the registry's image."""
    async with bench_on(docker, tmp_path) as bench:
        async with docker.engine() as engine:
            await images.forget(engine)
        yield bench


def config(images: Registry, *policies: PullPolicy, password: str = PASSWORD) -> dict[str, Any]:
    """Settings with a login."""
    login = {images.host: Login(username=USER, password=password)}
    return {"image": images.image, "pull_policy": policies, "registries": login}


async def test_an_image_is_pulled_with_the_registry_s_login_and_is_there_afterwards(
    bench: Bench, images: Registry
) -> None:
    """Once pulled it need not be again; the policy that never pulls is content then."""
    for policy in (PRESENT, NEVER):
        outcome = await bench.run("echo pulled", config=config(images, policy))
        assert outcome.verdict is Verdict.SUCCEEDED
    assert bench.said == "pulled\n" * 2


async def test_a_job_brings_a_login_where_the_operator_has_none(bench: Bench, images: Registry) -> None:
    """And the operator's is the one that counts where there are both."""
    ours = config(images, PRESENT)
    logins = ours.pop("registries")
    outcome = await bench.run("true", config=ours, options={"registries": logins})
    assert outcome.verdict is Verdict.SUCCEEDED
    wrong = {"registries": {images.host: Login(username=USER, password="wrong")}}
    outcome = await bench.run("true", config=config(images, ALWAYS), options={**wrong, "pull_policy": (ALWAYS,)})
    assert outcome.verdict is Verdict.SUCCEEDED


async def test_a_policy_that_fails_makes_room_for_the_next(bench: Bench, images: Registry) -> None:
    """A registry that refuses is no trouble if the image is there, and that was to be tried too."""
    await bench.run("true", config=config(images, ALWAYS))
    wrong = config(images, ALWAYS, PRESENT, password="wrong")
    assert (await bench.run("true", config=wrong)).verdict is Verdict.SUCCEEDED
    with pytest.raises(DockerError):
        await bench.run("true", config=config(images, ALWAYS, password="wrong"))


@pytest.mark.parametrize("kind", ["wrong login", "no such image", "no registry"])
async def test_an_image_that_cannot_be_pulled_is_told_in_one_sentence(
    bench: Bench, images: Registry, kind: str
) -> None:
    """Whose fault it is, and never the password."""
    given = config(images, PRESENT, password="wrong-secret" if kind == "wrong login" else PASSWORD)
    expected = f"the registry {images.host} denied i-1 the image {images.image}; check its name, or"
    if kind == "no such image":
        given["image"] = f"{images.host}/none:1"
        expected = f"i-1 could not pull the image {images.host}/none:1: manifest for {images.host}/none:1 not found"
    if kind == "no registry":
        given["image"] = "127.0.0.1:1/none:1"
        expected = "i-1 could not pull the image 127.0.0.1:1/none:1: "
    with pytest.raises(DockerError) as error:
        await bench.run("true", config=given)
    said = str(error.value).replace(bench.slot.instance, "i-1")
    assert said.startswith(expected)
    assert "\n" not in said
    assert "secret" not in said


async def test_a_password_is_read_from_its_file_and_shown_nowhere(bench: Bench, images: Registry) -> None:
    """Not in the settings' repr either."""
    file = bench.directory / "password"
    file.write_text(f"{PASSWORD}\n")
    login = Login(username=USER, password_file=str(file))
    given = {"image": images.image, "registries": {images.host: login}}
    assert (await bench.run("true", config=given)).verdict is Verdict.SUCCEEDED
    assert PASSWORD not in repr(Login(username=USER, password=PASSWORD))
