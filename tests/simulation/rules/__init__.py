"""ARCHITECTURE.md's rules, each with checks that fail without it; `test_rules` runs them all."""

from tests.simulation.rules import durable, free, half_way, life, many, polling, reach, redirects, terms, twice, waiting
from tests.simulation.rules.table import CLAUSES

__all__ = [
    "CLAUSES",
    "durable",
    "free",
    "half_way",
    "life",
    "many",
    "polling",
    "reach",
    "redirects",
    "terms",
    "twice",
    "waiting",
]
