"""What becomes of a change that is asked for several instances, when a cloud takes only so many, or refuses some."""

from collections.abc import Awaitable, Callable, Mapping, Sequence

from fleeting._errors import AuthFailed, OutcomeUnknown, ProviderError, RateLimited


async def ask_in_batches(
    ask: Callable[[Sequence[str]], Awaitable[object]], instances: Sequence[str], size: int
) -> dict[str, ProviderError]:
    """Ask for a change in batches of at most *size*; halve a batch that is refused, until it is known which ones are.

    A cloud that refuses a batch because of one instance does nothing for the others. One instance that is refused costs
    two requests for each time that its batch can be halved. After a refusal that would meet every request as well, or
    one whose outcome is unknown, nothing more is asked for.

    Returns:
        Why, for those that were refused or not asked for.
    """
    refused: dict[str, ProviderError] = {}
    left = [instances[start : start + size] for start in range(0, len(instances), size)]
    while left:
        batch = left.pop(0)
        try:
            await ask(batch)
        except (AuthFailed, OutcomeUnknown, RateLimited) as error:
            return refused | {each: error for lot in (batch, *left) for each in lot}
        except ProviderError as error:
            if len(batch) == 1:
                refused[batch[0]] = error
            else:
                left[:0] = batch[: len(batch) // 2], batch[len(batch) // 2 :]
    return refused


def accepted(instances: Sequence[str], refused: Mapping[str, ProviderError]) -> Sequence[str]:
    """Leave out those that were refused, as `InstanceGroup.decrease` and its like return it.

    Raises:
        ProviderError: All of them were refused; why the first one was.
    """
    if refused and len(refused) == len(instances):
        raise next(iter(refused.values()))
    return [each for each in instances if each not in refused]
