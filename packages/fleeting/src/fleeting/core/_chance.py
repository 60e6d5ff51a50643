"""Numbers for jitter, from a state that can be stored. Pure.

SplitMix64, as Steele, Lea and Flood published it in 2014; the standard library's generator has 2,500 bytes of state,
and brings hashing along that a bare ``import fleeting`` need not pay for.
"""

from attrs import define

_MASK = 2**64 - 1


@define
class Chance:
    """Equal states give equal numbers."""

    state: int

    def draw(self) -> float:
        """The next number from 0 to 1, 1 excluded."""
        self.state = (self.state + 0x9E3779B97F4A7C15) & _MASK
        mixed = self.state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return ((mixed ^ (mixed >> 31)) >> 11) / 2**53
