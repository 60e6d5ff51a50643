"""The dashboard as Grafana imports it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from taskscaler.dashboards._panels import ROWS, Panel, Row

_WIDTH: Final = 24
"""Of Grafana's grid."""

_HEIGHT: Final = 8
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


def dashboard(rows: Sequence[Row] = ROWS) -> Mapping[str, Any]:
    """Make it: plain data for JSON."""
    return {
        "title": "taskscaler",
        "uid": "taskscaler",
        "tags": ["taskscaler", "fleeting"],
        "description": "A fleet of instances that grows and shrinks with its jobs.",
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": [_datasource(), _job()]},
        "panels": list(_numbered(rows)),
    }


def _datasource() -> Mapping[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _job() -> Mapping[str, Any]:
    query = "label_values(fleeting_taskscaler_tasks, job)"
    return {
        "name": "job",
        "label": "Job",
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": "job"},
        "definition": query,
        "refresh": 2,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }


def _numbered(rows: Sequence[Row]) -> Iterator[Mapping[str, Any]]:
    number = 0
    for index, row in enumerate(rows):
        top = index * (_HEIGHT + 1)
        number += 1
        place = {"x": 0, "y": top, "w": _WIDTH, "h": 1}
        yield {"id": number, "type": "row", "title": row.title, "gridPos": place, "collapsed": False, "panels": []}
        width = _WIDTH // len(row.panels)
        for column, panel in enumerate(row.panels):
            number += 1
            place = {"x": column * width, "y": top + 1, "w": width, "h": _HEIGHT}
            yield {"id": number, "gridPos": place, **_panel(panel)}


def _panel(panel: Panel) -> Mapping[str, Any]:
    stacking = {"mode": "normal" if panel.stacked else "none"}
    custom = {"stacking": stacking, "fillOpacity": 30 if panel.stacked else 0, "lineWidth": 1, "showPoints": "never"}
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": panel.question,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": custom}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + n), "datasource": _SOURCE, "expr": query.expression, "legendFormat": query.legend}
            for n, query in enumerate(panel.queries)
        ],
    }
