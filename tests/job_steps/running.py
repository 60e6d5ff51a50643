"""Running steps in tests: what they print, and what came of it."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import define, field

from job_steps import StepResult, read_steps, run_steps

ENV = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "HOME": "/nonexistent"}
"""All that steps inherit."""

ECHO = """
spec:
  inputs:
    message: {type: string}
  outputs:
    message: {type: string}
---
exec:
  command:
    - sh
    - -c
    - echo "$0"; printf '{"name":"message","value":"%s"}' "$0" > ${{ output_file }}
    - ${{ inputs.message }}
"""
"""A function that prints what it is given, and returns it."""


@define
class Project:
    """A directory with functions, whose steps are run."""

    directory: Path
    log: bytearray = field(factory=bytearray)
    """What steps have printed, and the run."""
    trees: list[StepResult] = field(factory=list)
    """What was told while steps ran."""

    def add(self, name: str, text: str, *, file: str = "func.yml") -> None:
        """Write a function into a directory of that name."""
        (self.directory / name).mkdir(parents=True, exist_ok=True)
        (self.directory / name / file).write_text(text)

    def add_script(self, name: str, script: str, *, spec: object = None, env: object = None) -> None:
        """Write a function that is a script; in that, `OUT` and `EXP` are its files."""
        script = script.replace("OUT", "${{ output_file }}").replace("EXP", "${{ export_file }}")
        body = {"exec": {"command": ["sh", "-c", script]}} | ({"env": env} if env else {})
        self.add(name, f"{json.dumps({'spec': spec})}\n---\n{json.dumps(body)}\n")

    async def run(self, text: str, env: Mapping[str, str] | None = None, **options: Any) -> StepResult:  # noqa: ANN401  (those of run_steps)
        """Run a function, or a list of steps."""
        return await run_steps(
            read_steps(text),
            directory=self.directory,
            env={**ENV, **(env or {})},
            log=self._keep,
            on_result=self.trees.append,
            **options,
        )

    async def run_script(self, script: str, **options: Any) -> StepResult:  # noqa: ANN401  (the same)
        """Run one step that is a script."""
        return await self.run(json.dumps([{"name": "script", "script": script}]), **options)

    @property
    def lines(self) -> list[str]:
        """What was printed, by line."""
        return self.log.decode().splitlines()

    async def _keep(self, data: bytes) -> None:
        self.log += data
