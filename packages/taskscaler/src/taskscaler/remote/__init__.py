"""The fleet of a daemon, with the names, types and errors of one's own scaler.

::

    from taskscaler import remote

    async with remote.connect() as scaler:
        async with scaler.acquire("job-1") as lease, lease.dial() as connection:
            print((await connection.run("uname -a")).stdout.decode())

The daemon is ``taskscaler serve``; for threads, `taskscaler.sync.connect` gives the same.
"""

from taskscaler.remote._scaler import Taskscaler, connect

__all__ = ["Taskscaler", "connect"]
