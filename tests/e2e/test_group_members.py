"""A daemon that is shared with a Unix group, and processes of other users, as the kernel tells them apart."""

import grp
import json
import os
import pwd
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from attrs import frozen

from tests.taskscaler.services import Service, command, serving, write

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root runs programs as other users"),
]

GROUP = "daemon"
"""One that every Unix system has, and nobody is a member of."""

MEMBER, OTHER_MEMBER, STRANGER = 54321, 54322, 54323
"""Users need no entry anywhere: the kernel knows them by number."""

ASK = """
import http.client, json, os, socket, sys
uid, groups, path, asked = json.loads(sys.argv[1])
os.setgroups(groups)
os.setresgid(uid, uid, uid)
os.setresuid(uid, uid, uid)

class Connection(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(path)

answers = []
for method, target, body in asked:
    connection = Connection("localhost")
    try:
        sent = None if body is None else json.dumps(body)
        connection.request(method, "/v1" + target, sent, {"taskscaler-client": f"{uid:032x}"})
        answer = connection.getresponse()
        answers.append([answer.status, json.loads(answer.read())])
    except OSError as error:
        answers.append([0, error.strerror])
print(json.dumps(answers))
"""
"""What a user's process does: it becomes that user once it has all its modules, and asks one thing after the other."""


LISTEN = """
import os, sys
import anyio
from pathlib import Path
from taskscaler._errors import SocketRefused
from taskscaler.serve._listen import listening
async def listen():
    async with listening(Path(sys.argv[1]), sys.argv[2]):
        pass
async def warm_up():
    async with listening(Path(sys.argv[1]).parents[2] / "own" / "own.sock", None):  # with all modules that it takes
        pass
anyio.run(warm_up)
os.setgroups([])
os.chown(Path(sys.argv[1]).parents[2], 54321, -1)
os.setresuid(54321, 54321, 54321)
try:
    anyio.run(listen)
except SocketRefused as error:
    print(error)
"""
"""A daemon's user who is not in the group."""


@frozen
class User:
    """Somebody else on this machine."""

    uid: int
    groups: tuple[int, ...]
    socket: Path

    def ask(self, *asked: tuple[str, str, object]) -> list[tuple[int, Any]]:
        """Ask the daemon as this user's process; the answers' status and data. 0: there is no reaching it, with why."""
        what = json.dumps([self.uid, self.groups, str(self.socket), asked])
        done = subprocess.run([sys.executable, "-c", ASK, what], check=True, capture_output=True)
        return [(status, data) for status, data in json.loads(done.stdout)]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """A daemon for the group, on a socket that its members can reach: `tmp_path` is ours alone."""
    write(tmp_path)
    with TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        socket = Path(directory) / "taskscaler" / "fleet.sock"
        with serving(tmp_path, "--socket-group", GROUP, "--socket", str(socket)) as service:
            service.socket = socket
            yield service


def test_members_use_the_fleet_and_nobody_else_reaches_it(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has leases and keys of their own; what is not theirs they neither see nor end; strangers cannot connect."""
    members = grp.getgrnam(GROUP).gr_gid
    there = service.socket.stat()
    assert (stat.S_IMODE(there.st_mode), there.st_gid) == (0o660, members)
    assert stat.S_IMODE(service.socket.parent.stat().st_mode) == 0o710
    member = User(MEMBER, (members,), service.socket)
    other = User(OTHER_MEMBER, (members,), service.socket)
    stranger = User(STRANGER, (), service.socket)
    assert stranger.ask(("GET", "/status", None)) == [(0, "Permission denied")]

    acquire = ("POST", "/acquire", {"key": "a", "request": "1"})
    opened, got, dialled, listed = member.ask(
        ("POST", "/client", {"ttl": 600}),
        acquire,
        ("POST", "/dial", {"key": "a", "lease": "0"}),
        ("GET", "/leases", None),
    )
    assert (opened[0], got[0], got[1]["key"]) == (200, 200, "a")
    assert dialled[0] == 403, dialled
    assert "own user" in dialled[1]["error"]["message"]
    assert [(each["key"], each["uid"]) for each in listed[1]["leases"]] == [("a", MEMBER)]

    lease, instance = got[1]["lease"], got[1]["instance"]
    forbidden = [
        ("GET", "/instances", None),
        ("GET", "/decisions", None),
        ("GET", "/events", None),
        ("POST", "/cordon", {"instance": instance}),
        ("POST", "/retain", {"instance": instance}),
        ("POST", "/reload", {}),
        ("POST", "/drain", {"delete": True}),
    ]
    assert [status for status, _ in other.ask(*forbidden)] == [403] * len(forbidden)
    _, seen, ended, named, mine = other.ask(
        ("POST", "/client", {"ttl": 600}),
        ("GET", "/leases", None),
        ("POST", "/release", {"key": "a", "lease": lease}),
        ("POST", "/release", {"key": f"{MEMBER}:a", "lease": lease}),
        acquire,
    )
    assert seen == (200, {"leases": []})
    assert (ended[0], named[0]) == (200, 200), "nothing happens where nothing is"
    assert (mine[0], mine[1]["key"]) == (200, "a")
    assert (mine[1]["instance"], mine[1]["slot"]) != (instance, got[1]["slot"])

    monkeypatch.setenv("TASKSCALER_SOCKET", str(service.socket))
    status, said = command("leases", "--json")
    assert status == 0
    assert sorted((each["key"], each["uid"]) for each in json.loads(said)["leases"]) == [
        (f"{MEMBER}:a", MEMBER),
        (f"{OTHER_MEMBER}:a", OTHER_MEMBER),
    ]
    member.ask(("POST", "/release", {"key": "a", "lease": lease}))
    assert [each["uid"] for each in service.ask("GET", "/leases")["leases"]] == [OTHER_MEMBER]


def test_whoever_is_not_in_the_group_cannot_share_with_it() -> None:
    """The error says what to do; a plain "operation not permitted" would not."""
    with TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        socket = Path(directory) / "taskscaler" / "of-group" / "fleet.sock"
        ran = [sys.executable, "-c", LISTEN, str(socket), GROUP]
        done = subprocess.run(ran, check=True, capture_output=True, text=True)
        assert "only members of the group 'daemon' can share a socket with it; add the daemon's user" in done.stdout
        assert not socket.parent.parent.exists()


def test_the_daemon_of_another_group_shares_the_directory(service: Service, tmp_path: Path) -> None:
    """Its members get through to their socket, the first ones to theirs, and neither to the other's."""
    another = pwd.getpwnam("nobody").pw_gid
    group = grp.getgrgid(another).gr_name
    here = tmp_path / "other"
    here.mkdir()
    write(here)
    socket = service.socket.with_name("other.sock")
    socket.parent.chmod(0o711)  # as a refusal says; in /run/taskscaler the daemon itself does it
    with serving(here, "--socket-group", group, "--socket", str(socket)):
        first, second = (grp.getgrnam(name).gr_gid for name in (GROUP, group))
        look = ("GET", "/status", None)
        reached = {
            (groups, place.name): User(MEMBER, (groups,), place).ask(look)[0][0]
            for groups in (first, second)
            for place in (service.socket, socket)
        }
    assert reached == {
        (first, "fleet.sock"): 200,
        (second, "other.sock"): 200,
        (second, "fleet.sock"): 0,
        (first, "other.sock"): 0,
    }
