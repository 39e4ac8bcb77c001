"""The terms on which every primitive is held: what they are when none are given, and that each of them is kept."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import aiolocks
from tests.support.cases import one_by_one
from tests.support.kinds import KINDS, Kind
from tests.support.primitives import NO_SERVER, rows_where

PRIMITIVES: dict[str, Callable[..., Any]] = {
    row.id: partial(row.make, NO_SERVER, "orders") for row in rows_where().values()
}

DEFAULTS = {
    "ttl": 30.0, "acquire_timeout": None, "on_lost": "cancel", "renew": True, "max_hold": None, "watchdog": "task",
    "max_stall": 60.0, "wait_release": True, "min_uptime": 0.0, "min_hold": 0.0,
}  # fmt: skip

OTHERS = {
    "ttl": 7.0, "acquire_timeout": 3.0, "on_lost": "flag", "renew": False, "max_hold": 99.0, "watchdog": "thread",
    "max_stall": 44.0, "wait_release": False, "min_uptime": 5.0, "min_hold": 6.0,
}  # fmt: skip


def terms_of(primitive: Any) -> dict[str, object]:
    return {term: getattr(primitive._options, term) for term in (*DEFAULTS, "replicas")}


@pytest.mark.parametrize("make", PRIMITIVES.values(), ids=PRIMITIVES)
def test_a_lease_is_held_on_each_term_that_is_given_or_on_those_of_the_readme(make: Callable[..., Any]) -> None:
    assert terms_of(make()) == {**DEFAULTS, "replicas": 0}
    assert terms_of(make(**OTHERS)) == {**OTHERS, "replicas": 0}


@one_by_one("kind", [*rows_where(lambda kind: kind.replicated)])
def test_replicas_are_waited_for_where_they_are_asked_for(kind: str) -> None:
    assert PRIMITIVES[kind](replicas=2)._options.replicas == 2


@one_by_one("kind", KINDS)
def test_keys_begin_with_the_name_of_the_library_without_further_words(kind: Kind) -> None:
    assert inspect.signature(getattr(aiolocks, kind.class_name)).parameters["prefix"].default == "aiolocks:"
