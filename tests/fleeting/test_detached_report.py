"""How the report of a host about its detached commands is read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleeting import Completed, ConnectError
from fleeting.connectors import Detached
from fleeting.connectors._detached_report import LONGEST_NAME, LONGEST_REPORT, checked_name, ended, listed
from fleeting.connectors._usage import LONGEST_USAGE


@given(
    st.integers(0, 255),
    st.sampled_from(["", "KILL", "RTMIN+3"]),
    st.integers(0, 10**17),
    st.sampled_from(["", ":", ":_t3_w4096", ":0m0.01s_0m0,02s_0m1.5s_2m0.25s"]),
)
def test_an_end_is_read_as_it_is_reported(status: int, name: str, cut: int, used: str) -> None:
    """A signal is reported in place of the status; earlier releases said nothing of what was used."""
    wanted = Completed(exit_status=None if name else status, signal=f"SIG{name}" if name else None, cut=cut)
    assert ended("a", f"ended {status}:{name}:{cut}{used}") == wanted
    assert list(listed(f"a ended {status}:{name}:{cut}{used}\nb running\nc absent\n")) == [
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


def test_a_report_has_room_for_thousands_of_commands() -> None:
    """A line got longer once, and instances with many commands could not be asked any more."""
    line = f"{'n' * LONGEST_NAME} ended 255:{'S' * 16}:{'9' * 18}:{'t' * LONGEST_USAGE}\n"
    (read,) = listed(line)
    assert read.completed
    assert read.completed.cut == 10**18 - 1
    assert 8000 * len(line) <= LONGEST_REPORT


def test_what_somebody_else_left_among_the_commands_hides_none_of_them() -> None:
    """A directory with a space, an end that no shell writes, a signal without a name: each is one line's own."""
    report = "a running\nstray b running\n.x running\nb ended x:y\nc ended 160:32:0\nd rebooted\n"
    assert [(each.name, each.completed, bool(each.lost)) for each in listed(report)] == [
        ("a", None, False),
        ("b", None, True),
        ("c", Completed(exit_status=160), False),
        ("d", None, True),
    ]
