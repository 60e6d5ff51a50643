"""The tutorial's plugin, made wrong in one way at a time: each way is one that plugins have gone wrong in.

The first line of a mutant's docstring is what docs/reference/plugin-contract.md says of it.
"""

from tests.conformance.mutants import basics as basics
from tests.conformance.mutants import kinds as kinds
from tests.conformance.mutants._table import CHILDREN as CHILDREN
from tests.conformance.mutants._table import GHOSTS as GHOSTS
from tests.conformance.mutants._table import MUTANTS as MUTANTS
from tests.conformance.mutants._table import OPEN as OPEN
from tests.conformance.mutants._table import Mutant as Mutant
