"""The daemon behind ``taskscaler serve``: one fleet for everybody on this host.

How the parts lie on each other; each imports only from those below it:

    _run                    a daemon in this process, from somebody's command line
    _daemon                 from the first sign of life to the last: signals, reloading, draining
    _app                    the API: which request does what, for whom
    _holders    _events     the leases of clients; news for whoever listens
    _batches    _owners     submitted batches; who else brings jobs
    _clients                pure: who holds what, and until when
    _tcp                    the way in over TCP: TLS, names, token
    _server     _listen     HTTP on a socket, with a bound for everything
    _verbs      _bodies     what may be asked, as data; the OpenAPI document is made of it
    _fleet_file             what the daemon owns, as a file describes it
    _peers      _notify     who asks, as the kernel has it; what the service manager learns
"""

from taskscaler._errors import NoDaemon
from taskscaler._open_files import allow_open_files
from taskscaler.cli._ask import ask
from taskscaler.cli._log import logging_on
from taskscaler.serve._fleet_file import FleetFile, read_fleet_file
from taskscaler.serve._listen import place_of
from taskscaler.serve._owners import Canary, Intake, JobOwner, OwnedJob
from taskscaler.serve._peers import Peer
from taskscaler.serve._run import run_daemon, say
from taskscaler.serve._server import Server
from taskscaler.serve._tcp import Entrance, Listen, addresses_of, listen_at, listening_on_tcp

__all__ = [
    "Canary",
    "Entrance",
    "FleetFile",
    "Intake",
    "JobOwner",
    "Listen",
    "NoDaemon",
    "OwnedJob",
    "Peer",
    "Server",
    "addresses_of",
    "allow_open_files",
    "ask",
    "listen_at",
    "listening_on_tcp",
    "logging_on",
    "place_of",
    "read_fleet_file",
    "run_daemon",
    "say",
]
