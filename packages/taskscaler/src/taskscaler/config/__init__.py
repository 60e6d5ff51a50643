"""Fleets as files describe them: the schema they share, and what is made from it.

`load` reads GitLab Runner's ``config.toml``; jobs files have the same keys under ``[autoscaler]``.
"""

from taskscaler.config._autoscaler import Autoscaler, NamedPool, PoolTable, StateStorage
from taskscaler.config._gitlab import RunnerConfig, load

__all__ = ["Autoscaler", "NamedPool", "PoolTable", "RunnerConfig", "StateStorage", "load"]
