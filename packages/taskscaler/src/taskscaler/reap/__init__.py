"""Removes the instances of managers that have died: those of groups whose mark has expired.

_reaper      opens groups, takes the mark before anything is removed, asks the cloud
_policy      pure: which instances go, and why the others stay
_known       what managers on this machine have written down, and which of them run
"""

from taskscaler.reap._known import Known
from taskscaler.reap._policy import LEAST_EXPIRED, ReapPolicy, Survey, Verdict, judge
from taskscaler.reap._reaper import Outcome, Reaped, Reaper, Target

__all__ = [
    "LEAST_EXPIRED",
    "Known",
    "Outcome",
    "ReapPolicy",
    "Reaped",
    "Reaper",
    "Survey",
    "Target",
    "Verdict",
    "judge",
]
