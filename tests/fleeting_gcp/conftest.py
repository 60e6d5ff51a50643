"""What the tests of fleeting-gcp share."""

from tests.one_backend import one_backend

anyio_backend = one_backend
