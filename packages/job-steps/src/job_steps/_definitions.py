"""Functions and the steps that call them, as files define them.

GitLab's own words: a *function* is an interface (inputs, outputs) with an implementation (a command, or a list of
steps); a *step* is one call of a function.
"""

from collections.abc import Mapping

from attrs import field, frozen

from job_steps._references import Reference
from job_steps._values import Value


@frozen(kw_only=True)
class Parameter:
    """An input or an output of a function."""

    kind: str
    """`string`, `number`, `boolean`, `array` or `struct`."""
    default: Value = field(default=None, repr=False)
    """Used if there is none; None if there must be one."""
    is_sensitive: bool = False
    """Whether it is masked wherever people see it."""
    description: str = ""
    """For people."""


@frozen(kw_only=True)
class Exec:
    """A command that a function runs; no shell is involved."""

    command: tuple[str, ...] = field(repr=False)
    """The program and its arguments, at least the program; each may have expressions."""
    work_dir: str = ""
    """Where it runs; empty is the job's directory. May have expressions."""


@frozen(kw_only=True)
class Step:
    """One call of a function."""

    name: str
    """Unique in its list, if steps after it use its outputs."""
    reference: Reference
    """Where the function comes from."""
    script: str | None = field(default=None, repr=False)
    """What the shell is given, if the step is a script; the reference is that of the built-in function then."""
    inputs: Mapping[str, Value] = field(factory=dict, repr=False)
    """What the function is given; texts may have expressions."""
    env: Mapping[str, str] = field(factory=dict, repr=False)
    """Variables for the function and all that it calls; may have expressions."""
    container: str = ""
    """The image of the container that it runs in; may have expressions. Empty: it runs where its caller does."""
    line: int = 0
    """Where it stands in its file, counted from 1; 0 if it is from none."""


@frozen(kw_only=True)
class Function:
    """An interface and its implementation: either `exec` or `steps`."""

    source: str
    """What the file is called that it is from."""
    inputs: Mapping[str, Parameter] = field(factory=dict)
    """What it is given, by name."""
    outputs: Mapping[str, Parameter] = field(factory=dict)
    """What it returns, by name; empty if it is delegating."""
    is_delegating: bool = False
    """Whether its outputs are those of something else: the step `delegate`, or a result that the command writes."""
    env: Mapping[str, str] = field(factory=dict, repr=False)
    """Variables for the command, or for all steps; may have expressions."""
    exec: Exec | None = None
    """The command."""
    steps: tuple[Step, ...] = ()
    """The steps, one after the other."""
    output_values: Mapping[str, Value] = field(factory=dict, repr=False)
    """Of steps: what the outputs are; texts may have expressions."""
    delegate: str = ""
    """The step whose outputs are those of the function, if it is delegating."""
