"""What is packed once for all tokens is what packing each command would have given."""

from typing import cast

import hiredis

from aiolocks._redis.scripts import Arguments, Layout, NamedScript, PreparedScript, TokenScript, load, pack
from tests.support.cases import one_by_one

SCRIPT = load("lock/release")
TERMS = (b"30000 1", 0, b"session", b"channels", 3000)


def named(name: bytes = b"lock:{name}", layout: Layout | None = None) -> NamedScript:
    return NamedScript(TokenScript(SCRIPT, layout or keys), name)


def keys(name: bytes, args: Arguments) -> tuple[bytes, ...]:
    return name, name + b":t:" + cast("bytes", args[0])


def packed(token: bytes, *terms: bytes | int, name: bytes = b"lock:{name}") -> bytes:
    return pack(("EVALSHA", SCRIPT.sha, 2, *keys(name, (token,)), token, *terms))


@one_by_one("token", [b"0" * 33, b"f" * 33, b"", b"short", b"x" * 32])
def test_a_command_is_what_packing_it_gives(token: bytes) -> None:
    commands = named()
    assert commands.evalsha((b"a" * 33, *TERMS)) == packed(b"a" * 33, *TERMS)
    assert commands.evalsha((token, *TERMS)) == packed(token, *TERMS)


def test_each_set_of_terms_has_its_own_bytes() -> None:
    commands = named()
    for ttl_ms in (*range(1, 30), 1):
        terms = (ttl_ms, *TERMS[1:])
        assert commands.evalsha((b"a" * 33, *terms)) == packed(b"a" * 33, *terms)


NAMES = [b"a", b"}", b"%s %d", b"$2\r\n", "\N{EURO SIGN}".encode(), b"x" * 3000, *(b"lock:{%d}" % n for n in range(12))]


@one_by_one("name", NAMES)
def test_a_name_gets_its_own_bytes_however_long_it_is(name: bytes) -> None:
    script = TokenScript(SCRIPT, keys)
    for one in (b"another", name, b"z" * len(name), name):
        for token in (b"a" * 33, b"short"):
            assert NamedScript(script, one).evalsha((token, *TERMS)) == packed(token, *TERMS, name=one)


def test_the_keys_are_asked_for_once_and_not_for_each_token_or_name() -> None:
    asked: list[bytes] = []

    def noted(name: bytes, args: Arguments) -> tuple[bytes, ...]:
        asked.append(cast("bytes", args[0]))
        return keys(name, args)

    script, some = TokenScript(SCRIPT, noted), [(ttl_ms, *TERMS[1:]) for ttl_ms in (1, 2, 3)]
    for number in range(50):
        token, name = b"%033x" % number, b"lock:{%02d}" % number
        for terms in some:
            assert NamedScript(script, name).evalsha((token, *terms)) == packed(token, *terms, name=name)
    assert len(asked) == len(some)
    for ttl_ms in range(100, 400):
        NamedScript(script, b"lock:{00}").evalsha((b"a" * 33, ttl_ms, *TERMS[1:]))
    asked.clear()
    NamedScript(script, b"lock:{00}").evalsha((b"a" * 33, *some[0]))
    assert asked, "all that was ever asked for is kept"


def test_a_first_argument_that_is_no_token_is_packed_each_time() -> None:
    plain = PreparedScript(SCRIPT, lambda _: (b"key",))
    assert plain.evalsha((b"s" * 33, 1)) == pack(("EVALSHA", SCRIPT.sha, 1, b"key", b"s" * 33, 1))


def test_a_whole_script_goes_with_the_same_keys_and_arguments() -> None:
    reader = hiredis.Reader()
    reader.feed(named().eval((b"a" * 33, *TERMS)))
    command, source, count, *rest = reader.gets()
    assert (command, source, count) == (b"EVAL", SCRIPT.source, b"2")
    assert named().name == SCRIPT.name
    assert rest[:3] == [b"lock:{name}", b"lock:{name}:t:" + b"a" * 33, b"a" * 33]
