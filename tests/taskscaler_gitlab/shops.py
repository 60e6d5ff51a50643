"""A relay of one runner, and what its jobs share, without a fleet below them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from fleeting import LoopClock
from gitlab_jobs.client import GitLabClient
from gitlab_jobs.testing import URL, FakeGitLab
from taskscaler import Taskscaler
from taskscaler.executors.instance import InstanceConfig, InstanceExecutor
from taskscaler_gitlab import RunnerSettings
from taskscaler_gitlab._settings import OwnSettings, SidecarSettings
from taskscaler_gitlab._work import OwnRuns, Shop
from taskscaler_gitlab.relay import Relays

ORIGIN = "0123456789ab"
"""Stands for the runner at its GitLab."""


def relays_of(gitlab: FakeGitLab, state: Path) -> Relays:
    """A relay whose deliveries are noted down."""
    settings = RunnerSettings(
        url=URL,
        token=gitlab.runner_token,
        executor="instance",
        taskscaler=OwnSettings(run_with="sidecar", sidecar=SidecarSettings(executor="shell")),
    )
    return Relays(settings, state, {ORIGIN: settings}, is_kept=True)


def shop_of(relays: Relays, client: GitLabClient, info: Mapping[str, Any]) -> Shop:
    """What its jobs share; no slot can be had of it."""
    return Shop(
        settings=relays.settings,
        client=client,
        scaler=cast("Taskscaler", None),
        executor=InstanceExecutor(InstanceConfig()),
        runs=OwnRuns(),
        clock=LoopClock(),
        info=info,
        outlives=True,
        is_draining=lambda: False,
    )
