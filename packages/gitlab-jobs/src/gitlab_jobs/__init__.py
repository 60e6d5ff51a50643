"""GitLab's job protocol: what runners and GitLab say to each other about jobs.

Everything here is synchronous and free of I/O, so that any program can use it: jobs as values (`decode_job`), when to
ask for them (`Polling`), what to say about one and when (`Report`), its log in patches (`Trace`), what must not be in
that (`Masker`), and what tokens say about themselves (`read_token`). `gitlab_jobs.client` talks to a GitLab with it,
`gitlab_jobs.coordinator` to runners, and `gitlab_jobs.testing` has a GitLab for tests.
"""

from gitlab_jobs._errors import FileInvalid, GitLabJobsError, NotKept, PayloadInvalid, Refused, Unreachable
from gitlab_jobs._job import Answer, End, Outcome, Phase, Report, Request, Update, known_reason
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
from gitlab_jobs._polling import Polled, Polling, is_retried, seconds_to_wait
from gitlab_jobs._tokens import Hints, mint_routable, read_token, shorten
from gitlab_jobs._trace import Patch, Spool, Trace

__all__ = [
    "Answer",
    "Artifact",
    "ArtifactsFile",
    "Cache",
    "Credential",
    "Dependency",
    "End",
    "Features",
    "FileInvalid",
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
    "NotKept",
    "OtelEndpoint",
    "Outcome",
    "Patch",
    "PayloadInvalid",
    "Phase",
    "PolicyOptions",
    "Polled",
    "Polling",
    "Port",
    "Refused",
    "Report",
    "Request",
    "RunnerInfo",
    "Secret",
    "Spool",
    "Step",
    "Stream",
    "SuspendOptions",
    "Timestamps",
    "Trace",
    "Tracing",
    "Unreachable",
    "Update",
    "Variable",
    "decode_job",
    "encode_job",
    "is_retried",
    "known_reason",
    "mint_routable",
    "read_token",
    "seconds_to_wait",
    "section_end",
    "section_start",
    "shorten",
]
