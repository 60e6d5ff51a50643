"""Two colours of a service, blue and green, of which one takes the other's place while jobs run.

How the parts lie on each other; each imports only from those below it:

    _carry_out    from where a switch stands to its end
    _daemons      a colour as it is: a daemon on this machine, and what it has left
    _fleet        what of a fleet is there, as its clouds have it
    _file         the configuration: which two there are
    _kept         what is on disk of a switch
    _switch       pure: what is to be done next, and what cannot be done
"""
