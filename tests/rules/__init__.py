"""DESIGN.md's rules W1 to W13, each with checks that fail without it; `test_rules` runs the whole table."""

from tests.rules import durable, free, half_way, life, polling, reach, terms, twice, waiting
from tests.rules.table import CLAUSES

__all__ = ["CLAUSES", "durable", "free", "half_way", "life", "polling", "reach", "terms", "twice", "waiting"]
