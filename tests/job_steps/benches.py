"""A project whose steps run in containers, with the real agent in each, and a command that behaves like Docker's."""

import json
from collections.abc import Mapping
from pathlib import Path

from attrs import define

from job_steps import StepResult
from job_steps._agent._running import Rules
from job_steps._delegation import Delegation
from job_steps._policy import Policy
from tests.job_steps.running import Project

OUTER = """
spec:
  inputs: {who: {type: string}, token: {type: string, sensitive: true}}
  outputs: {text: {type: string}, secret: {type: string, sensitive: true}}
---
run:
  - name: say
    script: echo "outer ${{ inputs.who }} ${{ inputs.token }} $A $EARLIER ${{ vars.V }}"
  - name: below
    func: ../inner
    container: test/b
    inputs: {who: "${{ inputs.who }}!", token: "${{ inputs.token }}"}
outputs:
  text: ${{ steps.below.outputs.text }}
  secret: ${{ inputs.token }}-made-of-it
"""
INNER = """
spec:
  inputs: {who: {type: string}, token: {type: string}}
  outputs: {text: {type: string}}
---
exec:
  command:
    - sh
    - -c
    - |
      echo "inner $0 $1"
      printf '{"name":"text","value":"hi %s"}' "$0" > ${{ output_file }}
      printf '{"name":"MADE","value":"42"}' > ${{ export_file }}
    - ${{ inputs.who }}
    - ${{ inputs.token }}
"""


@define
class Bench:
    """A project, and an engine of its own."""

    project: Project
    engine: Path
    agent: Path

    def image(self, name: str, behaviour: str = "works") -> None:
        """Have an image whose containers behave like that, or run that command."""
        (self.engine / "images" / f"docker.io+test+{name}:latest").write_text(behaviour)

    def delegation(self, policy: Policy | None = None, *, env: Mapping[str, str] | None = None) -> Delegation:
        """Make what runs steps in containers, as an agent does, which may have a policy."""
        rules = Rules([policy] if policy else [], self.agent)
        made = rules.delegation("m", str(self.project.directory), self.engine / "note", env or {})
        assert made
        return made

    def files(self, name: str, files: Mapping[str, str], size: int = 1000) -> None:
        """Have an image with these files, which says that it has so many bytes."""
        self.image(name)
        image = f"docker.io+test+{name}:latest"
        (self.engine / "sizes").mkdir(exist_ok=True)
        (self.engine / "sizes" / image).write_text(str(size))
        for path, text in files.items():
            file = self.engine / "files" / image / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    async def run(self, steps: str, *, policy: Policy | None = None, **options: object) -> StepResult:
        """Run a list of steps; no container is left."""
        env = options.pop("own_env", {})
        assert isinstance(env, dict)
        result = await self.project.run(
            steps,
            env=env,
            delegation=self.delegation(policy, env=env),
            admit=Rules([policy]).gate() if policy else None,
            **options,
        )
        assert self.containers == []
        return result

    @property
    def containers(self) -> list[str]:
        """Those that there are."""
        return [each.name for each in (self.engine / "containers").iterdir()]

    @property
    def made(self) -> list[dict[str, object]]:
        """How containers were made, in order."""
        return [json.loads(line) for line in (self.engine / "made").read_text().splitlines()]
