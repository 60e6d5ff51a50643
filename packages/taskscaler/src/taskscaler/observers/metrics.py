"""The observer ``metrics``: shows a scaler to Prometheus, under the names that GitLab's dashboards query.

Nothing is worked out until somebody scrapes: the scaler counts as it goes along, and gauges are read from its counters
then. A scrape costs O(pools). Each observer has a registry of its own, to which programs may add their metrics.
"""

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from difflib import get_close_matches
from types import TracebackType
from typing import Final, Self

from attrs import Attribute, evolve, field, frozen

from fleeting.plugins import place_to_listen
from taskscaler._meter import BUCKETS, Figures, Meter, check_bounds
from taskscaler._observe import ScalerEvent
from taskscaler._use_meter import MOST_NAMED, OTHER
from taskscaler._uses import LONGEST_PATH
from taskscaler.observers._catalogue import ALL, GITLABS, OURS, USES
from taskscaler.observers._hooks import ObserverPlugin, hookimpl

try:
    from prometheus_client import CollectorRegistry, ProcessCollector
    from prometheus_client.core import Metric
    from prometheus_client.registry import Collector

    from taskscaler.observers._families import Families, of_figures, of_meter, of_uses
    from taskscaler.observers._scrape import scraped
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"{error}: pip install 'taskscaler[metrics]'") from error

MOST_LABELS: Final = 20
_LABEL = re.compile("(?!__)[A-Za-z_][A-Za-z0-9_]*")
_STEP = re.compile(r"\w+(/\w+)*", re.ASCII)
_TAKEN: Final = frozenset({label for each in ALL.values() for label in each.labels}) | {"le", "instance", "job"}
"""Labels that metrics or Prometheus itself have."""

log = logging.getLogger("taskscaler.metrics")


def _check_listen(_: object, __: "Attribute[str | None]", value: str | None) -> None:
    if value is not None:
        try:
            place_to_listen(value)
        except ValueError:
            raise ValueError('HOST:PORT, such as "127.0.0.1:9252"') from None


def _check_labels(_: object, __: "Attribute[Mapping[str, str]]", value: Mapping[str, str]) -> None:
    if len(value) > MOST_LABELS:
        raise ValueError(f"at most {MOST_LABELS} labels")
    for name in value:
        if not _LABEL.fullmatch(name):
            raise ValueError('labels that Prometheus accepts, such as "team"', name)
        if name in _TAKEN:
            raise ValueError("labels that no metric has already", name)


def _check_buckets(_: object, __: object, value: Mapping[str, tuple[float, ...]]) -> None:
    for name, bounds in value.items():
        if name not in BUCKETS:
            near = get_close_matches(name, BUCKETS, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"histograms among {', '.join(BUCKETS)}{hint}", name)
        check_bounds(bounds)


def _check_steps(_: object, __: object, value: tuple[str, ...]) -> None:
    if len(value) > MOST_NAMED:
        raise ValueError(f"at most {MOST_NAMED} steps")
    for name in value:
        if not _STEP.fullmatch(name) or len(name) > LONGEST_PATH or name == OTHER:
            raise ValueError('names of steps, such as "build" or "build/compile"', name)


@frozen(kw_only=True)
class MetricsConfig:
    """``[autoscaler.observers.metrics]``."""

    listen: str | None = field(default=None, validator=_check_listen)
    """Where Prometheus finds the metrics, ``HOST:PORT``. None: nowhere, unless ``--metrics`` says where."""

    labels: dict[str, str] = field(factory=dict, validator=_check_labels)
    """Added to each metric."""

    buckets: dict[str, tuple[float, ...]] = field(factory=dict, validator=_check_buckets)
    """Upper bounds in seconds of the buckets of a histogram, by its name without prefix and ``_seconds``."""

    steps: tuple[str, ...] = field(default=(), validator=_check_steps)
    """Steps of jobs that are counted by themselves, by their names, or the names that lead to them, with slashes
    between: those are values of the label ``step``, and all other steps are ``other``."""


class _OfScaler(Collector):
    """What the client library asks at each scrape."""

    def __init__(self, metrics: "Metrics") -> None:
        self._metrics = metrics

    def describe(self) -> Iterable[Metric]:
        return self._metrics.families.empty((*GITLABS, *OURS, *USES))

    def collect(self) -> Iterable[Metric]:
        metrics, figures = self._metrics, self._metrics.look()
        yield from of_meter(metrics.families, metrics.meter, None if figures is None else figures.at)
        yield from of_uses(metrics.families, metrics.meter.uses)
        if figures is not None:
            yield from of_figures(metrics.families, figures)


class Metrics:
    """Shows one scaler to Prometheus. An async context manager if it listens; the scaler enters it."""

    meter: Meter
    """Counts."""

    def __init__(self, config: MetricsConfig | None = None) -> None:
        """Prepare.

        Args:
            config: The settings. None: nothing listens; `registry` is there to be shown by the program.
        """
        self.config = config or MetricsConfig()
        self.registry = CollectorRegistry()
        """What is scraped; a program may add its own."""

        self.families = Families(self.config.labels)
        self.meter = Meter(self.config.buckets, self.config.steps)
        self.url = ""
        """Where the metrics are, once somebody listens there."""

        self.look: Callable[[], Figures | None] = lambda: None
        self._stack = AsyncExitStack()
        ProcessCollector(registry=self.registry)
        self.registry.register(_OfScaler(self))

    @property
    def listen(self) -> str | None:
        """Where it listens once it is entered, ``HOST:PORT``; None: nowhere."""
        return self.config.listen

    @listen.setter
    def listen(self, place: str) -> None:
        self.config = evolve(self.config, listen=place)

    def label(self, labels: Mapping[str, str]) -> None:
        """Add more labels to each metric of the fleet; those of the settings win."""
        self.families.constant = {**labels, **self.config.labels}

    def use_buckets(self, usual: Mapping[str, tuple[float, ...]]) -> None:
        """Take other bounds for the histograms that the settings say nothing of; before the scaler is made."""
        self.meter = Meter({**usual, **self.config.buckets}, self.config.steps)

    def attach(self, look: Callable[[], Figures | None]) -> None:
        """See `Metered`."""
        self.look = look

    def __call__(self, event: ScalerEvent) -> None:
        """Hear of nothing: what happens is counted."""

    async def __aenter__(self) -> Self:
        """Listen, if that is wanted.

        Raises:
            SocketRefused: The address cannot be listened on.
        """
        if self.config.listen is not None:
            place = place_to_listen(self.config.listen)
            self.url = await self._stack.enter_async_context(scraped(self.registry, place))
            log.info("metrics_served", extra={"url": self.url})
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Stop listening."""
        return await self._stack.__aexit__(kind, error, trace)


@hookimpl
def taskscaler_observer() -> ObserverPlugin:
    """Describe the observer."""
    return ObserverPlugin(config=MetricsConfig, observer=Metrics)
