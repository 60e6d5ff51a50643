"""Any use of steps and any memory limit, for property tests."""

from hypothesis import strategies as st

from taskscaler._uses import LARGEST, LIMITED_BY, STEP_ENDS
from taskscaler.executors import MemoryLimit, StepUse

SIZES = st.none() | st.integers(0, 2**40) | st.just(LARGEST - 1)
TIMES = st.none() | st.floats(0, 1e6)

STEP_USES = st.builds(
    StepUse,
    path=st.sampled_from(["build", "build/compile", "test", "ünï", "a\nb\x1b[31m", "other"]) | st.just(""),
    ended=st.sampled_from(("", *STEP_ENDS)),
    count=st.integers(1, 3),
    duration=TIMES,
    cpu_time=TIMES,
    peak_memory=SIZES,
    disk_read=SIZES,
    disk_written=SIZES,
)

MEMORY_LIMITS = st.builds(
    MemoryLimit,
    size=st.integers(0, LARGEST - 1),
    by=st.sampled_from(LIMITED_BY),
    why=st.text(max_size=3),
    reached=st.booleans(),
)
