"""The options of a lease: what is kept of them, in which unit, and what follows from them."""

import inspect
from dataclasses import fields
from datetime import timedelta
from typing import Any, cast

import pytest

import aiolocks
from aiolocks import Lock
from aiolocks._core.options import Duration, LeaseOptions, Options, RedlockOptions, TrackedOptions
from tests.support.kinds import KINDS, Kind, leased


def keywords(primitive: type) -> dict[str, Any]:
    """Return the keywords of a constructor, with their defaults."""
    shown = inspect.signature(primitive).parameters
    return {name: one.default for name, one in shown.items() if one.kind is inspect.Parameter.KEYWORD_ONLY}


DEFAULTS = {name: default for name, default in keywords(Lock).items() if name != "prefix"}
"""As documented; `primitives/test_options.py` has them."""


def test_a_lock_has_every_option_and_each_may_be_left_out() -> None:
    assert {option.name for option in fields(Options) if option.init} == DEFAULTS.keys()
    for options in (RedlockOptions, LeaseOptions, TrackedOptions):
        assert options.__required_keys__ == frozenset()


def test_options_are_in_seconds_however_they_were_given() -> None:
    given = Options(timedelta(seconds=5), timedelta(milliseconds=250), max_hold=timedelta(hours=1), max_stall=60)
    same = Options(5, 0.25, max_hold=3600, max_stall=timedelta(minutes=1))
    assert given == same
    assert repr(given) == repr(same)
    assert hash(given) == hash(same)
    for seconds in (given.ttl, given.acquire_timeout, given.max_hold, given.max_stall):
        assert type(seconds) is float


def test_what_is_given_is_what_counts_and_what_is_left_out_is_as_documented() -> None:
    given = {
        "ttl": 60.0, "acquire_timeout": 0.5, "on_lost": "flag", "renew": False, "max_hold": 0.5, "watchdog": "thread",
        "max_stall": 120.0, "replicas": 2, "wait_release": False, "min_uptime": 9.5, "min_hold": 8.5, "track": True,
    }  # fmt: skip
    for options in ({}, given, *({name: value} for name, value in given.items())):
        made = Options(**cast("Any", options))
        assert {name: getattr(made, name) for name in DEFAULTS} == DEFAULTS | options
    for seconds in (0.5, 59.5, 60.0, 61.0):
        assert Options(max_stall=seconds).max_stall == seconds


def test_the_loop_itself_renews_what_is_renewed_and_not_from_a_thread() -> None:
    assert Options().renewed_in_loop
    assert not Options(renew=False).renewed_in_loop
    assert not Options(watchdog="thread").renewed_in_loop
    assert not Options(renew=False, watchdog="thread").renewed_in_loop
    assert Options(track=True).renewed_in_loop


@pytest.mark.parametrize("kind", [kind for kind in KINDS if leased(kind)], ids=str)
def test_for_type_checkers_an_option_is_what_it_is_for_the_constructor(kind: Kind) -> None:
    typed: Any = TrackedOptions if kind.tracked else LeaseOptions if kind.replicated else RedlockOptions
    assert keywords(getattr(aiolocks, kind.class_name)).keys() == typed.__annotations__.keys()


def test_an_uptime_is_asked_for_in_whole_seconds_of_which_the_server_may_tell_one_too_many() -> None:
    asked: dict[Duration, int] = {0: 0, 0.001: 2, 1: 2, 1.5: 3, 2.0: 3, timedelta(seconds=30): 31, 10**9: 10**9 + 1}
    assert {given: Options(min_uptime=given).needed_uptime for given in asked} == asked
