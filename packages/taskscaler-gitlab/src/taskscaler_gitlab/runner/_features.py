"""What a runner can say of itself: pure."""

_OF_ALL = (
    "variables",
    "artifacts",
    "cache",
    "fallback_cache_keys",
    "upload_multiple_artifacts",
    "upload_raw_artifacts",
    "refspecs",
    "masking",
    "raw_variables",
    "artifacts_exclude",
    "multi_build_steps",
    "return_exit_code",
    "cancel_gracefully",
    "two_phase_job_commit",
    "native_steps_integration",
)
_OF_CONTAINERS = ("image", "services", "service_variables", "service_multiple_aliases", "image_executor_opts")


def features(kind: str) -> tuple[str, ...]:
    """What is honoured of what GitLab knows, in its words; *kind* is ``instance`` or ``docker``."""
    return (*_OF_ALL, *(_OF_CONTAINERS if kind == "docker" else ()))
