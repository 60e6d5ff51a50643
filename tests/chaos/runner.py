"""Plays many stories on all cores, counts what they met, and shows what is wrong with any of them."""

import gc
import logging
import multiprocessing
import signal
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from math import inf
from time import perf_counter
from types import FrameType

from tests.chaos.play import Result, play
from tests.chaos.seeds import REGRESSIONS, read_commit
from tests.chaos.shrink import shrink
from tests.chaos.story import FAULTS, JOBS, Story, story_of
from tests.chaos.troubles import CLEANUP_KINDS, KINDS, NEEDS, PEER_NEEDS, POOL_KINDS, SLEEP_KINDS
from tests.chaos.witness import REQUIRED

STUCK = 60
"""Seconds of computing after which a story counts as stuck: most take half a second."""

STARVED = 3600
"""Seconds of real time after which it does, too: it may wait for something that never comes. Stories that are played
at the lowest priority beside other work have taken minutes."""

ENOUGH = 500
"""Stories in which everything has to be met."""

SHOWN = 10
"""Failing seeds that are shown."""

SHRUNK = 2
"""Of these, so many are shrunk at once, which may take minutes each."""


def story_of_seed(seed: int) -> Story:
    """What a seed stands for, with all troubles that there are."""
    return story_of(seed, NEEDS, CLEANUP_KINDS, SLEEP_KINDS, POOL_KINDS, peer_kinds=PEER_NEEDS)


def play_seed(seed: int, *, verbose: bool = False) -> Result:
    """Play the story of a seed; one in which too little happened breaks a promise too."""
    result = play(story_of_seed(seed), verbose=verbose)
    if not result.violations and (result.jobs < JOBS or result.faults.total() < FAULTS):
        result.violations.append(f"only {result.jobs} jobs and {result.faults.total()} faults")
    return result


@contextmanager
def bounded() -> Iterator[None]:
    """End a story that takes too long; in the suite pytest-timeout does that."""
    limits = {signal.SIGPROF: (signal.ITIMER_PROF, STUCK), signal.SIGALRM: (signal.ITIMER_REAL, STARVED)}
    for number, (timer, seconds) in limits.items():
        signal.signal(number, _stuck)
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for timer, _ in limits.values():
            signal.setitimer(timer, 0)


def play_within_bounds(seed: int) -> Result:
    """Play the story of a seed, and end it where it takes too long."""
    with bounded():
        return play_seed(seed)


def play_bounded(story: Story) -> Result:
    """Play a story that no seed stands for any more, and end it where it takes too long."""
    with bounded():
        return play(story)


def _stuck(_: int, __: FrameType | None) -> None:
    raise TimeoutError(f"the story is stuck: it takes more than {STUCK} s of computing, or {STARVED} s")


def play_all(seeds: Iterable[int], jobs: int) -> Generator[Result, None, None]:
    """Play them on so many cores."""
    if jobs == 1:
        yield from map(play_within_bounds, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, initializer=set_up) as pool:
        yield from pool.imap_unordered(play_within_bounds, seeds)


def tell(line: str) -> None:
    """Print a line, at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def set_up() -> Callable[[], None]:
    """Prepare a process that plays stories and does nothing else; returns what puts it back."""
    before = gc.get_threshold()
    logging.disable(logging.CRITICAL)  # the suite's own log is full of the troubles that we make
    gc.set_threshold(500_000)  # a story is mostly short-lived tasks: for 35 MiB more it runs a third faster

    def restore() -> None:
        gc.set_threshold(*before)
        logging.disable(logging.NOTSET)

    return restore


def run(seeds: Sequence[int], jobs: int, *, seconds: float = inf) -> int:
    """Play them, or as many as can be begun in so many seconds; print what was met, and return the exit status."""
    begun = last = perf_counter()
    met: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    ran = done = 0
    failed: list[Result] = []
    with closing(play_all(seeds, jobs)) as results:
        for result in results:
            done += 1
            ran += result.jobs
            met += result.met
            faults += result.faults
            if result.violations:
                failed.append(result)
                tell(f"seed {result.seed} failed: {result.violations[0].splitlines()[0]}")
            if perf_counter() - last > 10:
                last = perf_counter()
                tell(f"{done}/{len(seeds)} stories, {done / (last - begun):.1f}/s, {len(failed)} failed")
            if perf_counter() - begun > seconds:
                break
    took = perf_counter() - begun
    _print_table("faults", KINDS, faults)
    _print_table("transitions", REQUIRED, met)
    never = missing(KINDS, faults) + missing(REQUIRED, met) if done >= ENOUGH else []
    for result in sorted(failed, key=lambda result: result.seed)[:SHOWN]:
        tell(f"\nseed {result.seed}: {result.violations[0]}")
        tell(how_to_see(result.seed))
    tell(
        f"\n{done} stories, {ran} jobs, {faults.total()} faults, {len(failed)} failed; "
        f"{took:.1f} s, {done / took:.1f} stories/s"
    )
    for result in failed[:SHRUNK]:
        show_shrunk(result.seed)
    if failed:
        tell(f"\nadd to tests/chaos/{REGRESSIONS.name}, whether or not this change is to blame, with what was wrong:")
    for result in failed:
        tell(f"{result.seed} {read_commit()[:7] or 'COMMIT'} WHY")
    if never:
        tell(f"never met: {', '.join(never)}")
    return 1 if failed or never else 0


def missing(required: Iterable[str], met: Counter[str]) -> list[str]:
    """What has to be met and never was."""
    return [name for name in required if not met[name]]


def _print_table(title: str, required: Iterable[str], met: Counter[str]) -> None:
    tell(f"\n{title}")
    for name in dict.fromkeys([*required, *sorted(met)]):
        tell(f"  {met[name]:9,}  {name}")


def show(seed: int, *, verbose: bool) -> int:
    """Play one story and print what happened."""
    with bounded():
        result = play_seed(seed, verbose=verbose)
    tell("\n".join(result.timeline))
    tell(f"seed {seed}: {result.jobs} jobs, {result.faults.total()} faults")
    tell("\n".join(result.violations) or "nothing is wrong with it")
    return 1 if result.violations else 0


def show_shrunk(seed: int) -> int:
    """Shrink one story that fails, and print what it takes, as a timeline."""
    whole = story_of_seed(seed)
    shrunk = shrink(whole, play_bounded)
    if shrunk is None:
        tell(f"seed {seed}: nothing is wrong with it")
        return 0
    story = shrunk.story
    with bounded():
        result = play(story, verbose=True)
    tell("\n".join(["", *result.timeline, *result.violations]))
    tell(
        f"seed {seed}: {len(story.troubles)} of {len(whole.troubles)} troubles and {len(story.jobs)} of"
        f" {len(whole.jobs)} jobs break the same promise, after {shrunk.tries} tries:"
    )
    for trouble in story.troubles:
        tell(f"{trouble.at:10.2f}  {trouble.kind}")
    return 1


def how_to_see(seed: int) -> str:
    """The commands that show a story, at the commit at which it failed."""
    replay = f"python -m tests.chaos --seed {seed}"
    return f"replay: {replay} --verbose\nshrink: {replay} --shrink"
