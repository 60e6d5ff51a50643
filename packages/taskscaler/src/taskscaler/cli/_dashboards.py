"""``taskscaler dashboards``: writes the dashboard and the alert rules, for Grafana and Prometheus to read."""

import json
from pathlib import Path

from fleeting.cli import FAILED, SUCCEEDED, report_errors
from taskscaler.dashboards import alert_rules, dashboard


def write_dashboards(directory: Path) -> int:
    """Write both files into a directory, which is made if it is missing; returns the exit status."""
    files = {
        "taskscaler-dashboard.json": json.dumps(dashboard(), indent=2, ensure_ascii=False) + "\n",
        "taskscaler-alerts.yaml": alert_rules(),
    }
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (directory / name).write_text(text, encoding="utf-8")
    except OSError as error:
        return report_errors([error], FAILED)
    for name in files:
        print(directory / name)  # noqa: T201  (what was asked for)
    return SUCCEEDED
