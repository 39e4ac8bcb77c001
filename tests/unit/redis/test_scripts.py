"""What is packed once for all tokens is what packing each command would have given."""

from typing import cast

import hiredis
import pytest

from aiolocks._redis.scripts import Arguments, PreparedScript, load, pack

SCRIPT = load("lock/release")
TERMS = (b"30000 1", 0, b"session", b"channels", 3000)


def bound(*, per_token: bool = True) -> PreparedScript:
    return PreparedScript(SCRIPT, lambda args: keys(cast("bytes", args[0])), per_token=per_token)


def keys(token: bytes) -> tuple[bytes, ...]:
    return b"lock:{name}", b"lock:{name}:t:" + token


def packed(token: bytes, *terms: bytes | int) -> bytes:
    return pack(("EVALSHA", SCRIPT.sha, len(keys(token)), *keys(token), token, *terms))


@pytest.mark.parametrize("token", [b"0" * 32, b"f" * 32, b"", b"short", b"x" * 33], ids=repr)
def test_a_command_is_what_packing_it_gives(token: bytes) -> None:
    commands = bound()
    assert commands.evalsha((b"a" * 32, *TERMS)) == packed(b"a" * 32, *TERMS)
    assert commands.evalsha((token, *TERMS)) == packed(token, *TERMS)


def test_each_set_of_terms_has_its_own_bytes() -> None:
    commands = bound()
    for ttl_ms in (*range(1, 30), 1):
        terms = (ttl_ms, *TERMS[1:])
        assert commands.evalsha((b"a" * 32, *terms)) == packed(b"a" * 32, *terms)


def test_the_keys_are_asked_for_once_and_not_for_each_token() -> None:
    asked: list[bytes] = []

    def noted(args: Arguments) -> tuple[bytes, ...]:
        asked.append(cast("bytes", args[0]))
        return keys(asked[-1])

    commands, some = PreparedScript(SCRIPT, noted, per_token=True), [(ttl_ms, *TERMS[1:]) for ttl_ms in (1, 2, 3)]
    for number in range(50):
        token = b"%032x" % number
        for terms in some:
            assert commands.evalsha((token, *terms)) == packed(token, *terms)
    assert len(asked) == len(some)
    for ttl_ms in range(100, 200):
        commands.evalsha((b"a" * 32, ttl_ms, *TERMS[1:]))
    asked.clear()
    commands.evalsha((b"a" * 32, *some[0]))
    assert asked, "all that was ever asked for is kept"


def test_a_first_argument_that_is_no_token_is_packed_each_time() -> None:
    plain = PreparedScript(SCRIPT, lambda _: (b"key",), per_token=False)
    assert plain.evalsha((b"s" * 32, 1)) == pack(("EVALSHA", SCRIPT.sha, 1, b"key", b"s" * 32, 1))


def test_a_whole_script_goes_with_the_same_keys_and_arguments() -> None:
    reader = hiredis.Reader()
    reader.feed(bound().eval((b"a" * 32, *TERMS)))
    command, source, count, *rest = reader.gets()
    assert (command, source, count) == (b"EVAL", SCRIPT.source, b"2")
    assert bound().name == SCRIPT.name
    assert rest[:3] == [b"lock:{name}", b"lock:{name}:t:" + b"a" * 32, b"a" * 32]
