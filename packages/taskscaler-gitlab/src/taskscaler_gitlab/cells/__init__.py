"""Several GitLabs that are one to their users: cells."""
