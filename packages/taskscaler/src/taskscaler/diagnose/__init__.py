"""Answers for people: of the whole, of one instance, of one key, of what comes next."""
