"""The metrics and traces of a fleet: those that its file has settings for, and those that a command line wants."""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from fleeting.errors import WrongArguments
from fleeting.plugins import place_to_listen
from taskscaler._observe import ScalerObserver
from taskscaler.observers._hooks import load_observer

if TYPE_CHECKING:  # it imports the client library, which need not be there
    from taskscaler.observers.metrics import Metrics
    from taskscaler.observers.traces import Traces

NEEDS = ("prometheus_client", "anycorn", "starlette", "cattrs")
TRACES_NEED = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http", "requests")


def with_metrics(
    observers: Sequence[ScalerObserver], listen: str | None
) -> "tuple[Sequence[ScalerObserver], Metrics | None]":
    """Have metrics shown where a command line wants them.

    Args:
        observers: Those that the file has settings for.
        listen: ``HOST:PORT``; None: the file alone decides.

    Returns:
        The observers, and the one that shows metrics, if there is one.

    Raises:
        WrongArguments: What that needs is not installed.
    """
    found = next((each for each in observers if type(each).__module__ == "taskscaler.observers.metrics"), None)
    if found is None and listen is None:
        return observers, None
    if missing := [name for name in NEEDS if find_spec(name) is None]:
        raise WrongArguments(f"metrics need {missing[0]}, which is not installed; install taskscaler[metrics]")
    from taskscaler.observers.metrics import Metrics

    if not isinstance(found, Metrics):
        found = load_observer("metrics", {})
        observers = [*observers, found]
    if not isinstance(found, Metrics):
        raise TypeError(f"the observer metrics is {found!r}")
    if listen is not None:
        try:
            place_to_listen(listen)
        except ValueError as error:
            raise WrongArguments(f"--metrics: {error}") from error
        found.listen = listen
    return observers, found


def with_traces(
    observers: Sequence[ScalerObserver], *, wanted: bool
) -> "tuple[Sequence[ScalerObserver], Traces | None]":
    """Have jobs followed if a command line wants that.

    Args:
        observers: Those that the file has settings for.
        wanted: Whether the command line does; else the file alone decides.

    Returns:
        The observers, and the one that follows jobs, if there is one.

    Raises:
        WrongArguments: What that needs is not installed.
        ConfigError: The environment asks for something that cannot be had.
    """
    found = next((each for each in observers if type(each).__module__ == "taskscaler.observers.traces"), None)
    if found is None and not wanted:
        return observers, None
    if missing := [name for name in TRACES_NEED if not _is_there(name)]:
        raise WrongArguments(f"traces need {missing[0]}, which is not installed; install taskscaler[traces]")
    from taskscaler.observers.traces import Traces

    if not isinstance(found, Traces):
        found = load_observer("traces", {})
        observers = [*observers, found]
    if not isinstance(found, Traces):
        raise TypeError(f"the observer traces is {found!r}")
    return observers, found


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # nor is what it is in
        return False
