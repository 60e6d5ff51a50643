"""The same for programs that know nothing of ``async``: same names, same types, same errors.

::

    from taskscaler.sync import Taskscaler

    with Taskscaler(pool) as scaler:
        with scaler.acquire("job-1") as lease, lease.dial() as connection:
            print(connection.run("uname -a").stdout.decode())

Behind it runs the very scaler of `taskscaler`, on an event loop in a thread of its own. Everything here may be used
from several threads at once.
"""

from taskscaler.sync._attempts import Attempt, Attempts
from taskscaler.sync._connection import Connection, PortListener, Sink, Stream
from taskscaler.sync._lease import Lease
from taskscaler.sync._scaler import Taskscaler, connect

__all__ = ["Attempt", "Attempts", "Connection", "Lease", "PortListener", "Sink", "Stream", "Taskscaler", "connect"]
