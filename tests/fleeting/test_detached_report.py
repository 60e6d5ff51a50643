"""How the report of a host about its detached commands is read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleeting import Completed, ConnectError
from fleeting.connectors import Detached
from fleeting.connectors._detached_report import checked_name, ended, listed


@given(st.integers(0, 255), st.sampled_from(["", "KILL", "RTMIN+3"]), st.integers(0, 10**17))
def test_an_end_is_read_as_it_is_reported(status: int, name: str, cut: int) -> None:
    """A signal is reported in place of the status."""
    wanted = Completed(exit_status=None if name else status, signal=f"SIG{name}" if name else None, cut=cut)
    assert ended("a", f"ended {status}:{name}:{cut}") == wanted
    assert list(listed(f"a ended {status}:{name}:{cut}\nb running\nc absent\n")) == [
        Detached(name="a", completed=wanted),
        Detached(name="b"),
    ]


@given(st.text("aé /.\n\0é-", max_size=8))
def test_no_other_report_is_believed(text: str) -> None:
    """A host that says anything else is in error, and so is a name that would leave the directory."""
    with pytest.raises(ConnectError):
        ended("a", f"ended {text}")
    for name in ("../a", f"{text}/", f"/{text}", f"{text}\n", f".{text}"):
        with pytest.raises(ConnectError):
            checked_name(name)


def test_what_somebody_else_left_among_the_commands_hides_none_of_them() -> None:
    """A directory with a space, an end that no shell writes, a signal without a name: each is one line's own."""
    report = "a running\nstray b running\n.x running\nb ended x:y\nc ended 160:32:0\nd rebooted\n"
    assert [(each.name, each.completed, bool(each.lost)) for each in listed(report)] == [
        ("a", None, False),
        ("b", None, True),
        ("c", Completed(exit_status=160), False),
        ("d", None, True),
    ]
