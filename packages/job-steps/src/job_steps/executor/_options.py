"""What one job wishes, the table ``[jobs.options.steps]``."""

from attrs import field, frozen
from attrs.validators import and_, gt, le, optional

from fleeting import Duration
from job_steps import Function, StepsInvalid, read_steps
from job_steps._breakpoints import LONGEST_TIMEOUT, parse_breakpoints
from job_steps._gate import written
from job_steps._values import Value
from job_steps.executor._config import why


@frozen(kw_only=True)
class StepsOptions:
    """What a job wishes of the steps executor: a list of steps, or one step; else its script is the only step."""

    steps: tuple[dict[str, object], ...] = field(default=(), repr=False)
    """The steps, with the keys that they have in a file: ``name``, then ``step`` or ``script``, ``inputs``, ``env``."""

    step: str | None = None
    """The only step: a directory or file among the job's files, such as ``./ci/build``, a repository's, or an image's
    path, as in a list."""

    inputs: dict[str, object] = field(factory=dict, repr=False)
    """What that one is given."""

    breakpoints: tuple[str, ...] = ()
    """Where the job is held for somebody to look at it: a step (before it, and if it fails), or ``STEP:before``,
    ``STEP:after`` or ``STEP:failure``. A job's script is the step ``script``. The policy has to allow it."""

    breakpoint_timeout: Duration | None = field(default=None, validator=optional(and_(gt(0), le(LONGEST_TIMEOUT))))
    """How long the job is held, at most, at all of them together; then it goes on. Without it, an hour."""

    def __attrs_post_init__(self) -> None:
        """See that they can be read."""
        if self.steps and self.step is not None:
            raise ValueError("either steps or step")
        if self.inputs and self.step is None:
            raise ValueError("a step for the inputs")
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
        return bool(self.steps) or self.step is not None

    @property
    def calls(self) -> list[Value]:
        """The list of steps; empty if there is none."""
        if self.step is not None:
            return [{"name": "step", "step": self.step, "inputs": self.inputs}]  # type: ignore[dict-item]  # read below
        return list(self.steps)  # type: ignore[arg-type]  # so are these

    def function(self) -> Function:
        """Read them.

        Raises:
            StepsInvalid, TypeError, ValueError: That cannot be done.
        """
        return read_steps(written(self.calls))
