"""GitLab Runner's custom executor on a fleet: a gitlab-runner that we have nothing to do with runs its jobs there.

It calls a program of ours for each part of a job. None of these processes outlives its part; what they have in common
is a slot at the daemon, under the job's key.

    _driver                 what each call does: reads what gitlab-runner says, works on the slot, ends as it wants
    _reader                 whether somebody still reads what we print
    _contract    pure:      what gitlab-runner says to its driver, and what it wants to hear
    _moves       pure:      what a part does about a slot that stands so
"""
