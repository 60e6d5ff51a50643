"""Reports to a service manager such as systemd, as sd_notify(3) has it. Nothing happens where there is none."""

import os
import socket
from contextlib import suppress


def notify(*states: str) -> None:
    """Report states such as ``READY=1``, all in one message. What cannot be sent is not needed."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address.startswith(("/", "@")):
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto("\n".join(states).encode(), f"\0{address[1:]}" if address[0] == "@" else address)


def watchdog_interval() -> float | None:
    """Seconds between two signs of life: half of what the service manager waits for one. None: it wants none."""
    microseconds, pid = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
    if not microseconds.isdecimal() or not int(microseconds) or pid not in ("", str(os.getpid())):
        return None
    return int(microseconds) / 2_000_000
