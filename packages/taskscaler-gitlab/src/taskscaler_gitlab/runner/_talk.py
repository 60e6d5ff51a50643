"""What a runner says in a job's log, in the words that people know from GitLab: pure."""

from fleeting.plugins import one_line
from gitlab_jobs import section_end, section_start

_GREEN, _RED, _YELLOW, _CYAN, _END = "\x1b[32;1m", "\x1b[31;1m", "\x1b[0;33m", "\x1b[0K\x1b[36;1m", "\x1b[0;m"


def section(name: str, title: str, now: float, *, marks: bool) -> str:
    """The beginning of a section; *marks* says whether GitLab wants them."""
    return f"{section_start(name, now).decode() if marks else ''}{_CYAN}{title}{_END}\n"


def end_of_section(name: str, now: float, *, marks: bool) -> str:
    """Its end."""
    return section_end(name, now).decode() if marks else ""


def warning(text: str) -> str:
    """A line about what goes wrong and does not matter much."""
    return f"{_YELLOW}WARNING: {one_line(text)}{_END}\n"


def failure(text: str) -> str:
    """A line about what made the job fail."""
    return f"{_RED}ERROR: {one_line(text)}{_END}\n"


def success(text: str) -> str:
    """A line about what went well in the end."""
    return f"{_GREEN}{text}{_END}\n"


def in_hours(seconds: float) -> str:
    """A time as GitLab Runner writes it, such as ``1h0m0s``."""
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{f'{hours}h' if hours else ''}{f'{minutes}m' if whole >= 60 else ''}{whole % 60}s"  # noqa: PLR2004  (a minute)
