"""Pure: what is known of a group and what to do about it. For taskscaler; may change with any minor version."""
