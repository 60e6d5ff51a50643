"""Every check of the conformance suite, by subject.

A check is a function that takes a `Harness` of its own and returns, raises `Violation`, or raises `NotApplicable`.
It needs three instances at once, or as many as a small group can hold, and deletes what it made. Its first line of
docstring is the clause of the contract that it is about; docs/reference/plugin-contract.md has them all.
"""
