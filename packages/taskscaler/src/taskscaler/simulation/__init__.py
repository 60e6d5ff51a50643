"""Runs jobs on a fleet in virtual time, with the very cores that production runs: what a fleet would have cost."""

from taskscaler.simulation._distributions import (
    Constant,
    Distribution,
    Empirical,
    Exponential,
    LogNormal,
    Uniform,
    parse_distribution,
)
from taskscaler.simulation._engine import SimulationStuck, simulate
from taskscaler.simulation._environment import Environment, PoolEnvironment, Preemptions, StockOuts
from taskscaler.simulation._fleet import Fleet
from taskscaler.simulation._jobs import Jobs
from taskscaler.simulation._outcome import Outcome, PoolOutcome, Reason, Series, Waits
from taskscaler.simulation._synthetic import Synthetic, parse_synthetic

__all__ = [
    "Constant",
    "Distribution",
    "Empirical",
    "Environment",
    "Exponential",
    "Fleet",
    "Jobs",
    "LogNormal",
    "Outcome",
    "PoolEnvironment",
    "PoolOutcome",
    "Preemptions",
    "Reason",
    "Series",
    "SimulationStuck",
    "StockOuts",
    "Synthetic",
    "Uniform",
    "Waits",
    "parse_distribution",
    "parse_synthetic",
    "simulate",
]
