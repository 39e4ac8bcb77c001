"""Mutants that no test can notice, each with the reason."""

EQUIVALENT: dict[str, str] = {}
"""By what `Mutant.described` says of them."""
