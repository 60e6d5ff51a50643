"""Whether somebody still reads what we print. If nobody does, the program that has called us is gone."""

import os
from stat import S_ISFIFO
from typing import IO

import anyio


async def reader_gone(stream: IO[str]) -> None:
    """Wait until nobody reads a pipe any more, also while nothing is written to it; for ever, if it is no pipe.

    Args:
        stream: Of which we have the end that is written to.
    """
    descriptor = _pipe_of(stream)
    if descriptor is None:
        await anyio.sleep_forever()
    else:
        await anyio.wait_readable(descriptor)  # as which the kernel reports the error that writing would meet


def _pipe_of(stream: IO[str]) -> int | None:
    try:
        descriptor = stream.fileno()
        return descriptor if S_ISFIFO(os.fstat(descriptor).st_mode) else None
    except OSError:  # also if it is no file at all
        return None
