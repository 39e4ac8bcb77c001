"""What is packed once for all tokens is what packing each command would have given."""

from typing import cast

import hiredis
import pytest

from aiolocks._bound import Bound, pack
from aiolocks._scripts import load

SCRIPT = load("lock_release")
TERMS = (b"30000 1", 0, b"session", b"channels", 3000)


def bound(*, per_token: bool = True) -> Bound:
    return Bound(SCRIPT, lambda args: keys(cast("bytes", args[0])), per_token=per_token)


def keys(token: bytes) -> tuple[bytes, ...]:
    return b"lock:{name}", b"lock:{name}:t:" + token


def packed(token: bytes, *terms: bytes | int) -> bytes:
    return pack(("EVALSHA", SCRIPT.sha, len(keys(token)), *keys(token), token, *terms))


@pytest.mark.parametrize("token", [b"0" * 32, b"f" * 32, b"", b"short", b"x" * 33], ids=repr)
def test_a_command_is_what_packing_it_gives(token: bytes) -> None:
    commands = bound()
    assert commands.by_digest((b"a" * 32, *TERMS)) == packed(b"a" * 32, *TERMS)
    assert commands.by_digest((token, *TERMS)) == packed(token, *TERMS)


def test_each_set_of_terms_has_its_own_bytes() -> None:
    commands = bound()
    for ttl_ms in (*range(1, 30), 1):
        terms = (ttl_ms, *TERMS[1:])
        assert commands.by_digest((b"a" * 32, *terms)) == packed(b"a" * 32, *terms)


def test_a_first_argument_that_is_no_token_is_packed_each_time() -> None:
    plain = Bound(SCRIPT, lambda _: (b"key",), per_token=False)
    assert plain.by_digest((b"s" * 32, 1)) == pack(("EVALSHA", SCRIPT.sha, 1, b"key", b"s" * 32, 1))


def test_a_whole_script_goes_with_the_same_keys_and_arguments() -> None:
    reader = hiredis.Reader()
    reader.feed(bound().whole((b"a" * 32, *TERMS)))
    command, source, count, *rest = reader.gets()
    assert (command, source, count) == (b"EVAL", SCRIPT.source, b"2")
    assert rest[:3] == [b"lock:{name}", b"lock:{name}:t:" + b"a" * 32, b"a" * 32]
