"""Commands to be guarded: how they are written down, and which are refused before anything is sent."""

from typing import Any

import pytest
from redis._parsers import Encoder

from aiolocks._core.guard_commands import MAX_WORDS, Batch, batch
from tests.support.cases import one_by_one

make_encoder: Any = Encoder
UTF8 = make_encoder("utf-8", "strict", False)


def of(*commands: Any) -> Batch:
    return batch(commands, UTF8)


def test_the_words_of_each_command_follow_their_number_and_names_and_keys_are_in_order() -> None:
    assert of(("SET", "k", b"\xff\0"), ("INCRBY", "n", -2)).words == (
        b"3", b"SET", b"k", b"\xff\0", b"3", b"INCRBY", b"n", b"-2",
    )  # fmt: skip
    assert of(("OBJECT ENCODING", "k")) == of(("OBJECT", "ENCODING", "k"))
    assert of(("set", "k", 1), (b"Get", "k"), ("OBJECT ENCODING", "k")).names == ("SET", "GET", "OBJECT")
    assert of(("SET", "a", 1), ("INCR", "a")).keys == (b"a",)


def test_words_are_written_as_redis_py_writes_them() -> None:
    words: list[Any] = ["é", b"\xe9", 10**20, 0.1, 1e300, memoryview(b"b")]
    assert list(of(("SET", *words)).words[2:]) == [UTF8.encode(word) for word in words]
    assert of(("SET", bytearray(b"a"))).words[2] == b"a"  # which redis-py takes since 8.0
    assert batch([("SET", "é")], make_encoder("latin-1", "strict", True)).words[2] == b"\xe9"


@one_by_one("command, keys", [
    (("set", "a", "b"), [b"a"]), (("DEL", "a", "b"), [b"a", b"b"]), (("MSET", "a", 1, "b", 2), [b"a", b"b"]),
    (("RENAME", "a", "b"), [b"a", b"b"]), (("COPY", "a", "b", "REPLACE"), [b"a", b"b"]),
    (("BITOP", "AND", "a", "b", "c"), [b"a", b"b", b"c"]),
    (("ZUNIONSTORE", "a", 2, "b", "c", "WEIGHTS", 1, 2), [b"a", b"b", b"c"]),
    (("ZUNION", 1, "a", "WITHSCORES"), [b"a"]), (("XGROUP", "CREATE", "a", "g", "$"), [b"a"]),
    (("XREAD", "COUNT", 1, "STREAMS", "a", "b", 0, 0), [b"a", b"b"]), (("PUBLISH", "channel", "hi"), []),
    (("PING",), []), (("SOMETHINGNEW", "a", "b"), [b"a"]), (("XREAD", "STREAMS", "block", 0), [b"block"]),
])  # fmt: skip
def test_the_keys_of_a_command_are_known(command: Any, keys: list[bytes]) -> None:
    assert list(of(command).keys) == keys


@one_by_one("command", [("ZUNION",), ("ZUNION", "many", "a"), ("ZUNION", "", "a"), ("ZUNIONSTORE", "a")])
def test_a_command_that_does_not_say_how_many_keys_it_has_is_left_to_the_server_to_refuse(command: Any) -> None:
    assert list(of(command).words[1:]) == [word.encode() for word in command]
    assert list(of(command).keys) == ([b"a"] if command[0] == "ZUNIONSTORE" else [])


ALONE = ["BLPOP", "blpop", "MULTI", "EXEC", "WATCH", "SUBSCRIBE", "SELECT", "WAIT", "EVAL", "CLIENT KILL", b"QUIT"]
WAITS = (("XREAD", "BLOCK", 0, "STREAMS", "a", "$"), "BLOCK")


@one_by_one("command, says", [*(((name, "a", 0), "cannot be guarded") for name in ALONE), WAITS])
def test_a_command_that_cannot_run_with_others_or_waits_is_refused(command: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        of(("SET", "a", 1), command)


@one_by_one("command", ["SET k 1", b"SET", None, 1, {"SET"}, (1, "k"), (None,), ("SET", "k", None),
                                     ("SET", "k", True), ("SET", "k", [1])])  # fmt: skip
def test_what_is_no_tuple_of_words_is_a_type_error(command: object) -> None:
    with pytest.raises(TypeError):
        of(command)


@one_by_one("commands", [[], [()], [("",)], [(" ",)]])
def test_nothing_to_run_is_an_error(commands: list[Any]) -> None:
    with pytest.raises(ValueError):
        batch(commands, UTF8)


def test_as_many_words_as_fit_into_a_script_are_taken() -> None:
    of(("RPUSH", "l", *range(MAX_WORDS - 3)))
    with pytest.raises(ValueError, match="4000"):
        of(("RPUSH", "l", *range(MAX_WORDS - 2)))
