"""The schema of ``[[dispatch]]``: rules that say which pools a job may use, how many may, and which are refused."""

from collections.abc import Mapping
from typing import Any, Literal

from attrs import Attribute, field, frozen
from attrs.validators import ge, optional

from fleeting import Duration
from taskscaler_gitlab._patterns import LONGEST

LONGEST_NAME = 100
LONGEST_REASON = 500
MOST_PATTERNS = 1000


def _are_patterns(_: object, __: "Attribute[Any]", value: tuple[str, ...] | None) -> None:
    for each in value or ():
        _is_pattern(each)
    if value is not None and not 0 < len(value) <= MOST_PATTERNS:
        raise ValueError(f"one to {MOST_PATTERNS} patterns; leave the key out if anything will do")


def _is_pattern(value: str) -> None:
    if not 0 < len(value) <= LONGEST or "\0" in value:
        raise ValueError(f'a pattern of at most {LONGEST} characters, such as "group/**"', value)


def _are_variables(_: object, __: "Attribute[Any]", value: Mapping[str, tuple[str, ...]]) -> None:
    for patterns in value.values():
        _are_patterns(None, __, patterns)


def _is_name(_: object, __: "Attribute[Any]", value: str) -> None:
    if value and not (len(value) <= LONGEST_NAME and value.isprintable()):
        raise ValueError(f"at most {LONGEST_NAME} characters that can be printed")


def _is_reason(_: object, __: "Attribute[Any]", value: str | None) -> None:
    if value is not None and not (0 < len(value) <= LONGEST_REASON and value.isprintable()):
        raise ValueError(f"one line of 1 to {LONGEST_REASON} characters, which the job's log will show")


def _patterns() -> Any:  # noqa: ANN401  (attrs')
    return field(default=None, validator=_are_patterns)


@frozen(kw_only=True)
class When:
    """The table ``when`` of a rule: what is known of a job that it is for. All of it has to hold."""

    namespace: tuple[str, ...] | None = _patterns()
    """Patterns of the path of the project's group or user, such as ``platform/**``."""

    project: tuple[str, ...] | None = _patterns()
    """Patterns of the project's whole path."""

    job: tuple[str, ...] | None = _patterns()
    """Patterns of the job's name."""

    stage: tuple[str, ...] | None = _patterns()
    """Patterns of the stage's name."""

    ref: tuple[str, ...] | None = _patterns()
    """Patterns of the branch or tag."""

    ref_type: Literal["branch", "tag"] | None = None
    """What the ref is."""

    ref_protected: bool | None = None
    """Whether the ref is protected; one of which GitLab does not say so is not."""

    source: tuple[str, ...] | None = _patterns()
    """Patterns of what began the pipeline, such as ``schedule``: ``CI_PIPELINE_SOURCE``."""

    image: tuple[str, ...] | None = _patterns()
    """Patterns of the image that the job names."""

    variables: Mapping[str, tuple[str, ...]] = field(factory=dict, validator=_are_variables)
    """Patterns of the values of variables, by their names; a variable that the job does not have matches none."""

    timeout_at_least: Duration | None = field(default=None, validator=optional(ge(0)))
    """Seconds that the job may take at the most: those of which it may take as long, or longer."""

    timeout_at_most: Duration | None = field(default=None, validator=optional(ge(0)))
    """The same, of which it may take as long, or less."""

    queued_at_least: Duration | None = field(default=None, validator=optional(ge(0)))
    """Seconds that the job has waited for a runner when it was handed out."""

    def __attrs_post_init__(self) -> None:
        """See that the times can hold."""
        least, most = self.timeout_at_least, self.timeout_at_most
        if least is not None and most is not None and least > most:
            raise ValueError("timeout_at_least up to timeout_at_most, or no job will do")


@frozen(kw_only=True)
class Rule:
    """The table ``dispatch``: a rule. The first that is for a job decides."""

    name: str = field(default="", validator=_is_name)
    """What people call it; nothing: its place in the file."""

    when: When = When()
    """The table ``when``; nothing: it is for every job."""

    pools: tuple[str, ...] = ()
    """Names of the pools whose instances the job may use, in the order in which they are preferred."""

    at_most: int = field(default=0, validator=ge(0))
    """Jobs at once by this rule; those beyond wait. 0: any number."""

    refuse: str | None = field(default=None, validator=_is_reason)
    """Why such a job fails instead: a sentence for its log."""

    runner: str | None = None
    """The ``name`` of the only ``[[runners]]`` entry that it is for."""

    def __attrs_post_init__(self) -> None:
        """See that it says what becomes of a job."""
        if self.refuse is not None and (self.pools or self.at_most):
            raise ValueError("`refuse`, or else `pools` and `at_most`")
        if self.refuse is None and not self.pools:
            raise ValueError("`pools`, with one name at least, or `refuse`")
