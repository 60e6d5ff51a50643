"""The operator's settings, the table ``[executors.steps]``: how steps are run, and what they may be."""

from typing import Literal

from attrs import evolve, field, frozen
from attrs.validators import gt, min_len, optional

from fleeting import Duration
from job_steps import StepsInvalid, read_steps
from job_steps._gate import written
from job_steps._limits import Limits
from job_steps._policy import LEAST_MEMORY, Policy
from job_steps._sizes import size_of


@frozen(kw_only=True)
class Restrictions:
    """Rules that refuse steps: an operator's, and a job's own."""

    allowed_git: tuple[str, ...] | None = None
    """Patterns of repositories, with ``@`` and a pattern of versions if not all will do; ``*`` stands for any
    characters, ``/`` too. Without a scheme, only by https. No such key: any repository."""

    allowed_images: tuple[str, ...] | None = None
    """The same for images with their registry, with ``:`` and a pattern of tags, or ``@`` and one of digests."""

    allowed_paths: tuple[str, ...] | None = None
    """The same for directories and files, relative to the job's directory or absolute."""

    allowed_builtins: tuple[str, ...] | None = None
    """The same for what the agent has built in, but for scripts."""

    scripts: bool = True
    """Whether a job may have scripts and commands of its own. If not, of paths only those in ``allowed_paths`` may be
    taken, for a job writes its own files."""

    commits: bool = False
    """Whether a repository's version has to be a whole commit, and an image's a digest, which nobody can move."""

    @property
    def restrictions(self) -> Policy:
        """A policy with nothing but these."""
        return Policy(
            allowed_git=self.allowed_git,
            allowed_images=self.allowed_images,
            allowed_paths=self.allowed_paths,
            allowed_builtins=self.allowed_builtins,
            scripts=self.scripts,
            commits=self.commits,
        )


@frozen(kw_only=True)
class PolicySettings(Restrictions):
    """What steps may be, the table ``[executors.steps.policy]``. Without it, all is allowed, and nothing is added."""

    before: tuple[dict[str, object], ...] = field(default=(), repr=False)
    """Steps that run before those of each job. They need no leave."""

    after: tuple[dict[str, object], ...] = field(default=(), repr=False)
    """Steps that run after those of each job, if these succeed."""

    timeout: Duration | None = field(default=None, validator=optional(gt(0)))
    """How long a job's steps may take together, at most; without it, as long as the job may."""

    breakpoints: bool = False
    """Whether jobs may be held at breakpoints, for somebody to look at them."""

    breakpoint_timeout: Duration | None = field(default=None, validator=optional(gt(0)))
    """How long a job may be held, at most; without it, a day. A job that does not say is held for an hour, at most."""

    memory: str | None = None
    """How much memory the command of each step may have with all that it starts, such as ``"512m"``; it is killed if it
    needs more. Without it, as much as there is."""

    network: Literal["none"] | None = None
    """``"none"``: no command of a step may have the network. An instance that cannot keep that refuses the job."""

    def __attrs_post_init__(self) -> None:
        """See that the steps that are added can be read."""
        _see_that_they_can_be_read("before", self.before)
        _see_that_they_can_be_read("after", self.after)
        if self.memory is not None and size_of(self.memory) < LEAST_MEMORY:
            raise ValueError("a memory of at least 6m")

    @property
    def policy(self) -> Policy:
        """The policy itself."""
        return evolve(
            self.restrictions,
            before=self.before,
            after=self.after,
            timeout=self.timeout,
            breakpoints=self.breakpoints,
            breakpoint_timeout=self.breakpoint_timeout,
            memory=None if self.memory is None else size_of(self.memory),
            network=self.network,
        )


def _see_that_they_can_be_read(key: str, steps: tuple[dict[str, object], ...]) -> None:
    try:
        read_steps(written(steps), source=key)
    except (StepsInvalid, TypeError, ValueError) as error:
        raise ValueError(f"steps in {key} that can be read ({why(error)})") from error


def why(error: Exception) -> str:
    """Say what is wrong with steps that stand in a table: where they would be in a file is nothing to anybody."""
    return str(error).removeprefix(f"{error.source}:{error.line}: ") if isinstance(error, StepsInvalid) else str(error)


@frozen(kw_only=True)
class StepsConfig:
    """Settings of the steps executor. What its policy does not allow, no job gets."""

    base: str = field(default="taskscaler", validator=min_len(1))
    """Directory for the jobs' directories: relative to where commands start on the instance, or absolute."""

    step_runner: str | None = field(default=None, validator=optional(min_len(1)))
    """GitLab's ``step-runner`` on the instance, a path or a name to look up in ``PATH``, that runs the steps in place
    of our agent. It checks nothing, and says of a job's steps only what it prints."""

    policy: PolicySettings = PolicySettings()
    """The table ``policy``: what steps may be."""

    artifact_limit: int = field(default=2**30, validator=gt(0))
    """Bytes that the artifacts of one job may have."""

    cleanup_timeout: Duration = field(default=60.0, validator=gt(0))
    """How long clearing up after a job may take."""

    def __attrs_post_init__(self) -> None:
        """See that whoever runs the steps can do what the policy says."""
        if self.step_runner is None:
            return
        if self.policy.policy.restricts:
            raise ValueError(
                "either step_runner or a policy that refuses steps: GitLab's step-runner loads them without asking"
            )
        if self.policy.policy.limits != Limits():
            raise ValueError("a policy without memory and network, or no step_runner, which keeps no such limits")
