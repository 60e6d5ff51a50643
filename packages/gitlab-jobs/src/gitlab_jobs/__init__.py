"""GitLab's job protocol: what runners and GitLab say to each other about jobs.

Everything is synchronous and free of I/O, so that any program can use it: jobs as values (`decode_job`), the log that
is sent in patches (`Trace`), what must not be in it (`Masker`), and what tokens say about themselves (`read_token`).
"""

from gitlab_jobs._errors import GitLabJobsError, PayloadInvalid
from gitlab_jobs._json import decode_job, encode_job
from gitlab_jobs._lines import Stream, Timestamps, section_end, section_start
from gitlab_jobs._masking import Masker
from gitlab_jobs._payload import (
    Artifact,
    ArtifactsFile,
    Cache,
    Credential,
    Dependency,
    Features,
    GitInfo,
    Hook,
    Image,
    Input,
    InputValue,
    Job,
    JobInfo,
    OtelEndpoint,
    PolicyOptions,
    Port,
    RunnerInfo,
    Secret,
    Step,
    SuspendOptions,
    Tracing,
    Variable,
)
from gitlab_jobs._tokens import Hints, mint_routable, read_token, shorten
from gitlab_jobs._trace import Patch, Spool, Trace

__all__ = [
    "Artifact",
    "ArtifactsFile",
    "Cache",
    "Credential",
    "Dependency",
    "Features",
    "GitInfo",
    "GitLabJobsError",
    "Hints",
    "Hook",
    "Image",
    "Input",
    "InputValue",
    "Job",
    "JobInfo",
    "Masker",
    "OtelEndpoint",
    "Patch",
    "PayloadInvalid",
    "PolicyOptions",
    "Port",
    "RunnerInfo",
    "Secret",
    "Spool",
    "Step",
    "Stream",
    "SuspendOptions",
    "Timestamps",
    "Trace",
    "Tracing",
    "Variable",
    "decode_job",
    "encode_job",
    "mint_routable",
    "read_token",
    "section_end",
    "section_start",
    "shorten",
]
