"""How steps run, one after the other: what to do next, and what came of it. No I/O, no clock.

`Run` is told facts (a function was loaded, a command has ended) with the time, and says what to do next: load, execute,
or nothing any more. Steps that call steps are frames of a stack, so that how deep they go is a number with a limit.

The environment of a step has layers; the upper ones win: what the run was given, what earlier steps exported, and then,
from the outermost function to the step, what `env` says of each.

Source: docs.gitlab.com/ci/functions, "Environment variables".
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeAlias

from attrs import define, evolve, field, frozen

from job_steps import _files
from job_steps._definitions import Function, Step
from job_steps._errors import StepFailed
from job_steps._expressions import Scope, expand, expand_text
from job_steps._foreign import check_over, in_time, weight_of_tree
from job_steps._nearest import nearest
from job_steps._references import DynamicReference, ImageReference, Reference, expanded, image_of
from job_steps._results import OUT_OF_MEMORY, OutOfMemory, Resources, Status, StepResult
from job_steps._secrets import Secrets
from job_steps._values import Hidden, Value, bounded, mask, reveal, weight_of

MAX_CALLS = 32
"""Levels of functions that call functions."""

MAX_STEPS = 10_000
"""Steps of one run."""

MAX_KEPT = 400_000
"""Parts of all inputs, outputs, variables and commands of one run, of which 40 characters count as one."""

_LONGEST_ERROR = 4096
"""Characters of an error, which may have in it what steps have written."""

LOG_LEVEL = "CI_STEPS_LOG_LEVEL"
"""The variable that tells functions how much to say."""

_LOG_LEVELS = ("info", "debug", "warn", "error")


@frozen(kw_only=True)
class Variable:
    """A variable of a job: not one of the environment, but what expressions have as `vars`."""

    key: str
    """Its name."""
    value: str = field(repr=False)
    """What it is, or what is in the file."""
    is_file: bool = False
    """Whether steps get the path of a file that has the value in it."""
    is_masked: bool = False
    """Whether nobody is to see the value."""


@frozen(kw_only=True)
class Origin:
    """Where a function came from, and so the steps in it."""

    kind: str
    """`job` (whoever started the run), `local`, `git`, `image` or `builtin`. What a function refers to by a path inside
    its own `root` is of its kind."""
    name: str = ""
    """A repository or an image, with the commit or the digest if it is known; empty for a job."""
    root: str = ""
    """The directory that everything from there is in; empty if that is not known."""
    directory: str = ""
    """The directory of this function, which paths in it are relative to."""


@frozen(kw_only=True)
class Load:
    """To do: get the function of a step. Then tell `loaded` or `failed`."""

    step: Step
    """With expressions in its reference replaced."""
    path: tuple[str, ...]
    """The names that lead to it."""
    origin: Origin
    """Of the list that it is in."""
    is_static: bool
    """Whether its reference was the same in each run."""


@frozen(kw_only=True)
class Execute:
    """To do: run a command. Then tell `executed` or `failed`."""

    path: tuple[str, ...]
    command: tuple[str, ...] = field(repr=False)
    work_dir: str
    env: Mapping[str, str] = field(repr=False)
    """The whole environment."""
    output_file: str
    """Empty files to make before."""
    export_file: str


@frozen(kw_only=True)
class Caller:
    """A function that is being run, as those know it that it calls."""

    reference: str
    """Where it came from, for people."""
    identity: str = ""
    """What is the same for the same file; empty if that is not known."""


@frozen(kw_only=True)
class Delegate:
    """To do: have a step run by an agent in a container. Tell `grown` meanwhile, then `came_back` or `failed`."""

    step: Step
    """With expressions in its reference replaced."""
    image: ImageReference
    """What the container is made of."""
    path: tuple[str, ...]
    """The names that lead to the step."""
    origin: Origin
    """Of the list that it is in."""
    is_static: bool
    """Whether its reference was the same in each run."""
    inputs: Mapping[str, Value] = field(repr=False)
    """What its function is given."""
    base: "Mapping[str, str]" = field(repr=False)
    """What earlier steps have exported."""
    env: "Mapping[str, str | Hidden]" = field(repr=False)
    """What `env` says from the outermost function to the step."""
    calls: "tuple[Caller, ...]"
    """The functions around it, the outermost first."""
    steps_before: int
    """How many steps of the whole have begun before it."""
    is_own: bool = False
    """Whether it is not the job's, but of whoever runs it: then nothing of the job's environment goes along."""


@frozen(kw_only=True)
class CameBack:
    """What came of a step that ran in a container."""

    result: StepResult
    """Of its function."""
    outputs: Mapping[str, Value] = field(factory=dict, repr=False)
    exports: Mapping[str, str] = field(factory=dict, repr=False)
    """Of all steps in it."""
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """What is to be masked from now on."""


@frozen(kw_only=True)
class Finish:
    """Nothing to do any more."""

    result: StepResult


Action: TypeAlias = Load | Execute | Delegate | Finish


@frozen(kw_only=True)
class Settings:
    """What a run is given beside the function."""

    origin: Origin
    """Of the function; `directory` is where paths in it begin."""
    work_dir: str
    """Where commands run."""
    env: Mapping[str, str] = field(repr=False)
    """The environment of all steps: nothing else is inherited."""
    variables: Sequence[Variable] = field(default=(), repr=False)
    """Of the job; those that are files have the path as value here."""
    inputs: Mapping[str, Value] = field(factory=dict, repr=False)
    """What the function is given."""
    secrets: Sequence[str] = field(default=(), repr=False)
    """What else is masked, such as what is in files."""
    own: Collection[str] = ()
    """Names of the list's steps that are not the job's, but of whoever runs it."""
    own_env: Mapping[str, str] = field(factory=dict, repr=False)
    """The environment of those, in place of `env`."""
    last_env: Mapping[str, str] = field(factory=dict)
    """What every command has in its environment, whatever steps, exports and functions say."""
    files: str
    """A directory for the files that steps write; what is called in it, the run decides."""
    step_env: "Mapping[str, str | Hidden]" = field(factory=dict, repr=False)
    """What `env` of the functions around this one says, if it was called from another place."""
    identity: str = ""
    """What is the same for the same file of the function, if others may call it."""
    calls: tuple[Caller, ...] = ()
    """The functions around it, in other places, the outermost first."""
    is_static: bool = True
    """Whether the reference to it was the same in each run."""
    reference: str = ""
    """Where it came from, if it was called from another place."""
    steps_before: int = 0
    """How many steps of the whole have begun elsewhere."""


@define
class _Frame:
    """A function that is being run."""

    function: Function
    origin: Origin
    identity: str
    """What file it is from, to find functions that call themselves; empty if that is not known."""
    result: StepResult
    inputs: Mapping[str, Value]
    env: "dict[str, str | Hidden]"
    """What `env` says from the outermost function to this one."""
    number: int
    """Of all frames, in the order in which they began."""
    next_step: int = 0
    step: Step | None = None
    """The one that is being loaded."""
    outputs: dict[str, Mapping[str, Value]] = field(factory=dict)
    """Of the steps that have run, by name."""


@define
class Run:
    """One run of a function.

    Ask `start` what to do first; every fact is answered by what to do next. `result` is the tree as far as it has
    grown, at any time, and `take_log` what the run itself says.
    """

    function: Function
    settings: Settings
    secrets: Secrets = field(init=False, factory=Secrets)
    """What is masked in results, and is to be masked in logs; some come while steps run."""
    _base: "dict[str, str | Hidden]" = field(init=False, factory=dict)
    _exports: dict[str, str] = field(init=False, factory=dict)
    _own_exports: dict[str, str] = field(init=False, factory=dict)
    """Of the steps that are not the job's."""
    _vars: dict[str, Value] = field(init=False, factory=dict)
    _stack: list[_Frame] = field(init=False, factory=list)
    _begun: int = field(init=False, default=0)
    _kept: int = field(init=False, default=0)
    """How much is in the tree so far."""
    _log: list[str] = field(init=False, factory=list)
    outputs: Mapping[str, Value] = field(init=False, factory=dict, repr=False)
    """What the function has returned, once it has."""
    _result: StepResult = field(init=False, factory=StepResult)

    def start(self, now: float) -> Action:
        """Begin. *now* is in seconds since 1970, as everywhere here."""
        self._result = StepResult(started=now)
        try:
            for secret in self.settings.secrets:
                self.secrets.add(secret)
            for each in self.settings.variables:
                if each.is_masked and not each.is_file:
                    self._keep_secret(each.value)
                self._vars[each.key] = Hidden(each.value) if each.is_masked and not each.is_file else each.value
            self._base.update(self.settings.env)
            self._base[LOG_LEVEL] = self._log_level()
            declared, settings = self.function.inputs, self.settings
            given = {
                name: self._guarded(each, is_sensitive=name in declared and declared[name].is_sensitive)
                for name, each in settings.inputs.items()
            }
            self._check_identity(settings.identity, settings.reference, is_static=settings.is_static)
            for value in settings.step_env.values():
                self._keep_secrets({"": value})
            env = dict(settings.step_env)
            self._enter(
                self.function, settings.origin, identity=settings.identity, result=self._result, given=given, env=env
            )
        except StepFailed as error:
            return self._fail_whole(str(error), now)
        return self._go_on(now)

    def loaded(self, function: Function, origin: Origin, now: float, *, identity: str = "") -> Action:
        """Take the function of the step that was to be loaded.

        Args:
            function: As its file defines it.
            origin: Where it came from.
            now: The time.
            identity: What is the same for the same file, such as its real path.
        """
        frame = self._stack[-1]
        step = frame.step
        if step is None:
            raise RuntimeError("a function that nobody asked for")
        try:
            scope = self._scope(frame)
            given = {name: self._input(function, name, value, scope) for name, value in step.inputs.items()}
            env = {name: expand_text(text, scope) for name, text in step.env.items()}
            self._check_calls(step, identity)
            result = evolve(frame.result.steps[-1], env=self._shown_texts(env))
            below = env if self._is_own((*self._path(), step.name)) else {**frame.env, **env}
            self._enter(function, origin, identity=identity, result=result, given=given, env=below)
        except StepFailed as error:
            return self._fail_step(str(error), now)
        return self._go_on(now)

    def grown(self, result: StepResult, now: float) -> None:
        """Take what has come so far of the step that runs in a container.

        Raises:
            StepFailed: No run has such a tree.
        """
        self._check_kept(self._weight_of(result))
        self._adopt(result, now)

    def came_back(self, came: CameBack, now: float) -> Action:
        """Take what came of the step that ran in a container."""
        frame = self._stack[-1]
        is_success = came.result.status is Status.SUCCESS
        try:
            if is_success:
                check_over(came.result)
            self._keep(self._weight_of(evolve(came.result, outputs={})))
            for secret in came.secrets:
                self.secrets.add(secret)
            self._keep_secrets(came.outputs)
            outputs = self._shown_values(came.outputs)
            for name, text in came.exports.items():
                self._charge([name, text])
        except StepFailed as error:
            return self._fail_step(str(error), now)
        self._begun += sum(1 for _ in came.result.walk())
        self._exports.update(came.exports)
        self._adopt(evolve(came.result, outputs=outputs), now)
        done = frame.result.steps[-1]
        if self._is_own((*self._path(), done.name)):
            self._own_exports.update(came.exports)
        if not is_success:
            return self._fail_step(came.result.error or f"it is {came.result.status.value} in its container", now)
        frame.result = evolve(frame.result, steps=(*frame.result.steps[:-1], evolve(done, ended=now)))
        frame.outputs[done.name] = dict(came.outputs)
        frame.step = None
        return self._go_on(now)

    def _weight_of(self, result: StepResult) -> int:
        """How much there is in a tree that came out of a container. Raises StepFailed if no run has such a one."""
        settings = self.settings
        return weight_of_tree(
            result,
            levels=MAX_CALLS - len(settings.calls) - len(self._stack),
            steps=MAX_STEPS + 1 - settings.steps_before - self._begun,  # one may have been too many, and is there
        )

    def _adopt(self, result: StepResult, now: float) -> None:
        """Make the result of a function in a container that of the step that called it."""
        frame = self._stack[-1]
        begun = frame.result.steps[-1]
        began = now if begun.started is None else begun.started
        adopted = evolve(
            in_time(result.scrubbed(self.secrets.scrub), began, now),
            name=begun.name,
            reference=begun.reference,
            container=begun.container,
            started=begun.started,
            env={**begun.env, **result.env},
        )
        frame.result = evolve(frame.result, steps=(*frame.result.steps[:-1], adopted))

    def failed(self, error: str, now: float) -> Action:
        """Take why the step could not be loaded, or the command not started."""
        frame = self._stack[-1]
        return self._fail_step(error, now) if frame.step else self._fail_frame(error, now)

    def executed(
        self,
        exit_code: int,
        outputs: bytes | None,
        exports: bytes | None,
        now: float,
        *,
        resources: Resources | None = None,
        out_of_memory: OutOfMemory | None = None,
    ) -> Action:
        """Take how the command ended, and what is in its files; None if there is more in one than is read.

        An exit code below 0 is a signal that ended it.
        """
        self.noted(exit_code, resources, out_of_memory=out_of_memory)
        frame = self._stack[-1]
        if exit_code:
            if out_of_memory:
                what = f'Step "{frame.result.name}"' if frame.result.name else "The command"
                self._log.append(f"{what} was killed: {out_of_memory}")
                return self._fail_frame(f"the command was killed: {out_of_memory}", now)
            return self._fail_frame(_exit(exit_code), now)
        try:
            function = frame.function
            if outputs is None or exports is None:
                raise StepFailed(_files.too_big("outputs" if outputs is None else "exports"))
            found = (
                _files.read_delegated(outputs)
                if function.is_delegating
                else _files.read_outputs(outputs, function.outputs)
            )
            exported = _files.read_exports(exports)
            self._keep_secrets(found)  # first: an export may have one in it
            frame.result = evolve(frame.result, exports=self._shown_texts(exported))
        except StepFailed as error:
            return self._fail_frame(str(error), now)
        self._exports.update(exported)
        if self._is_own(self._path()):
            self._own_exports.update(exported)
        return self._leave(found, now)

    def noted(self, exit_code: int, resources: Resources | None, *, out_of_memory: OutOfMemory | None = None) -> None:
        """Put into the tree how the command ended, before anything follows from it."""
        frame = self._stack[-1]
        code = exit_code if exit_code >= 0 else 128 - exit_code
        cause = OUT_OF_MEMORY if exit_code and out_of_memory else None
        frame.result = evolve(frame.result, exit_code=code, resources=resources, cause=cause)

    def cancelled(self, now: float, why: str | None = None) -> Finish:
        """Take that the run ends here, whatever is under way; *why* is an error for the whole, if there is one."""
        self._end_all(Status.CANCELLED, None, now)
        if why:
            self._result = evolve(self._result, error=why)
        return Finish(result=self._result)

    @property
    def exports(self) -> Mapping[str, str]:
        """What steps have exported so far."""
        return self._exports

    @property
    def result(self) -> StepResult:
        """The tree as far as it has grown."""
        below: StepResult | None = None
        for frame in reversed(self._stack):
            steps = (*frame.result.steps[:-1], below) if below else frame.result.steps
            below = evolve(frame.result, steps=steps)
        return below or self._result

    def take_log(self) -> str:
        """Return what the run says since the last time, in whole lines."""
        text = "".join(f"{line}\n" for line in self._log)
        self._log.clear()
        return text

    def _enter(
        self,
        function: Function,
        origin: Origin,
        *,
        identity: str,
        result: StepResult,
        given: Mapping[str, Value],
        env: "dict[str, str | Hidden]",
    ) -> None:
        """Begin a function."""
        for name, parameter in function.inputs.items():
            if name not in given and parameter.default is None:
                raise StepFailed(f"the input `{name}` is missing; the function needs it")
        unknown = next((name for name in given if name not in function.inputs), None)
        if unknown is not None:
            raise StepFailed(_no_such_input(unknown, function))
        inputs = {
            name: given[name]
            if name in given
            else self._guarded(parameter.default, is_sensitive=parameter.is_sensitive)
            for name, parameter in function.inputs.items()
        }
        self._begun += 1
        frame = _Frame(
            function=function,
            origin=origin,
            identity=identity,
            result=evolve(result, inputs=self._shown_values(inputs)),
            inputs=inputs,
            env=env,
            number=self._begun,
        )
        self._stack.append(frame)

    def _go_on(self, now: float) -> Action:
        """Do what the innermost function has to do next."""
        frame = self._stack[-1]
        try:
            if not frame.next_step:
                self._set_env(frame)
            if frame.function.exec:
                return self._execute(frame)
            if frame.next_step < len(frame.function.steps):
                return self._load(frame, now)
            outputs = self._outputs(frame)
        except StepFailed as error:
            return self._fail_step(str(error), now) if frame.step else self._fail_frame(str(error), now)
        return self._leave(outputs, now)

    def _set_env(self, frame: _Frame) -> None:
        """Evaluate the `env` of a function, once."""
        scope = self._scope(frame)
        env = {name: expand_text(text, scope) for name, text in frame.function.env.items()}
        frame.env = {**frame.env, **env}
        frame.result = evolve(frame.result, env={**frame.result.env, **self._shown_texts(env)})

    def _execute(self, frame: _Frame) -> Execute:
        """Say which command is to run."""
        if frame.result.name:
            self._log.append(f'Running step "{frame.result.name}"')
        scope = self._scope(frame)
        definition = frame.function.exec
        if definition is None:
            raise RuntimeError("a function without a command")
        command = [expand_text(text, scope) for text in definition.command]
        work_dir = expand_text(definition.work_dir, scope) if definition.work_dir else self.settings.work_dir
        env = {name: str(reveal(value)) for name, value in self._environment_of_command(frame).items()}
        texts = tuple(str(reveal(each)) for each in command)
        if not texts[0]:
            raise StepFailed("the command is empty")
        if any("\0" in text for text in (*texts, str(reveal(work_dir)), *env, *env.values())):
            raise StepFailed("a character 0 in the command or its environment")
        shown = tuple(str(self._shown(each)) for each in command)
        frame.result = evolve(frame.result, command=shown, work_dir=str(self._shown(work_dir)))
        outputs, exports = self._file_names(frame)
        return Execute(
            path=self._path(),
            command=texts,
            work_dir=str(reveal(work_dir)),
            env=env,
            output_file=outputs,
            export_file=exports,
        )

    def _load(self, frame: _Frame, now: float) -> Load | Delegate:
        """Say which step comes next."""
        step = frame.function.steps[frame.next_step]
        frame.next_step += 1
        frame.step = step
        begun = StepResult(name=step.name, reference=str(step.reference), started=now)
        frame.result = evolve(frame.result, steps=(*frame.result.steps, begun))
        if self.settings.steps_before + self._begun + 1 > MAX_STEPS:
            raise StepFailed(f"more than {MAX_STEPS} steps in one run")
        reference = self._reference(frame, step)
        is_static = not isinstance(step.reference, DynamicReference) and reference == step.reference
        begun = evolve(begun, reference=str(self._shown(str(reference))))
        frame.result = evolve(frame.result, steps=(*frame.result.steps[:-1], begun))
        path = (*self._path(), step.name)
        if step.container:
            step = evolve(step, reference=reference)
            return self._delegate(frame, step, path, is_static=is_static)
        return Load(step=evolve(step, reference=reference), path=path, origin=frame.origin, is_static=is_static)

    def _delegate(self, frame: _Frame, step: Step, path: tuple[str, ...], *, is_static: bool) -> Delegate:
        """Say which step comes next, and in which container."""
        scope = self._scope(frame)
        try:
            image = image_of(str(reveal(expand_text(step.container, scope))))
        except ValueError as error:
            raise StepFailed(f"`container`: {error}") from None
        self._check_depth()
        inputs = {name: bounded(expand(value, scope)) for name, value in step.inputs.items()}
        env = {name: expand_text(text, scope) for name, text in step.env.items()}
        begun = evolve(frame.result.steps[-1], container=str(self._shown(str(image))), env=self._shown_texts(env))
        frame.result = evolve(frame.result, steps=(*frame.result.steps[:-1], begun))
        self._log.append(f'Running step "{step.name}" in {begun.container}')
        is_own = self._is_own(path)
        return Delegate(
            step=evolve(step, container=str(image)),
            image=image,
            path=path,
            origin=frame.origin,
            is_static=is_static,
            inputs=inputs,
            base=dict(self._own_exports if is_own else self._exports),
            env=env if is_own else {**frame.env, **env},
            is_own=is_own,
            calls=self._calls(),
            steps_before=self.settings.steps_before + self._begun,
        )

    def _reference(self, frame: _Frame, step: Step) -> Reference:
        try:
            return expanded(step.reference, self._scope(frame))
        except ValueError as error:
            raise StepFailed(str(error)) from None

    def _calls(self) -> tuple[Caller, ...]:
        """The functions that are being run, the outermost first."""
        settings = self.settings
        here = (
            Caller(reference=each.result.reference or settings.reference, identity=each.identity)
            for each in self._stack
        )
        return (*settings.calls, *here)

    def _check_depth(self) -> None:
        if len(self._stack) + len(self.settings.calls) >= MAX_CALLS:
            raise StepFailed(f"more than {MAX_CALLS} levels of functions that call functions")

    def _check_calls(self, step: Step, identity: str) -> None:
        """Refuse what calls itself without end."""
        self._check_depth()
        is_static = not isinstance(step.reference, DynamicReference)
        self._check_identity(identity, str(step.reference), is_static=is_static)

    def _check_identity(self, identity: str, reference: str, *, is_static: bool) -> None:
        """Refuse a function that is running already; the error names those by which it would call itself."""
        calls = self._calls()
        first = next((number for number, each in enumerate(calls) if each.identity == identity), None)
        if identity and is_static and first is not None:
            names = [each.reference or "the file itself" for each in calls[first:]]
            way = " → ".join([*names, reference])
            raise StepFailed(
                f"`{reference}` is a function that is running already ({way}); it would call itself for ever"
            )

    def _outputs(self, frame: _Frame) -> Mapping[str, Value]:
        """Find out what a function with steps returns."""
        function = frame.function
        if function.is_delegating:
            return frame.outputs.get(function.delegate, {})
        scope = self._scope(frame)
        found = {name: bounded(expand(value, scope)) for name, value in function.output_values.items()}
        declared = function.outputs
        return {
            name: Hidden(value) if name in declared and declared[name].is_sensitive else value
            for name, value in found.items()
        }

    def _leave(self, outputs: Mapping[str, Value], now: float) -> Action:
        """End the innermost function with success."""
        try:
            self._keep_secrets(outputs)
            shown = self._shown_values(outputs)
        except StepFailed as error:
            return self._fail_frame(str(error), now)
        frame = self._stack.pop()
        result = _added_up(evolve(frame.result, status=Status.SUCCESS, outputs=shown, ended=now))
        if not self._stack:
            self._result, self.outputs = result, outputs
            return Finish(result=result)
        caller = self._stack[-1]
        caller.outputs[result.name] = dict(outputs)
        caller.result = evolve(caller.result, steps=(*caller.result.steps[:-1], result))
        caller.step = None
        return self._go_on(now)

    def _fail_step(self, error: str, now: float) -> Finish:
        """End the run: the step that was being loaded failed."""
        frame = self._stack[-1]
        last = _ended(frame.result.steps[-1], Status.CANCELLED, now)
        failed = evolve(last, status=Status.FAILURE, error=self._said(error), ended=now)
        frame.result = evolve(frame.result, steps=(*frame.result.steps[:-1], failed))
        self._end_all(Status.FAILURE, f"step `{failed.name}`: {failed.error}", now)
        return Finish(result=self._result)

    def _fail_frame(self, error: str, now: float) -> Finish:
        """End the run: the innermost function failed."""
        self._end_all(Status.FAILURE, self._said(error), now)
        return Finish(result=self._result)

    def _fail_whole(self, error: str, now: float) -> Finish:
        """End the run before it has begun."""
        self._result = evolve(self._result, status=Status.FAILURE, error=self._said(error), ended=now)
        return Finish(result=self._result)

    def _end_all(self, status: Status, error: str | None, now: float) -> None:
        """End every function that is being run, from the innermost to the whole."""
        below: StepResult | None = None
        while self._stack:
            frame = self._stack.pop()
            steps = frame.result.steps
            if below:
                steps = (*steps[:-1], below)
            elif steps and steps[-1].status is Status.RUNNING:
                last = _ended(steps[-1], Status.CANCELLED, now)
                steps = (*steps[:-1], evolve(last, status=status, error=error, ended=now))
            below = _added_up(evolve(frame.result, status=status, error=error, ended=now, steps=steps))
            error = f"step `{below.name}`: {error}" if error and below.name else error
        self._result = below or evolve(self._result, status=status, error=error, ended=now)

    def _input(self, function: Function, name: str, value: Value, scope: Scope) -> Value:
        """Evaluate what a step gives for an input."""
        if name not in function.inputs:
            raise StepFailed(_no_such_input(name, function))
        found = bounded(expand(value, scope))
        return self._guarded(found, is_sensitive=function.inputs[name].is_sensitive)

    def _guarded(self, value: Value, *, is_sensitive: bool) -> Value:
        """Hide a value that is sensitive."""
        if not is_sensitive:
            return value
        self._keep_secret(reveal(value))
        return Hidden(value)

    def _scope(self, frame: _Frame) -> Scope:
        """What expressions in a function may name."""
        outputs, exports = self._file_names(frame)
        directory = frame.origin.directory
        return Scope(
            {
                "env": self._environment(frame),
                "export_file": Hidden(exports, "${{ export_file }}"),
                "func_dir": directory,
                "inputs": frame.inputs,
                "job": self._vars,
                "output_file": Hidden(outputs, "${{ output_file }}"),
                "step_dir": directory,
                "steps": {name: {"outputs": each} for name, each in frame.outputs.items()},
                "vars": self._vars,
                "work_dir": self.settings.work_dir,
            }
        )

    def _environment(self, frame: _Frame) -> "dict[str, str | Hidden]":
        return {**self._base, **self._exports, **frame.env}

    def _environment_of_command(self, frame: _Frame) -> "dict[str, str | Hidden]":
        """That of the frame, as commands have it.

        A job could make another program of one that is not its own, by `PATH` or `BASH_ENV` for example: those have
        nothing that the job has set, but what they ask for by expressions.
        """
        last = self.settings.last_env
        if not self._is_own(self._path()):
            return {**self._environment(frame), **last}
        return {**self.settings.own_env, LOG_LEVEL: self._base[LOG_LEVEL], **self._own_exports, **frame.env, **last}

    def _is_own(self, path: Sequence[str]) -> bool:
        return bool(path) and path[0] in self.settings.own

    def _file_names(self, frame: _Frame) -> tuple[str, str]:
        """The files of a frame: whose names nobody has to see, since they are others in each run."""
        base = f"{self.settings.files}/{frame.number}"
        return f"{base}.outputs", f"{base}.exports"

    def _path(self) -> tuple[str, ...]:
        return tuple(frame.result.name for frame in self._stack[1:])

    def _log_level(self) -> str:
        """Find out how much functions are to say: the job's variable, else that of the environment."""
        level = reveal(self._vars.get(LOG_LEVEL, "")) or self.settings.env.get(LOG_LEVEL, "")
        found = str(level).strip().lower() or _LOG_LEVELS[0]
        if found not in _LOG_LEVELS:
            expected = ", ".join(f"`{each}`" for each in _LOG_LEVELS)
            raise StepFailed(f"`{found[:40]}` as `{LOG_LEVEL}`; expected one of {expected}")
        return found

    def _keep_secrets(self, values: Mapping[str, Value]) -> None:
        for value in values.values():
            if isinstance(value, Hidden):
                self._keep_secret(reveal(value))

    def _keep_secret(self, value: Value) -> None:
        """Mask all texts of a value from now on."""
        _mapped(value, self._add_secret)

    def _add_secret(self, text: str) -> str:
        self.secrets.add(text)
        return text

    def _said(self, error: str) -> str:
        """Return an error as people may see it."""
        said = self.secrets.scrub(error)
        return said if len(said) <= _LONGEST_ERROR else f"{said[: _LONGEST_ERROR - 1]}…"

    def _shown(self, value: Value) -> Value:
        """Return a value as people may see it, for the tree.

        Raises:
            StepFailed: There is too much in that already.
        """
        self._charge(value)
        return _mapped(mask(value), self.secrets.scrub)

    def _charge(self, value: Value) -> None:
        """Count a value that comes into the tree."""
        self._keep(weight_of(value))

    def _keep(self, weight: int) -> None:
        """Count what comes into the tree."""
        self._check_kept(weight)
        self._kept += weight

    def _check_kept(self, weight: int) -> None:
        if self._kept + weight > MAX_KEPT:
            raise StepFailed(
                f"the inputs, outputs, variables and commands of all steps are too much together; at most {MAX_KEPT}"
                " parts are kept, of which 40 characters count as one"
            )

    def _shown_values(self, values: Mapping[str, Value]) -> dict[str, Value]:
        return {str(self._shown(name)): self._shown(value) for name, value in values.items()}

    def _shown_texts(self, texts: "Mapping[str, str] | Mapping[str, str | Hidden]") -> dict[str, str]:
        return {str(self._shown(name)): str(self._shown(text)) for name, text in texts.items()}


def _ended(result: StepResult, status: Status, now: float) -> StepResult:
    """Give all that still run below a result another status."""
    steps = tuple(
        evolve(each, status=status, ended=now) if each.status is Status.RUNNING else each
        for each in (_ended(each, status, now) for each in result.steps)
    )
    return evolve(result, steps=steps)


def _added_up(result: StepResult) -> StepResult:
    """Give a result what those below it have used."""
    used = [each.resources for each in result.steps if each.resources]
    return evolve(result, resources=Resources.of_all(used)) if used else result


def _mapped(value: Value, change: Callable[[str], str]) -> Value:
    """Change all texts of a value that has nothing hidden in it."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _mapped(each, change) for key, each in value.items()}
    if isinstance(value, Sequence):
        return [_mapped(each, change) for each in value]
    return value


def _no_such_input(name: str, function: Function) -> str:
    near = nearest(name, function.inputs)
    known = ", ".join(f"`{each}`" for each in function.inputs) or "none"
    return f"there is no input `{name}`; " + (f"did you mean `{near}`?" if near else f"the function has {known}")


def _exit(code: int) -> str:
    """Say how a command ended that did not succeed."""
    if code >= 0:
        return f"the command ended with exit status {code}"
    from signal import Signals

    try:
        return f"the command was ended by {Signals(-code).name}"
    except ValueError:  # one without a name
        return f"the command was ended by signal {-code}"
