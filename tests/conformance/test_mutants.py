"""The conformance suite finds every mutant of a correct plugin, each with the check that is meant for it."""

import logging
import os
import socket
from collections.abc import Iterator
from itertools import cycle

import pytest
from attrs import evolve
from puddle_endpoint import harness_for, running

from fleeting.testing import Violation, anchor_of, judge
from tests.conformance.mutants import CHILDREN, GHOSTS, MUTANTS, OPEN, Mutant

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def clear_up_after_a_mutant() -> Iterator[None]:
    """Close, end and put back what mutants leave open, running and changed."""
    environment = dict(os.environ)
    timeout, level = socket.getdefaulttimeout(), logging.getLogger().level
    yield
    os.environ.clear()
    os.environ.update(environment)
    socket.setdefaulttimeout(timeout)
    logging.getLogger().setLevel(level)
    while OPEN:
        OPEN.pop().close()
    while GHOSTS:
        GHOSTS.pop().cancel()
    while CHILDREN:
        CHILDREN.pop().wait()


@pytest.mark.parametrize(
    ("mutant", "anyio_backend"),
    list(zip(MUTANTS, cycle(["asyncio", "trio"]), strict=False)),
    ids=[mutant.name for mutant in MUTANTS],
)
async def test_a_mutant_is_found_by_the_check_that_is_meant_for_it(mutant: Mutant) -> None:
    """The correct plugin passes every check (examples/puddle); each mutant of it fails the one that is named.

    Each on one backend, in turn: what is wrong with a mutant is wrong on both.
    """
    async with running() as cloud:
        await cloud.launch(1)
        # a mutant that is found by waiting takes as long as it is waited for: no more than two time-outs of a call
        impatient = harness_for(cloud, lambda config: mutant.group(evolve(config, timeout=0.7 * config.timeout)))
        harness = evolve(impatient, deadline=0.5, patience=2)
        with pytest.raises(Violation) as caught:
            await judge(mutant.check, harness)
    assert caught.value.more == anchor_of(mutant.check)


def test_there_are_enough_mutants() -> None:
    """And no two of them are wrong in the same way."""
    assert len({mutant.fault for mutant in MUTANTS}) == len(MUTANTS) >= 150
