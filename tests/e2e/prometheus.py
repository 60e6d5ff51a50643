"""A real Prometheus as a process of its own, that scrapes what a test shows it and answers queries."""

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from shutil import which
from typing import Any

import httpx
from attrs import define

from taskscaler.dashboards import Alert, alert_rules
from tests.time_limits import NEVER_REACHED

INTERVAL = "250ms"
"""Between two scrapes, and between two looks at the rules."""

CONFIG = """
global: {{scrape_interval: {interval}, scrape_timeout: {interval}, evaluation_interval: {interval}}}
scrape_configs:
  - job_name: fleet
    file_sd_configs: [{{files: ["{targets}"]}}]
rule_files: ["{rules}"]
"""


def program(name: str) -> str:
    """Find a program of Debian's package ``prometheus``."""
    found = which(name)
    assert found is not None, f"{name} is missing; install the package prometheus"
    return found


@define
class Prometheus:
    """One that runs."""

    http: httpx.Client
    targets: Path

    def scrape(self, metrics: str) -> None:
        """Have it scrape an address from now on."""
        place = metrics.removeprefix("http://").removesuffix("/metrics")
        written = self.targets.with_suffix(".new")
        written.write_text(json.dumps([{"targets": [place]}]))
        written.rename(self.targets)

    def query(self, expression: str, at: float | None = None) -> Sequence[Mapping[str, Any]]:
        """Ask for what is so at a time, in seconds since the epoch; None: now."""
        moment = {} if at is None else {"time": f"{at:.3f}"}
        return self._ask("query", query=expression, **moment)

    def over_time(self, expression: str, since: float, until: float) -> Sequence[Mapping[str, Any]]:
        """Ask for what was so between two times."""
        return self._ask("query_range", query=expression, start=f"{since:.3f}", end=f"{until:.3f}", step="0.1")

    def _ask(self, what: str, **parameters: str) -> Sequence[Mapping[str, Any]]:
        answer = self.http.post(f"/api/v1/{what}", data=parameters).json()
        assert answer["status"] == "success", (parameters, answer)
        result: Sequence[Mapping[str, Any]] = answer["data"]["result"]
        return result


@contextmanager
def prometheus(directory: Path, alerts: Sequence[Alert]) -> Iterator[Prometheus]:
    """Run one, which scrapes nothing yet."""
    targets, rules, config = directory / "targets.json", directory / "rules.yaml", directory / "prometheus.yml"
    rules.write_text(alert_rules(alerts))
    targets.write_text("[]")
    config.write_text(CONFIG.format(interval=INTERVAL, targets=targets, rules=rules))
    command = [
        program("prometheus"),
        f"--config.file={config}",
        f"--storage.tsdb.path={directory / 'data'}",
        "--web.listen-address=127.0.0.1:0",
        "--log.format=json",
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            with httpx.Client(base_url=_address(process), trust_env=False, timeout=NEVER_REACHED) as http:
                yield Prometheus(http, targets)
        finally:
            process.kill()


def _address(process: "subprocess.Popen[str]") -> str:
    """Read its log until it listens and is ready, in whichever order; what follows of it fits into a pipe."""
    assert process.stderr is not None
    address, is_ready, log = "", False, list[str]()
    for line in process.stderr:
        log.append(line)
        entry = json.loads(line)
        if entry.get("msg") == "Listening on":
            address = f"http://{entry['address']}"
        is_ready = is_ready or "ready to receive" in entry.get("msg", "")
        if address and is_ready:
            return address
    raise AssertionError(f"Prometheus did not start: {log}")
