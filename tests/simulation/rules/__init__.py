"""ARCHITECTURE.md's rules W1 to W13, W15 and W21, each with checks that fail without it; `test_rules` runs them all."""

from tests.simulation.rules import durable, free, half_way, life, many, polling, reach, terms, twice, waiting
from tests.simulation.rules.table import CLAUSES

__all__ = ["CLAUSES", "durable", "free", "half_way", "life", "many", "polling", "reach", "terms", "twice", "waiting"]
