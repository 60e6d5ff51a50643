"""What becomes of a change that is asked for several instances, when a cloud takes only so many, or refuses some."""

from collections.abc import Awaitable, Callable, Mapping, Sequence

from fleeting._errors import AuthFailed, OutcomeUnknown, ProviderError, RateLimited


async def ask_in_batches(
    ask: Callable[[Sequence[str]], Awaitable[object]], instances: Sequence[str], size: int
) -> dict[str, ProviderError]:
    """Ask for a change in batches of at most *size*; of a batch that is refused, for each instance by itself.

    A cloud that refuses a batch because of one instance does nothing for the others. Where each would be refused as
    well, or something may have been done already, none is asked for by itself.

    Returns:
        Why, for those that were refused.
    """
    refused: dict[str, ProviderError] = {}
    for start in range(0, len(instances), size):
        batch = instances[start : start + size]
        try:
            await ask(batch)
        except ProviderError as error:
            if len(batch) == 1 or isinstance(error, AuthFailed | OutcomeUnknown | RateLimited):
                refused |= dict.fromkeys(batch, error)
            else:
                refused |= await ask_in_batches(ask, batch, 1)
    return refused


def accepted(instances: Sequence[str], refused: Mapping[str, ProviderError]) -> Sequence[str]:
    """Leave out those that were refused, as `InstanceGroup.decrease` and its like return it.

    Raises:
        ProviderError: All of them were refused; why the first one was.
    """
    if refused and len(refused) == len(instances):
        raise next(iter(refused.values()))
    return [each for each in instances if each not in refused]
