"""A GitLab in a process of its own, whose logs are on the disk: what it takes is not what its runner takes.

``python _gitlab.py DIRECTORY MIB VALUES`` prints its address and the token of a runner, hands out one job that masks
these values, a list in JSON, and prints how the job ended and the checksum of its log.
"""

import json
import socket
import sys
from pathlib import Path

import anyio
from anycorn import Config, serve

from gitlab_jobs import Job, Variable
from gitlab_jobs.testing import FakeGitLab


async def main(directory: Path, limit: int, masked: list[str]) -> None:
    """Serve one job."""
    gitlab = FakeGitLab(directory, logs_on_disk=True, trace_limit=limit, accepts=0)
    variables = tuple(Variable(key=f"V{number}", value=each, masked=True) for number, each in enumerate(masked))
    number = gitlab.enqueue(Job(id=0, token="", variables=variables))
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    config = Config()
    config.bind = [f"fd://{listener.fileno()}"]
    config.errorlog = config.accesslog = None
    over = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: serve(gitlab.application(), config, shutdown_trigger=over.wait))  # type: ignore[arg-type]
        print(json.dumps({"url": f"http://127.0.0.1:{listener.getsockname()[1]}", "token": gitlab.runner_token}))
        sys.stdout.flush()
        stored = await gitlab.ended(number)
        ended = {"state": stored.state.value, "size": len(stored.trace), "checksum": stored.trace.checksum}
        over.set()
    print(json.dumps(ended), flush=True)


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]), int(sys.argv[2]) << 20, json.loads(sys.argv[3]))
