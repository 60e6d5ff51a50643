"""What one job wishes, the table ``[jobs.options.steps]``."""

from copy import copy
from typing import Final

from attrs import field, frozen
from attrs.validators import and_, gt, le, optional

from fleeting import Duration
from job_steps import Function, StepsInvalid, read_steps
from job_steps._breakpoints import LONGEST_TIMEOUT, parse_breakpoints
from job_steps._gate import written
from job_steps.executor._config import Restrictions, why

ONLY_STEP: Final = "step"
"""What the step is called of a job that has only one."""


@frozen(kw_only=True)
class StepsOptions:
    """What a job wishes of the steps executor: a list of steps, or one step; else its script is the only step."""

    steps: tuple[dict[str, object], ...] = field(default=(), repr=False)
    """The steps, with the keys that they have in a file: ``name``, then ``step`` or ``script``, ``inputs``, ``env``."""

    file: str | None = None
    """A file with the list, in YAML: relative to the jobs file, and inside its directory. At most 1,048,576 characters.
    It need not be among the job's files."""

    step: str | None = None
    """The only step: a directory or file among the job's files, such as ``./ci/build``, a repository's, or an image's
    path, as in a list."""

    inputs: dict[str, object] = field(factory=dict, repr=False)
    """What that one is given."""

    policy: Restrictions | None = None
    """The table ``policy``: rules for all that the job runs, also for what its steps bring along. They can only refuse
    more than the operator's do, which are in force, too."""

    breakpoints: tuple[str, ...] = ()
    """Where the job is held for somebody to look at it: a step (before it, and if it fails), or ``STEP:before``,
    ``STEP:after`` or ``STEP:failure``. A job's script is the step ``script``. The policy has to allow it."""

    breakpoint_timeout: Duration | None = field(default=None, validator=optional(and_(gt(0), le(LONGEST_TIMEOUT))))
    """How long the job is held, at most, at all of them together; then it goes on. Without it, an hour."""

    _text: str = field(default="", init=False, repr=False)
    """What `file` has."""

    def __attrs_post_init__(self) -> None:
        """See that they can be read."""
        if sum((bool(self.steps), self.file is not None, self.step is not None)) > 1:
            raise ValueError("only one of `steps`, `file` and `step`")
        if self.inputs and self.step is None:
            raise ValueError("`step` beside `inputs`; those of a list are in its steps")
        try:
            parse_breakpoints(self.breakpoints)
        except ValueError as error:
            raise ValueError(f"breakpoints that can be met ({error})") from error
        try:
            self.function()
        except (StepsInvalid, TypeError, ValueError) as error:
            raise ValueError(f"steps that can be read ({why(error)})") from error

    @property
    def stands_for_script(self) -> bool:
        """Whether a job that wishes this needs no script."""
        return bool(self.steps) or self.file is not None or self.step is not None

    @property
    def text(self) -> str:
        """The list of steps, as `read_steps` takes it; of a file, once `with_text` has said what it has."""
        if self.step is not None:
            return written([{"name": ONLY_STEP, "step": self.step, "inputs": self.inputs}])
        return self._text or written(list(self.steps))

    def with_text(self, text: str) -> "StepsOptions":
        """See `taskscaler.executors.TakesFile`."""
        try:
            function = read_steps(text, source=self.file or "")
        except StepsInvalid as error:
            raise ValueError(str(error)) from error
        if function.exec is not None or function.inputs or function.outputs or function.is_delegating:
            raise ValueError(f"{self.file} has a function, expected a list of steps; name its directory in `step`")
        if not function.steps:
            raise ValueError(f"{self.file} has no steps; write a list of them")
        changed = copy(self)
        object.__setattr__(changed, "_text", text)
        return changed

    def function(self) -> Function:
        """Read them.

        Raises:
            StepsInvalid, TypeError, ValueError: That cannot be done.
        """
        return read_steps(self.text)
