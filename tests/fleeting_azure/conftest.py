"""What the tests of fleeting-azure share."""

from tests.one_backend import one_backend

anyio_backend = one_backend
