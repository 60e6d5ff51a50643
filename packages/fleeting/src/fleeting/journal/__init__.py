"""What outlives the process: instances, intents, leases. For taskscaler; may change with any minor version."""

from fleeting.journal._journal import Placed, Recovered

__all__ = ["Placed", "Recovered"]
