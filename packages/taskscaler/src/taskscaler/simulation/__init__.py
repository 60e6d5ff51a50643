"""Runs jobs on a fleet in virtual time, with the very cores that production runs: what a fleet would have cost."""

from taskscaler._errors import SimulationStuck, TraceUnreadable
from taskscaler.simulation._cells import parse_columns
from taskscaler.simulation._distributions import (
    Constant,
    Distribution,
    Empirical,
    Exponential,
    LogNormal,
    Uniform,
    parse_distribution,
)
from taskscaler.simulation._engine import simulate
from taskscaler.simulation._environment import Environment, PoolEnvironment, Preemptions, StockOuts
from taskscaler.simulation._fleet import Fleet
from taskscaler.simulation._jobs import Jobs
from taskscaler.simulation._outcome import Outcome, PoolOutcome, Reason, Series, Waits
from taskscaler.simulation._recorded import fit
from taskscaler.simulation._synthetic import Synthetic, parse_synthetic
from taskscaler.simulation._traces import Trace, read_trace

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
    "Trace",
    "TraceUnreadable",
    "Uniform",
    "Waits",
    "fit",
    "parse_columns",
    "parse_distribution",
    "parse_synthetic",
    "read_trace",
    "simulate",
]
