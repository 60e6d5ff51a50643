"""Starts one agent by hand, for a script that plays a cloud: ``python -m fleeting.groups.local DIRECTORY``.

The directory must not exist; the agent makes it, listens at ``agent.sock`` in there, has its process id in
``agent.pid``, and removes it when it ends: on SIGTERM, or by itself after an hour.
"""

import sys
import time
from pathlib import Path

from fleeting.groups.local._config import LocalConfig
from fleeting.groups.local._instance import start

LIFETIME = 3600.0
"""Seconds until it ends, if nobody ends it before: no manager holds it."""


def main() -> None:
    """Start it and return."""
    match sys.argv[1:]:
        case [directory]:
            now = time.time()  # noqa: TID251  (there is no event loop)
            try:
                _, leash = start(Path(directory).absolute(), LocalConfig(orphan_ttl=LIFETIME), intent="", now=now)
            except OSError as error:
                sys.exit(f"{directory} cannot be made: {error.strerror}")
            leash.close()
        case _:
            sys.exit("usage: python -m fleeting.groups.local DIRECTORY")


if __name__ == "__main__":
    main()
