"""The daemon behind ``taskscaler serve``: one fleet for everybody on this host.

How the parts lie on each other; each imports only from those below it:

    _daemon                 from the first sign of life to the last: signals, reloading, draining
    _app                    the API: which request does what, for whom
    _holders    _events     the leases of clients; news for whoever listens
    _clients                pure: who holds what, and until when
    _tcp                    the way in over TCP: TLS, names, token
    _server     _listen     HTTP on a socket, with a bound for everything
    _verbs      _bodies     what may be asked, as data; the OpenAPI document is made of it
    _fleet_file             what the daemon owns, as a file describes it
    _peers      _notify     who asks, as the kernel has it; what the service manager learns
"""
