"""Errors for want of a right name the right, as each version of Redis words them; warnings are given once."""

import logging
from functools import partial
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import NoPermissionError, ResponseError

from aiolocks._core.answers import explained
from aiolocks._redis.clients import warn_of_missing_right
from aiolocks._redis.scripts import source_of
from tests.support.cases import one_by_one

_LINES = source_of("lock/grant").decode().splitlines()
_LINE = next(number for number, line in enumerate(_LINES, 1) if "redis.call('TIME')" in line)


@one_by_one("text, right", [
        ("this user has no permissions to run the 'eval' command or its subcommand", "+eval"),
        ("this user has no permissions to run the 'pubsub|numsub' command", "+pubsub|numsub"),
        ("User app has no permissions to run the 'sentinel|master' command", "+sentinel|master"),
        ("ACL failure in script: User app has no permissions to run the 'time' command script: 8d.", "+time"),
        (f"The user executing the script can't run this command or subcommand, on @user_script:{_LINE}.", "+time"),
        (
            f"Error running script (call to f_8d): @user_script:{_LINE}: @user_script: {_LINE}: The user executing the "
            "script can't run this command or subcommand",
            "+time",
        ),
        ("this user has no permissions to access one of the keys used as arguments", "~<prefix>*"),
        ("User app has no permissions to access the 'aiolocks:lock:{a}' key", "~<prefix>*"),
        (
            "The user executing the script can't access at least one of the keys mentioned in the command arguments",
            "~<prefix>*",
        ),
    ])  # fmt: skip
def test_the_right_that_is_missing_is_named_and_the_server_s_words_are_kept(text: str, right: str) -> None:
    for kind in (NoPermissionError, ResponseError):
        error = explained(kind(text), partial(source_of, "lock/grant"))
        assert type(error) is kind
        assert str(error) == f"this Redis user lacks the right {right}: {text}"


@one_by_one("text", [
    "wrong number of arguments", "this user has no permissions to access one of the channels used as arguments",
    "The user executing the script can't run this command or subcommand script: 8d, on @user_script:9999.",
    "The user executing the script can't run this command or subcommand script: 8d, on @user_script:1.",
])  # fmt: skip
def test_what_says_nothing_of_a_right_is_left_as_it_is(text: str) -> None:
    error = ResponseError(text)
    for name in ("lock/grant", "PUBLISH", ""):
        assert explained(error, partial(source_of, name)) is error


def test_a_client_is_warned_of_each_right_once(caplog: pytest.LogCaptureFixture) -> None:
    pool: Any = None
    for client in (Redis(), Redis()):
        pool = client.connection_pool
        for right in ("+one", "+one", "+other", "+one"):
            warn_of_missing_right(pool, right, "it is so")
    rights = ["+one", "+other"]
    assert caplog.messages == [f"this Redis user lacks the right {right}: it is so" for right in rights] * 2
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    caplog.clear()
    for number in (*range(1001), 0):  # a thousand are remembered, so the first is logged again
        warn_of_missing_right(pool, f"+{number}", "it is so")
    assert len(caplog.messages) == 1002
