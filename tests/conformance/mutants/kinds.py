"""Mutants by kind: resources, calls at once, troubles in every call, sizes, values, changes, secrets, objects, loops.

Each is a fault that plugins of clouds have had, such as a cache that never expires, a limit on the number of ids in one
request, or a lock that belongs to the event loop of its first use.
"""
# ruff: noqa: ANN401, D102, D107  (what a mutant's methods are for stands in what they are mutants of)
