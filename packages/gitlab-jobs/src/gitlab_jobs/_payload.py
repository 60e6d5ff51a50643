"""A job as GitLab describes it: the answer to ``POST jobs/request``, as values.

GitLab Runner's own types decide what is right (``common/spec`` of gitlab-runner): integers have no fraction, ids are no
strings, a missing key and ``null`` both stand for the empty value. Keys that are not known here are kept, and come out
again when the job is encoded: GitLab adds some with every release.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

from attrs import field, frozen

Json: TypeAlias = Mapping[str, Any]
"""A JSON object as Python reads it."""


NO_KEY = {"is_key": False}
"""Of a field that is no key of the JSON."""


@frozen(kw_only=True)
class _Part:
    """What all parts of a description have."""

    extra: Json = field(factory=dict, repr=False, metadata=NO_KEY)
    """The keys that are not known here, as they came."""


@frozen(kw_only=True)
class JobInfo(_Part):
    """What the job is called, and where it belongs."""

    name: str = ""
    """The job's name in the pipeline."""

    stage: str = ""
    """The pipeline's stage that it is in."""

    project_id: int = 0
    """The project's number."""

    project_name: str = ""
    """The project's name."""

    project_full_path: str = ""
    """The project's path with its groups."""

    project_jobs_running_on_instance_runners_count: str = ""
    """How many jobs of the project run on instance runners; a string, such as ``+Inf``."""

    pipeline_id: int = 0
    """The pipeline's number."""

    namespace_id: int = 0
    """The number of the project's namespace."""

    root_namespace_id: int = 0
    """The number of the namespace at the top."""

    organization_id: int = 0
    """The organization's number."""

    instance_id: str = ""
    """Which GitLab this is."""

    instance_uuid: str = ""
    """Which GitLab this is, as a UUID."""

    user_id: int = 0
    """Who started the job."""

    scoped_user_id: int | None = None
    """On whose behalf it acts, if not the user's own."""

    time_in_queue_seconds: float = 0.0
    """Seconds that the job waited for a runner."""

    queue_size: int = 0
    """Jobs that wait with it."""

    queue_depth: int = 0
    """Jobs that were looked at before this one was found."""


@frozen(kw_only=True)
class GitInfo(_Part):
    """Which sources the job wants."""

    repo_url: str = field(default="", repr=False)
    """Where they are; it has credentials in it."""

    repo_object_format: str = ""
    """``sha1`` or ``sha256``."""

    ref: str = ""
    """The branch or tag."""

    sha: str = ""
    """The commit."""

    before_sha: str = ""
    """The commit that the ref had before."""

    ref_type: str = ""
    """``branch`` or ``tag``."""

    refspecs: tuple[str, ...] = ()
    """What to fetch."""

    depth: int = 0
    """How many commits of history; 0 for all."""

    protected: bool | None = None
    """Whether the ref is protected, if GitLab says so."""


@frozen(kw_only=True)
class RunnerInfo(_Part):
    """What the job gets from its runner."""

    timeout: int = 0
    """Seconds that the job may take; 0 or less stands for two hours."""

    uuid: str = ""
    """Unused."""


@frozen(kw_only=True)
class InputValue(_Part):
    """The value of an input."""

    type: str = "string"
    """``string``, ``number``, ``boolean``, ``array`` or ``struct``."""

    content: Any = field(default=None, repr=False)
    """The value, as JSON has it."""

    sensitive: bool = False
    """Whether it is kept out of sight."""


@frozen(kw_only=True)
class Input(_Part):
    """An input of the job."""

    key: str = ""
    """Its name."""

    value: InputValue = InputValue()
    """Its value, with its type."""


@frozen(kw_only=True)
class Variable(_Part):
    """A variable of the job."""

    key: str = ""
    """Its name."""

    value: str = field(default="", repr=False)
    """Its value."""

    public: bool = False
    """Whether services get it too."""

    file: bool = False
    """Whether the value is written to a file, and the variable is the file's path."""

    masked: bool = False
    """Whether the value is hidden in the log."""

    raw: bool = False
    """Whether references to other variables in it stay as they are."""


@frozen(kw_only=True)
class Step(_Part):
    """Commands of the job."""

    name: str = ""
    """``script``, ``after_script`` or ``release``."""

    script: tuple[str, ...] = field(default=(), repr=False)
    """The commands."""

    timeout: int = 0
    """Seconds; GitLab Runner ignores it."""

    when: str = ""
    """``on_success``, ``always`` or ``on_failure``."""

    allow_failure: bool = False
    """Whether a failure of it is none of the job."""


@frozen(kw_only=True)
class Port(_Part):
    """A port of a container that others connect to."""

    number: int = 0
    """Which one."""

    protocol: str = ""
    """``http`` or ``https``."""

    name: str = ""
    """What it is called."""


@frozen(kw_only=True)
class Image(_Part):
    """A container image, of the job or of a service beside it."""

    name: str = ""
    """The image; empty if the job names none."""

    alias: str = ""
    """The names of a service on the network, with commas or spaces between them."""

    command: tuple[str, ...] = field(default=(), repr=False)
    """What to run in it instead of its own command."""

    entrypoint: tuple[str, ...] = ()
    """What to start it with."""

    ports: tuple[Port, ...] = ()
    """The ports that others may connect to."""

    variables: tuple[Variable, ...] = ()
    """Variables for this container alone."""

    pull_policy: tuple[str, ...] = ()
    """When to pull: ``always``, ``if-not-present``, ``never``, in the order in which to try."""

    executor_opts: Json = field(factory=dict)
    """Options for one executor each, by its name."""


@frozen(kw_only=True)
class Artifact(_Part):
    """Files that the job leaves behind."""

    name: str = ""
    """The archive's name, without its ending."""

    untracked: bool = False
    """Whether everything that git does not know is part of it."""

    paths: tuple[str, ...] = ()
    """Patterns of what is part of it."""

    exclude: tuple[str, ...] = ()
    """Patterns of what is not."""

    when: str = ""
    """``on_success``, ``on_failure`` or ``always``."""

    artifact_type: str = ""
    """``archive``, or the kind of report."""

    artifact_format: str = ""
    """``zip``, ``gzip`` or ``raw``."""

    expire_in: str = ""
    """How long GitLab keeps it."""


@frozen(kw_only=True)
class Cache(_Part):
    """Files that later jobs find again."""

    key: str = ""
    """What the files are found by."""

    untracked: bool = False
    """Whether everything that git does not know is part of it."""

    policy: str = ""
    """``pull-push``, ``pull`` or ``push``."""

    paths: tuple[str, ...] = ()
    """Patterns of what is part of it."""

    when: str = ""
    """``on_success``, ``on_failure`` or ``always``."""

    fallback_keys: tuple[str, ...] = ()
    """What to look for if there is nothing by the key, in order."""


@frozen(kw_only=True)
class Credential(_Part):
    """A login, such as that of a container registry."""

    type: str = ""
    """``registry``."""

    url: str = ""
    """Where it is good."""

    username: str = ""
    """The user."""

    password: str = field(default="", repr=False)
    """The password."""


@frozen(kw_only=True)
class ArtifactsFile(_Part):
    """An archive that another job left."""

    filename: str = ""
    """Its name; empty if there is none to fetch."""

    size: int = 0
    """Its bytes."""


@frozen(kw_only=True)
class Dependency(_Part):
    """A job whose artifacts this one starts with."""

    id: int = 0
    """The other job's number."""

    token: str = field(default="", repr=False)
    """What to fetch them with."""

    name: str = ""
    """The other job's name."""

    artifacts_file: ArtifactsFile = ArtifactsFile()
    """What there is to fetch."""


@frozen(kw_only=True)
class OtelEndpoint(_Part):
    """Where spans are sent to."""

    url: str = ""
    """The collector."""

    auth: str = field(default="", repr=False)
    """Its ``Authorization``."""


@frozen(kw_only=True)
class Tracing(_Part):
    """How the job's spans are part of a trace."""

    trace_id: str = ""
    """The trace."""

    span_parent_id: str = ""
    """The span above the job's."""

    otel_endpoints: tuple[OtelEndpoint, ...] = ()
    """Where to send them."""


@frozen(kw_only=True)
class Features(_Part):
    """What this GitLab takes."""

    trace_sections: bool = False
    """Whether the log may have section marks."""

    token_mask_prefixes: tuple[str, ...] = ()
    """Beginnings of tokens that are hidden in the log."""

    failure_reasons: tuple[str, ...] = ()
    """The reasons for a failure that it knows, beside those that every GitLab knows."""

    tracing: Tracing | None = None
    """Where spans go, if they are wanted."""


@frozen(kw_only=True)
class Secret(_Part):
    """A secret that the runner fetches from elsewhere."""

    vault: Json | None = field(default=None, repr=False)
    """Where it is in HashiCorp Vault."""

    gcp_secret_manager: Json | None = field(default=None, repr=False)
    """Where it is at Google."""

    azure_key_vault: Json | None = field(default=None, repr=False)
    """Where it is at Azure."""

    aws_secrets_manager: Json | None = field(default=None, repr=False)
    """Where it is at AWS."""

    gitlab_secrets_manager: Json | None = field(default=None, repr=False)
    """Where it is in GitLab."""

    file: bool = True
    """Whether the variable is the path of a file with the secret."""


@frozen(kw_only=True)
class Hook(_Part):
    """Commands around a stage."""

    name: str = ""
    """``pre_get_sources_script`` or ``post_get_sources_script``."""

    script: tuple[str, ...] = field(default=(), repr=False)
    """The commands."""


@frozen(kw_only=True)
class PolicyOptions(_Part):
    """What a pipeline execution policy says of the job."""

    execution_policy_job: bool = False
    """Whether the policy made the job."""

    policy_name: str = ""
    """The policy."""

    policy_variables_override_allowed: bool | None = None
    """Whether users may set variables over the policy's."""

    policy_variables_override_exceptions: tuple[str, ...] = ()
    """The variables for which the opposite holds."""


@frozen(kw_only=True)
class SuspendOptions(_Part):
    """When the job's environment is kept for a later job."""

    suspend_on_success: bool = False
    """Whether it is kept after a success."""

    suspend_on_failure: bool = False
    """Whether it is kept after a failure."""

    runtime_environment_key: str = ""
    """The environment to go on with."""


@frozen(kw_only=True)
class Job(_Part):
    """A job, as GitLab hands it out."""

    id: int
    """Its number; with `token`, what every later call is about."""

    token: str = field(repr=False)
    """The job's own token: good for this job alone, until it ends."""

    allow_git_fetch: bool = False
    """Whether sources of an earlier job may be brought up to date instead of cloned."""

    job_info: JobInfo = JobInfo()
    """Its name, project and pipeline."""

    git_info: GitInfo = GitInfo()
    """Its sources."""

    runner_info: RunnerInfo = RunnerInfo()
    """Its time limit."""

    inputs: tuple[Input, ...] = ()
    """Its inputs."""

    variables: tuple[Variable, ...] = ()
    """Its variables; of two with one name, the later counts."""

    steps: tuple[Step, ...] = ()
    """Its commands."""

    image: Image = Image()
    """The image to run in."""

    services: tuple[Image, ...] = ()
    """Containers beside it."""

    artifacts: tuple[Artifact, ...] = ()
    """What it leaves behind."""

    cache: tuple[Cache, ...] = ()
    """What it shares with later jobs."""

    credentials: tuple[Credential, ...] = ()
    """Its logins."""

    dependencies: tuple[Dependency, ...] = ()
    """The jobs whose artifacts it starts with."""

    features: Features = Features()
    """What this GitLab takes."""

    secrets: Mapping[str, Secret] = field(factory=dict)
    """Secrets to fetch, by the names of their variables."""

    hooks: tuple[Hook, ...] = ()
    """Commands around stages."""

    run: str = field(default="", repr=False)
    """Steps to run instead of a script, as JSON in a string; empty if there are none."""

    policy_options: PolicyOptions = PolicyOptions()
    """What a policy says of it."""

    suspend_options: SuspendOptions = SuspendOptions()
    """What is kept of its environment."""

    as_sent: bytes = field(default=b"", repr=False, eq=False, metadata=NO_KEY)
    """The description as it came, byte for byte, whatever has been changed here since; empty: it was made here."""

    @property
    def timeout(self) -> int:
        """Seconds that the job may take."""
        return self.runner_info.timeout if self.runner_info.timeout > 0 else 7200
