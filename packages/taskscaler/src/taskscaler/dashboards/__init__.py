"""A dashboard for Grafana and alert rules for Prometheus, over the metrics: data, and what writes it."""

from taskscaler.dashboards._alerts import ALERTS, Alert, alert_rules
from taskscaler.dashboards._grafana import dashboard
from taskscaler.dashboards._panels import ROWS, Panel, Query, Row

__all__ = ["ALERTS", "ROWS", "Alert", "Panel", "Query", "Row", "alert_rules", "dashboard"]
