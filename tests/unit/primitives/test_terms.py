"""The terms on which every primitive is held: what they are when none are given, and that each of them is kept."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import HierarchicalLock, Lock, MultiLock, Redlock, RLock, RWLock, Semaphore
from tests.support.cases import one_by_one

A, B, C = (Redis(port=port) for port in (1, 2, 3))

PRIMITIVES: dict[str, Callable[..., Any]] = {
    "lock": lambda **terms: Lock(A, "orders", **terms),
    "redlock": lambda **terms: Redlock([A, B, C], "orders", **terms),
    "multilock": lambda **terms: MultiLock(A, ["orders", "stock"], **terms),
    "rlock": lambda **terms: RLock(A, "orders", **terms),
    "semaphore": lambda **terms: Semaphore(A, "orders", 3, **terms),
    "rwlock": lambda **terms: RWLock(A, "orders", **terms).read,
    "hierarchical lock": lambda **terms: HierarchicalLock(A, "orders/42", **terms).read,
}

DEFAULTS = {
    "ttl": 30.0, "acquire_timeout": None, "on_lost": "cancel", "renew": True, "max_hold": None, "watchdog": "task",
    "max_stall": 60.0, "wait_release": True, "min_uptime": 0.0, "min_hold": 0.0,
}  # fmt: skip

OTHERS = {
    "ttl": 7.0, "acquire_timeout": 3.0, "on_lost": "flag", "renew": False, "max_hold": 99.0, "watchdog": "thread",
    "max_stall": 44.0, "wait_release": False, "min_uptime": 5.0, "min_hold": 6.0,
}  # fmt: skip

each = pytest.mark.parametrize("make", PRIMITIVES.values(), ids=PRIMITIVES)


def terms_of(primitive: Any) -> dict[str, object]:
    return {term: getattr(primitive._options, term) for term in (*DEFAULTS, "replicas")}


@each
def test_the_terms_without_further_words_are_those_that_the_readme_names(make: Callable[..., Any]) -> None:
    assert terms_of(make()) == {**DEFAULTS, "replicas": 0}


@each
def test_each_term_that_is_given_is_the_one_that_it_is_held_on(make: Callable[..., Any]) -> None:
    assert terms_of(make(**OTHERS)) == {**OTHERS, "replicas": 0}


@one_by_one("kind", [kind for kind in PRIMITIVES if kind != "redlock"])
def test_replicas_are_waited_for_where_they_are_asked_for(kind: str) -> None:
    assert PRIMITIVES[kind](replicas=2)._options.replicas == 2


@one_by_one("kind", [Lock, MultiLock, RLock, RWLock, HierarchicalLock, Semaphore, Redlock])
def test_keys_begin_with_the_name_of_the_library_without_further_words(kind: type) -> None:
    assert inspect.signature(kind).parameters["prefix"].default == "aiolocks:"
