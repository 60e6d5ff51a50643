"""Jobs that real gitlab-runners run: to GitLab we are a runner, to runners a GitLab.

How the parts lie on each other; each imports only from those below it:

    _relays                all jobs of a runner; what they share
    _routes                what sidecars may call
    _work                  one job: slot, sidecar, claim, end
    _sidecar    _ways      a gitlab-runner beside a slot; how it reaches us
    _upstream   _about     what GitLab is told of a job, and of sidecars
    _deliveries            what is on disk
    _relay      _payload   pure: what is allowed and what follows; what a sidecar gets of a job
    _calls      _toml      pure: what of a call goes on; settings as a sidecar reads them
"""

from taskscaler_gitlab.relay._deliveries import DeliveryDirectory
from taskscaler_gitlab.relay._relay import Record
from taskscaler_gitlab.relay._relays import Relays
from taskscaler_gitlab.relay._work import RelayWork

__all__ = ["DeliveryDirectory", "Record", "RelayWork", "Relays"]
