"""Pure: who holds which slot, who waits, and how many instances there should be."""
