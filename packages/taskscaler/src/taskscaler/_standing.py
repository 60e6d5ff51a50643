"""How a scaler stands at the moment, for metrics: from counters that are there anyway, so it costs O(pools)."""

from fleeting.core import Plan
from fleeting.runtime import Runtime
from taskscaler._meter import STATES, Figures, PoolFigures, growth_of
from taskscaler.core._decide import Decision
from taskscaler.core._mediator import Core


def figures_of(runtime: Runtime[Core], now: float) -> Figures:
    """Read the counters."""
    core = runtime.core
    decision = core.decisions[-1] if core.decisions else None
    pools = tuple(_pool(runtime, plan, decision) for plan in core.plans.values())
    return Figures(
        at=now,
        capacity=core.capacity(),
        desired=0 if decision is None else decision.target_instances,
        ceiling=_ceiling(core),
        pools=pools,
        waiting_since=core.ledger.waiting_since,
        is_journaled=runtime.has_journal,
        writes=runtime.written,
        commit_failures=runtime.commit_failures,
        is_journal_failing=runtime.is_failing,
        is_handing_out=not core.ledger.shut,
    )


def _pool(runtime: Runtime[Core], plan: Plan, decision: Decision | None) -> PoolFigures:
    core, name = runtime.core, plan.pool
    slots, stages = core.ledger.pools[name], plan.stages
    states = {state: sum(stages.get(stage, 0) for stage in whole) for state, whole in STATES.items()}
    return PoolFigures(
        name=name,
        instances={"requested": plan.outstanding, **states},
        ceiling=plan.ceiling,
        slots=slots.per_node,
        uses=slots.max_uses,
        missed=plan.missed,
        failures=dict(runtime.drivers[name].failures),
        growth=growth_of(decision, plan),
        retained=len(plan.retained),
        cordoned=len(slots.cordons),
        is_disowned=bool(plan.disowned),
        update_interval=plan.config.update_interval,
    )


def _ceiling(core: Core) -> int | None:
    """Instances that there may be over all pools; None: any number."""
    each = [plan.ceiling for plan in core.plans.values()]
    every = None if None in each else sum(ceiling or 0 for ceiling in each)
    return min((ceiling for ceiling in (core.ceiling, every) if ceiling is not None), default=None)
