"""What one job wishes, the table ``[jobs.options.steps]``."""

from attrs import field, frozen

from job_steps import Function, StepsInvalid, read_steps
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

    def __attrs_post_init__(self) -> None:
        """See that they can be read."""
        if self.steps and self.step is not None:
            raise ValueError("either steps or step")
        if self.inputs and self.step is None:
            raise ValueError("a step for the inputs")
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
