"""What performs the decisions of a core. For taskscaler; may change with any minor version."""
