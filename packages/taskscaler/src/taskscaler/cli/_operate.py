"""What operators do with a daemon: one question or wish, and the answer for people or as JSON."""

import json
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from fleeting.cli import FAILED, SUCCEEDED, outcome
from fleeting.plugins import span
from taskscaler._socket import Place
from taskscaler._wording import counted
from taskscaler.cli._ask import LONG, ask, show
from taskscaler.cli._paragraphs import Row
from taskscaler.cli._text import amount
from taskscaler.diagnose._explain import STATES


def status(socket: Place | None, *, as_json: bool) -> int:
    """Show the daemon and its fleet on one screen."""
    return show(partial(ask, socket, "GET", "/status"), _status_rows, as_json=as_json)


def instances(socket: Place | None, *, as_json: bool) -> int:
    """List the instances."""
    return show(partial(ask, socket, "GET", "/instances"), _instance_rows, as_json=as_json)


def explain(socket: Place | None, *, job: str | None, instance: str | None, as_json: bool) -> int:
    """Explain the fleet, a key or an instance."""
    params = {name: value for name, value in (("key", job), ("instance", instance)) if value is not None}
    return show(partial(ask, socket, "GET", "/explain", params=params), _answer_rows, as_json=as_json)


def hold(socket: Place | None, verb: str, instance: str, why: str, *, as_json: bool) -> int:
    """Cordon or retain an instance, or no longer."""
    done = {
        "cordon": "cordoned",
        "uncordon": "no longer cordoned",
        "retain": "retained",
        "unretain": "no longer retained",
    }
    sent = {"instance": instance, "why": why}
    return show(
        partial(ask, socket, "POST", f"/{verb}", json=sent),
        lambda _: [(verb, f"{instance} is {done[verb]}")],
        as_json=as_json,
    )


def link(socket: Place | None, *, changes: bool, as_json: bool) -> int:
    """Print a link to the status page, alone on standard output, so that it can be opened by a program."""

    def run() -> int:
        data = ask(socket, "POST", "/link", json={"changes": changes})
        print(json.dumps(data, indent=2) if as_json else data["url"])  # noqa: T201  (what was asked for)
        if not as_json:
            what = "to look and to change" if data["changes"] else "to look"
            print(f"good once, within {span(data['seconds'])}, {what}", file=sys.stderr)  # noqa: T201
        return SUCCEEDED

    return outcome(run)


def pause(socket: Place | None, *, undone: bool, as_json: bool) -> int:
    """Have the daemon ask for no more jobs from elsewhere, or ask again."""
    verb = "unpause" if undone else "pause"
    return show(partial(ask, socket, "POST", f"/{verb}", json={}), _intake_rows, as_json=as_json)


def reload(socket: Place | None, *, as_json: bool) -> int:
    """Have the daemon read its file again."""
    return show(partial(ask, socket, "POST", "/reload", json={}), _reload_rows, as_json=as_json)


def drain(socket: Place | None, timeout: float | None, *, delete: bool, as_json: bool) -> int:
    """Have the daemon end with its last lease; fails if that is not in time."""
    sent = {"delete": delete, **({"timeout": timeout} if timeout is not None else {})}
    patience = None if timeout is None else timeout + LONG
    drained: list[bool] = []

    def rows(data: Mapping[str, Any]) -> list[Row]:
        drained.append(bool(data.get("drained")))
        rest = "its instances are being deleted" if delete else "its instances stay"
        if drained[0]:
            return [("drain", f"no lease is held; the daemon ends, and {rest}")]
        why = "leases are still held; the daemon hands out no more slots, and ends with the last one"
        return [("drain", why), ("next", "taskscaler leases")]

    answered = partial(ask, socket, "POST", "/drain", json=sent, timeout=patience)
    ended = show(answered, rows, as_json=as_json)
    return ended if ended or all(drained) else FAILED


def _status_rows(data: Mapping[str, Any]) -> Iterator[Row]:
    yield "fleet", f"{data['fleet']}, {data['state']} since {data['since']} (process {data['pid']})"
    yield "now", str(data["answer"])
    slots = ", ".join(f"{count} {state}" for state, count in data["capacity"].items() if count)
    yield "slots", slots or "none"
    yield from (("pool", f"{name}: {counts}") for name, counts in data["pools"].items())
    yield from cost_rows(data.get("cost") or {"pools": {}})
    kept = f"; {data['kept']} kept without one" if data["kept"] else ""
    yield "clients", f"{data['clients']}, with {data['leases']} leases{kept}"
    yield "batches", f"{data['batches']}, with {data['jobs']} jobs running"
    yield from (("jobs", sentence) for sentence in data["owners"])


def cost_rows(cost: Mapping[str, Any]) -> Iterator[Row]:
    """Say what the pools have come to since the daemon began, and all together."""
    for name, pool in cost["pools"].items():
        spent = None if pool["cost"] is None else {pool["currency"]: pool["cost"]}
        at = "" if spent is None else f" at {pool['price_per_hour']:g} an hour"
        yield "cost", f"{name}: {_spent(pool['instance_hours'], spent)}{at}"
    if len(cost["pools"]) > 1:
        unknown = "price unknown, at least in part"
        yield "cost", f"in all: {_spent(cost['instance_hours'], cost['in_all'], unknown=unknown)}"


def _spent(hours: float, spent: Mapping[str, float] | None, *, unknown: str = "price unknown") -> str:
    money = unknown if spent is None else " and ".join(f"{amount(each)} {name}".strip() for name, each in spent.items())
    return f"{amount(hours)} instance-hours, {money}"


def _instance_rows(data: Mapping[str, Any]) -> Iterator[Row]:
    if not data["instances"]:
        yield "instances", "none"
    for each in data["instances"]:
        held = sum(slot is not None for slot in each["slots"])
        wishes = [word for word in ("cordoned", "retained") if each[word] is not None]
        parts = [STATES.get(each["state"], each["state"]), f"{held} of {len(each['slots'])} slots held", *wishes]
        yield f"{each['pool']}", f"{each['id']}: {', '.join(parts)}" + (f" ({each['why']})" if each["why"] else "")


def _answer_rows(data: Mapping[str, Any]) -> Iterator[Row]:
    yield str(data["about"]), str(data["answer"])
    yield from (("details", str(line)) for line in data["details"])
    yield from (("next", str(each["sentence"])) for each in data["next"])


def _intake_rows(data: Mapping[str, Any]) -> Iterator[Row]:
    intake = data["intake"]
    jobs = f"{counted(intake['jobs'], 'job')} {'is' if intake['jobs'] == 1 else 'are'} not over"
    if not intake["paused"]:
        yield "jobs", f"more jobs are asked for; {jobs}"
        return
    open_ = f"; {counted(intake['requests'], 'request')} may still bring one" if intake["requests"] else ""
    yield "jobs", f"no more jobs are asked for, even after a restart{open_}; {jobs}"
    yield "next", "taskscaler pause --undo"


def _reload_rows(data: Mapping[str, Any]) -> Iterator[Row]:
    yield "reload", f"the policies were reloaded ({data['policies']} in all)"
    yield from (("later", f"{change}: takes effect when the daemon is restarted") for change in data["pending"])
    yield from (("note", str(note)) for note in data["notes"])
