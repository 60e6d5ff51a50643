"""One command on one instance, without async."""

import fleeting
from taskscaler import Pool
from taskscaler.sync import Taskscaler

pool = Pool(fleeting.load("local", {"name": "hello"}), update_interval_when_expecting=0.1)
with Taskscaler(pool) as scaler, scaler.acquire("hello") as lease:
    with lease.dial() as connection:
        done = connection.run("echo hello from $(hostname)", check=True)
    print(done.stdout.decode(), end="")
