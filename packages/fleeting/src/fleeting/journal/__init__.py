"""What outlives the process: instances, intents, leases. For taskscaler; may change with any minor version."""

from fleeting.journal._journal import Placed, Recovered, group_lock

__all__ = ["Placed", "Recovered", "group_lock"]
