"""For tests of how an SDK's answers are translated, which one backend is enough for.

The SDKs run in threads and know of no backend. What the groups themselves do asynchronously, the conformance suite
checks on both. In a ``conftest.py``: ``anyio_backend = one_backend``.
"""

import pytest


@pytest.fixture
def one_backend() -> str:
    """Run each asynchronous test once."""
    return "asyncio"
