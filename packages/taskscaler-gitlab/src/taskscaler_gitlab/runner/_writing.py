"""What each stage of a job runs, as text for shells: pure."""

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence

from attrs import frozen

from gitlab_jobs import Job, Step
from taskscaler_gitlab._settings import RunnerSettings
from taskscaler_gitlab.runner._artifacts import KnownArtifact, collect_script
from taskscaler_gitlab.runner._caches import KnownCache, archive_script, restore_script
from taskscaler_gitlab.runner._dependencies import PLACE
from taskscaler_gitlab.runner._options import JobOptions
from taskscaler_gitlab.runner._sources import cleanup_script, clear_worktree_script, sources_script
from taskscaler_gitlab.runner._stages import AFTER_SCRIPT, Phase, Stage, When
from taskscaler_gitlab.runner._steps import AgentThere, steps_script
from taskscaler_gitlab.runner._steps import cleanup_script as steps_cleanup_script
from taskscaler_gitlab.runner._variables import JobEnvironment

_GREETING = r"""[ "$2" = - ] || printf 'Running on %s...\n' "$(hostname 2>/dev/null || uname -n)" """
_STATUS = "CI_JOB_STATUS"
_TAKE = '(cd "$1/@PLACE@" && exec tar -cf - .) | tar -xf - || exit'
_PRE, _POST = "pre_get_sources_script", "post_get_sources_script"
_KINDS = (When.ON_SUCCESS, "", "successful"), (When.ON_FAILURE, "_on_failure", "failed")

_SECTION = r"""printf 'section_start:%s:%s[hide_duration=true,collapsed=true]\r\033[0K\033[32;1m%s\033[0;m\n' \
    "$(date +%s)" "$_t_name" "$_t_text"
printf 'section_end:%s:%s\r\033[0K\n' "$(date +%s)" "$_t_name"
unset _t_name _t_text"""
"""Shows a command in a section of its own, which is over before the command runs, as with GitLab Runner."""

_CHECK = '_t_code=$?; [ "$_t_code" -eq 0 ] || exit "$_t_code"'


@frozen(kw_only=True)
class Writing:
    """Writes the stages of a job; their numbers come later."""

    job: Job
    settings: RunnerSettings
    environment: JobEnvironment
    agent: AgentThere
    """What runs steps on the instance, if the job has any."""

    def preparation(self) -> Stage:
        project = shlex.quote(self.environment.project_dir)
        script = "\n".join(
            [
                self.environment.preamble(),
                f"mkdir -p {project} || exit",
                _GREETING,
            ]
        )
        return Stage(
            number=0, phase=Phase.BEFORE, section="prepare_script", title="Preparing environment", script=script
        )

    def sources(self) -> Stage:
        hooks = {hook.name: hook.script for hook in self.job.hooks}
        before = _hooks(self.settings.pre_get_sources_script, *hooks.get(_PRE, ()))
        after = _hooks(*hooks.get(_POST, ()), self.settings.post_get_sources_script)
        script = sources_script(self.job, self.environment, self.settings, before=before, after=after)
        return Stage(
            number=0,
            phase=Phase.BEFORE,
            section="get_sources",
            title="Getting source from Git repository",
            script=self._ours(script),
            attempts=self._options.get_sources_attempts,
            retry=self._ours(clear_worktree_script(self.environment)),
        )

    def restoring(self, caches: Sequence[KnownCache], directory: str) -> Iterable[Stage]:
        if pulled := [cache for cache in caches if cache.pulls]:
            yield Stage(
                number=0,
                phase=Phase.BEFORE,
                section="restore_cache",
                title="Restoring cache",
                script=self._in_project(
                    restore_script(pulled, directory, cleans_up=self._options.failed_cache_cleanup)
                ),
                attempts=self._options.restore_cache_attempts,
            )

    def dependencies(self) -> Iterable[Stage]:
        wanted = [number for number, each in enumerate(self.job.dependencies) if each.artifacts_file.filename]
        if wanted:
            lines = []
            for number in wanted:
                each = self.job.dependencies[number]
                text = shlex.quote(f"Downloading artifacts for {' '.join(each.name.split())} ({each.id})...")
                lines += [f"printf '%s\\n' {text}", _TAKE.replace("@PLACE@", f"{PLACE}/{number}")]
            yield Stage(
                number=0,
                phase=Phase.BEFORE,
                section="download_artifacts",
                title="Downloading artifacts",
                script=self._in_project("\n".join(lines)),
            )

    def steps(self) -> Iterable[Stage]:
        if self.job.run:
            yield Stage(
                number=0,
                phase=Phase.SCRIPT,
                section="step_run",
                title='Executing "step_run" stage of the job script',
                script=steps_script(self.job, self.environment, self.settings, self.agent),
                when=When.ON_SUCCESS,
            )
        for step in self.job.steps:
            if step.script and step.name != AFTER_SCRIPT:
                section = f"step_{_name(step)}"
                yield Stage(
                    number=0,
                    phase=Phase.SCRIPT,
                    section=section,
                    title=f'Executing "{section}" stage of the job script',
                    script=self._theirs(step, self.settings.pre_build_script, self.settings.post_build_script),
                    when=When.of(step.when),
                    allow_failure=step.allow_failure,
                )
        for step in self.job.steps:
            if step.script and step.name == AFTER_SCRIPT:
                options = self._options
                yield Stage(
                    number=0,
                    phase=Phase.AFTER,
                    section=AFTER_SCRIPT,
                    title="Running after_script",
                    script=self._theirs(step),
                    timeout=options.after_script_timeout,
                    is_counted=not options.after_script_ignore_errors,
                )

    def keeping(self, caches: Sequence[KnownCache], directory: str, *, brings: bool) -> Iterable[Stage]:
        for when, suffix, word in _KINDS:
            kept = [cache for cache in caches if cache.pushes and cache.when in (when, When.ALWAYS)]
            if kept:
                yield Stage(
                    number=0,
                    phase=Phase.LATE,
                    section=f"archive_cache{suffix}",
                    title=f"Saving cache for {word} job",
                    script=self._in_project(archive_script(kept, directory, brings=brings)),
                    when=when,
                )

    def collecting(self, artifacts: Sequence[KnownArtifact]) -> Iterable[Stage]:
        for when, _, _ in _KINDS:
            left = [each for each in artifacts if each.when in (when, When.ALWAYS)]
            if left:
                script = self._in_project(collect_script(left))
                yield Stage(number=0, phase=Phase.LATE, script=script, when=when)

    def tidying(self) -> Iterable[Stage]:
        script = cleanup_script(self.environment) if self._options.job_cleanup else ""
        if script:
            yield Stage(number=0, phase=Phase.LATE, script=self._ours(script), is_counted=False)

    def cleanup(self) -> Stage:
        return Stage(
            number=0,
            phase=Phase.LATE,
            section="cleanup_file_variables",
            title="Cleaning up project directory and file based variables",
            script=f"{self._cleanup()}\nrm -rf {shlex.quote(self.environment.temp_dir)}",
            is_counted=False,
        )

    def _cleanup(self) -> str:
        files = steps_cleanup_script(self.environment) if self.job.run else ""
        return f"{self.environment.cleanup()}\n{files}"

    @property
    def _options(self) -> JobOptions:
        return self.environment.options

    @property
    def _is_status_ours(self) -> bool:
        """Whether the job leaves the variable to us that says how its script has ended."""
        return all(each.key != _STATUS for each in self.job.variables)

    def _ours(self, script: str) -> str:
        return f"{self.environment.preamble(write_files=False)}\n{script}\n"

    def _in_project(self, script: str) -> str:
        return self._ours(f"cd {shlex.quote(self.environment.project_dir)} || exit\n{script}")

    def _theirs(self, step: Step, before: str = "", after: str = "") -> str:
        return "\n".join(
            [
                self.environment.preamble(write_files=False),
                f'export {_STATUS}="$_t_status"' if step.name == AFTER_SCRIPT and self._is_status_ours else "",
                "unset _t_status",
                "if (set -o pipefail) 2>/dev/null; then set -o pipefail; fi",
                "set -e",
                f"cd {shlex.quote(self.environment.project_dir)}",
                *(["set -x"] if self._options.debug_trace else []),
                *self._commands(f"{_name(step)}_step", (before, *step.script, after)),
                "",
            ]
        )

    def _commands(self, name: str, commands: Sequence[str]) -> Iterator[str]:
        """The commands of a step, each behind what shows it."""
        has_sections = self._options.script_sections and self.job.features.trace_sections
        for number, command in enumerate(filter(None, commands)):
            yield _shown(command, f"section_{name}_{number}" if has_sections else "")
            yield command
            if self._options.exit_code_check:
                yield _CHECK


def _name(step: Step) -> str:
    """A step's name as GitLab's page knows sections, and as no shell stumbles over it."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", step.name) or "script"


def _hooks(*commands: str) -> str:
    return "\n".join(f"{_shown(each)}\n{each}" for each in commands if each)


def _shown(command: str, section: str = "") -> str:
    """What shows a command in the log: its first line, or all of it in a section if it has more."""
    whole = command.strip("\n")
    first, *more = whole.split("\n")
    if more and section:
        return f"_t_name={shlex.quote(section)} _t_text={shlex.quote(f'$ {whole}')}\n{_SECTION}"
    text = f"$ {first.rstrip()}{' # collapsed multi-line command' if more else ''}"
    return f"printf '\\033[32;1m%s\\033[0;m\\n' {shlex.quote(text)}"
