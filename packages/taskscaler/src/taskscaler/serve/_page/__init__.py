"""The status page: a daemon's fleet in the browser, as it changes.

How the parts lie on each other; each imports only from those below it:

    _door                   HTTP: who gets in, what they are given, what they may change
    _watch                  keeps what is shown up to date while somebody looks
    _view       _history    pure: what is shown, and what has changed of it; what is over
    _passes                 pure: links that are good once, and what they are traded for
    static                  the page itself, as the browser gets it: no build step, nothing from elsewhere
"""
