"""What an explanation says of leases that are kept: for whom, until when, and what ends them."""

from collections.abc import Iterable

from attrs import evolve

from fleeting.plugins import span
from taskscaler._wording import finite
from taskscaler.diagnose._explain import Explanation
from taskscaler.diagnose._explain_key import KeyExplanation
from taskscaler.diagnose._forecast import Next, Upcoming
from taskscaler.serve._holders import Holders
from taskscaler.serve._kept import Kept


def fleet_with_kept(answer: Explanation, holders: Holders) -> Explanation:
    """Add to an explanation of the fleet when the leases end that are kept and that no client has."""
    kept = holders.keeper.kept
    left = [each for each in answer.detached if each.key in kept]
    detached = (
        evolve(each, reattach_by=kept[each.key].ends_at) if each.key in kept else each for each in answer.detached
    )
    ends = (_ending(kept[each.key], answer.at, each.pool, each.instance, each.key) for each in left)
    return evolve(answer, detached=tuple(detached), next=_by_time([*answer.next, *ends]))


def key_with_kept(answer: KeyExplanation, holders: Holders) -> KeyExplanation:
    """Add to an explanation of a key for whom its lease is kept, and until when."""
    kept = holders.keeper.kept.get(answer.key)
    if kept is None or answer.pool is None or answer.instance is None:
        return answer
    if kept.left_at is None:
        held = holders.held.get(answer.key)
        if held is None or answer.state != "holding":
            return answer
        who = f"process {held.client.pid}" if held.client.pid else "its client"
        return evolve(answer, why=f"{who} of user {kept.uid} has it, after which it is kept for {span(kept.ttl)}")
    why = f"it is kept for user {kept.uid}, until somebody attaches to it or stops it"
    end = _ending(kept, answer.at, answer.pool, answer.instance, answer.key)
    return evolve(answer, why=why, reattach_by=finite(kept.ends_at), next=_by_time([*answer.next, end]))


def _ending(kept: Kept, now: float, pool: str, instance: str, key: str) -> Upcoming:
    at = max(now, kept.ends_at)
    is_idle = kept.bound == kept.idle_timeout
    why = f"nothing has run in it for {span(kept.bound)}" if is_idle else f"its ttl is {span(kept.bound)}"
    return Upcoming(at=at, after=at - now, what=Next.ABANDON, pool=pool, instances=(instance,), keys=(key,), why=why)


def _by_time(items: Iterable[Upcoming]) -> tuple[Upcoming, ...]:
    return tuple(sorted(items, key=lambda each: each.at))
