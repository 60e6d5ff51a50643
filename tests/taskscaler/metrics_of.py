"""What tests of the metrics share: reading them as a scrape would."""

from collections.abc import Mapping

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from taskscaler.observers.metrics import Metrics


def read(metrics: Metrics) -> Mapping[str, float]:
    """All samples, by their names with labels, as Prometheus writes them: ``name{a="b"}``."""
    return parse(generate_latest(metrics.registry).decode())


def parse(text: str) -> Mapping[str, float]:
    """The same of what a scrape gave."""
    return {
        _written(sample.name, sample.labels): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def _written(name: str, labels: Mapping[str, str]) -> str:
    inside = ",".join(f'{label}="{value}"' for label, value in sorted(labels.items()))
    return f"{name}{{{inside}}}" if inside else name
