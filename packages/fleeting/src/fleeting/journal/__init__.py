"""What outlives the process: instances, intents, leases. For taskscaler; may change with any minor version."""
