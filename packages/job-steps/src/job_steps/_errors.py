"""Every error of the package, one class per thing a caller would do differently.

JobStepsError
├── StepsInvalid     correct the file of steps, at the line that it names
├── StepFailed       a step cannot go on: its result has failed, and this is why
│   ├── NotLoaded    what the step refers to could not be fetched or read
│   └── StepRefused  a rule forbids the step: change the step, or ask who made the rule
└── ResultInvalid    what was to be read as a result is none: it comes from something else, or was cut off
"""


class JobStepsError(Exception):
    """Base class of everything that this package raises on purpose."""


class StepsInvalid(JobStepsError):
    """A file of steps is not what its format says.

    `source` is what the file is called, `line` where the mistake is, counted from 1; the message begins with both.
    """

    def __init__(self, message: str, *, source: str, line: int) -> None:
        """Take what is wrong, and where."""
        super().__init__(f"{source}:{line}: {message}")
        self.source = source
        self.line = line


class StepFailed(JobStepsError):
    """A step cannot go on. Running steps turns it into a failed result; only pure functions raise it to callers."""


class NotLoaded(StepFailed):
    """What a step refers to could not be fetched, or read."""


class StepRefused(StepFailed):
    """A rule forbids a step.

    `rule` is the rule's name, `why` what of the step it forbids.
    """

    def __init__(self, *, rule: str, why: str) -> None:
        """Take the rule, and what it says about the step."""
        super().__init__(f"{why} (rule `{rule}`)")
        self.rule = rule
        self.why = why


class ResultInvalid(JobStepsError):
    """Data that was to be read as the result of a step is none."""
