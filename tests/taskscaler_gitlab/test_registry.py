"""Runners that register with a router: what their tokens are good for, for how long, and what is kept of them."""

import json
from pathlib import Path
from typing import Any

import pytest
from attrs import asdict
from hypothesis import given
from hypothesis import strategies as st

from fleeting import ConfigError
from gitlab_jobs import read_token
from taskscaler_gitlab._expiry import SHARE, parse_time, renew_at
from taskscaler_gitlab.cells._registry import MOST_MANAGERS, MOST_RUNNERS, NEWS, Registry
from taskscaler_gitlab.cells._registry_file import MOST, RegistryFile

NOW = 1_800_000_000
DAY = 86_400
RANDOM = bytes(range(16))


def registered(registry: Registry, *, now: int = NOW, seed: int = 0) -> str:
    """A runner; its token."""
    token = registry.register({"description": "desk"}, now, seed.to_bytes(16, "big")).body["token"]
    assert isinstance(token, str)
    return token


def test_a_runner_lives_as_gitlabs_do() -> None:
    """Registered, verified, given another token, taken off: each token is good for as long as it is the runner's."""
    registry = Registry()
    reply = registry.register({"description": "a\nb"}, NOW, RANDOM)
    token = reply.body["token"]
    assert (reply.status, reply.body) == (201, {"id": 1, "token": token, "token_expires_at": None})
    assert token.startswith("glrt-")
    assert (read_token(token).organization, read_token(token).cell, read_token(token).type) == (0, None, 1)
    assert registry.runners[1].description == "a b"
    assert registry.verify(token, "r_1", NOW).body == reply.body
    again = registry.reset(token, NOW, bytes(16))
    assert (again.status, set(again.body)) == (201, {"token", "token_expires_at"})
    assert registry.verify(token, "r_1", NOW).status == 403
    assert registry.reset(token, NOW, bytes(16)).status == 403
    assert registry.verify(again.body["token"], "r_1", NOW).status == 200
    assert registry.unregister(again.body["token"], NOW).status == 204
    assert registry.unregister(again.body["token"], NOW).status == 403
    assert registry.runners == {}
    assert registry.register({}, NOW, RANDOM).body["id"] == 2, "a number is not given again"


def test_a_token_ends_and_is_replaced_in_time() -> None:
    """gitlab-runner and ours do that after three quarters of its life, by what the answers say."""
    registry = Registry(expires_after=4 * DAY)
    token = registered(registry)
    expires = parse_time(registry.verify(token, None, NOW).body["token_expires_at"])
    assert expires == NOW + 4 * DAY
    due = renew_at(NOW, expires)
    assert due == NOW + 4 * DAY * SHARE
    fresh = registry.reset(token, int(due), bytes(16)).body
    assert parse_time(fresh["token_expires_at"]) == due + 4 * DAY
    assert registry.find(fresh["token"], int(due) + 4 * DAY - 1) is not None
    assert registry.find(fresh["token"], int(due) + 4 * DAY) is None
    assert registry.reset(fresh["token"], int(due) + 4 * DAY, RANDOM).status == 403


def test_a_runner_goes_with_its_last_machine() -> None:
    """gitlab-runner takes off only its machine if its token begins with glrt-."""
    registry = Registry()
    token = registered(registry)
    for system in ("r_1", "r_2", "r_1", "not one\n", None, 7):
        registry.note(registry.runners[1], system, NOW)
    assert [*registry.runners[1].managers] == ["r_1", "r_2"]
    assert registry.unregister(token, NOW, system="r_1").status == 204
    assert [*registry.runners[1].managers] == ["r_2"]
    assert registry.unregister(token, NOW, system="r_2").status == 204
    assert registry.runners == {}
    token = registered(registry)
    for number in range(MOST_MANAGERS + 9):
        registry.note(registry.runners[2], f"r_{number}", NOW)
    assert len(registry.runners[2].managers) == MOST_MANAGERS


def test_not_every_call_is_written_down() -> None:
    """But a machine that is new is, at once."""
    registry = Registry()
    registered(registry)
    registry.note(registry.runners[1], "r_1", NOW)
    found = registry.runners[1]
    assert not registry.is_news(found, "r_1", NOW + NEWS - 1)
    assert registry.is_news(found, "r_1", NOW + NEWS)
    assert registry.is_news(found, "r_2", NOW)
    assert not registry.is_news(found, None, NOW)
    for number in range(2, MOST_MANAGERS + 2):
        assert registry.is_news(registry.runners[1], f"r_{number}", NOW) is (number <= MOST_MANAGERS)
        registry.note(registry.runners[1], f"r_{number}", NOW)
    assert registry.is_news(registry.runners[1], "r_0", NOW + NEWS), "a runner that makes up machines writes no more"


def test_however_much_runners_say_the_file_can_be_read_again() -> None:
    """As large as it gets: each has the longest description, and all of its machines."""
    registry = Registry()
    registry.register({"description": "\N{GRINNING FACE}" * 1000}, NOW, RANDOM)
    for number in range(MOST_MANAGERS):
        registry.note(registry.runners[1], f"{number:064}", NOW)
    assert len(json.dumps(asdict(registry.runners[1]))) * MOST_RUNNERS < MOST


@given(
    st.lists(st.tuples(st.sampled_from(["register", "reset", "unregister", "remove"]), st.integers(0, 9)), max_size=30)
)
def test_each_token_is_good_until_it_is_replaced_or_taken_off(moves: list[tuple[str, int]]) -> None:
    """Whatever is done with the others."""
    registry, good, bad = Registry(), dict[int, str](), set[str]()
    for number, (move, which) in enumerate(moves):
        chosen = sorted(good)[which % len(good)] if good else None
        if move == "register":
            token = registered(registry, seed=number + 1)
            good[registry.last_id] = token
        elif chosen is not None:
            bad.add(good[chosen])
            if move == "reset":
                good[chosen] = registry.reset(good[chosen], NOW, (number + 1).to_bytes(16, "big")).body["token"]
            elif move == "unregister":
                registry.unregister(good.pop(chosen), NOW)
            else:
                good.pop(chosen)
                assert registry.remove(chosen) is not None
        found = {each: registry.find(token, NOW) for each, token in good.items()}
        assert all(each is not None and each.id == key for key, each in found.items())
        assert all(registry.find(token, NOW) is None for token in bad)
        assert set(registry.runners) == set(good)


def test_what_is_on_the_disk_has_no_token(tmp_path: Path) -> None:
    """Hashes, for our user alone; another process finds the runner by its token."""
    file = RegistryFile(tmp_path / "state", expires_after=DAY)
    token = file.change(lambda each: each.register({"description": "desk"}, NOW, RANDOM)).body["token"]
    text = file.path.read_text()
    assert token not in text
    assert token.removeprefix("glrt-")[:12] not in text
    assert file.path.stat().st_mode & 0o777 == 0o600
    other = RegistryFile(tmp_path / "state", expires_after=DAY)
    found = other.read().find(token, NOW)
    assert found == file.read().runners[1]
    assert other.change(lambda each: each.remove(1)) is not None
    assert file.read().find(token, NOW) is None, "what another process removes is gone at once"
    assert file.change(lambda each: each.register({}, NOW, RANDOM)).body["id"] == 2


@pytest.mark.parametrize("text", ["", "{", "[]", '{"last_id": "x"}', '{"last_id": 1, "runners": [{"id": "one"}]}'])
def test_a_damaged_file_is_an_error_and_is_not_overwritten(tmp_path: Path, text: str) -> None:
    """Who would begin again with nothing, would refuse all runners."""
    file = RegistryFile(tmp_path)
    tmp_path.chmod(0o700)
    file.path.write_text(text)
    with pytest.raises((ValueError, ConfigError)):
        file.read()
    with pytest.raises((ValueError, ConfigError)):
        file.change(lambda each: each.register({}, NOW, RANDOM))
    assert file.path.read_text() == text


def test_what_could_not_be_kept_has_not_happened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token that nobody would know after a restart is not given out."""
    file = RegistryFile(tmp_path / "state")
    file.change(lambda each: each.register({}, NOW, RANDOM))

    def full(*_: Any) -> None:  # noqa: ANN401  (whatever it is called with)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("taskscaler_gitlab.cells._registry_file.write_whole", full)
        with pytest.raises(OSError, match="No space"):
            file.change(lambda each: each.register({}, NOW, bytes(16)))
    assert set(file.read().runners) == {1}


def test_who_reads_while_it_changes_takes_nothing_back(tmp_path: Path) -> None:
    """Each request for a job reads, while a thread writes: the first runner was forgotten, the second had its id."""
    file = RegistryFile(tmp_path)

    def register(registry: Registry) -> str:
        token = registered(registry, seed=registry.last_id)
        file.read()
        return token

    tokens = [file.change(register) for _ in range(3)]
    for each in (file, RegistryFile(tmp_path)):
        found = [each.read().find(token, NOW) for token in tokens]
        assert [runner and runner.id for runner in found] == [1, 2, 3]
