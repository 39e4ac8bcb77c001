"""What is packed once for all tokens is what packing each command would have given; keys follow from the header."""

from itertools import product
from typing import Any, cast

import hiredis

from aiolocks._redis.scripts import Arguments, NamedScript, PreparedScript, load, pack
from tests.support.cases import one_by_one

SCRIPT = load("lock/release")
TERMS = (b"30000 1", 0, b"session 3000 channels")


def named(name: bytes = b"lock:{name}") -> NamedScript:
    return NamedScript(SCRIPT, name, name)


def keys(name: bytes, args: Arguments) -> tuple[bytes, ...]:
    token, _, tombstone_ms, address, *_ = cast("Any", args)
    held = (name, name + b":fence", name + b":queue", name + b":q:" + address.split()[0])
    return (*held, name + b":t:" + token) if tombstone_ms else held


def packed(token: bytes, *terms: bytes | int, name: bytes = b"lock:{name}") -> bytes:
    found = keys(name, (token, *terms))
    return pack(("EVALSHA", SCRIPT.sha, len(found), *found, token, *terms))


@one_by_one("token", [b"0" * 33, b"f" * 33, b"", b"short", b"x" * 32])
def test_a_command_is_what_packing_it_gives(token: bytes) -> None:
    commands = named()
    assert commands.evalsha((b"a" * 33, *TERMS)) == packed(b"a" * 33, *TERMS)
    assert commands.evalsha((token, *TERMS)) == packed(token, *TERMS)


def test_each_set_of_terms_has_its_own_bytes_and_keys() -> None:
    commands = named()
    for ttl_ms in (*range(1, 30), 1):
        terms = (ttl_ms, *TERMS[1:])
        assert commands.evalsha((b"a" * 33, *terms)) == packed(b"a" * 33, *terms)
    for terms in (TERMS, (TERMS[0], 60_000, *TERMS[2:])):
        assert named().evalsha((b"a" * 33, *terms)) == packed(b"a" * 33, *terms)


NAMES = [b"a", b"}", b"%s %d", b"$2\r\n", "\N{EURO SIGN}".encode(), b"x" * 3000, *(b"lock:{%d}" % n for n in range(12))]


@one_by_one("name", NAMES)
def test_a_name_gets_its_own_bytes_however_long_it_is(name: bytes) -> None:
    for one in (b"another", name, b"z" * len(name), name):
        script = NamedScript(SCRIPT, one, one)
        for token in (b"a" * 33, b"short", b"b" * 33):
            assert script.evalsha((token, *TERMS)) == packed(token, *TERMS, name=one)


def test_names_of_one_length_share_templates_and_those_are_bounded() -> None:
    SCRIPT.templates.clear()
    for number in range(50):
        name = b"lock:{%02d}" % number
        assert named(name).evalsha((b"a" * 33, *TERMS)) == packed(b"a" * 33, *TERMS, name=name)
    assert len(SCRIPT.templates) == 1
    for ttl_ms in range(1000):
        named().evalsha((b"a" * 33, ttl_ms, *TERMS[1:]))
        assert len(SCRIPT.templates) <= 256


def test_the_holder_may_be_in_a_key_of_another_form() -> None:
    for name, chosen in product((b"name", b"same", b"name", b"\xfe" * 33), (b"b" * 33, b"\xfe" * 33, b"\xff" * 22)):
        args = (b"a" * 33, chosen, 0)
        expected = (name, b"aiolocks:exact:{%b}:t:" % name + b"a" * 33)
        script = NamedScript(load("exact/rename"), b"aiolocks:exact:{%b}" % name, name)
        assert script.evalsha(args) == pack(("EVALSHA", load("exact/rename").sha, 2, *expected, *args))


def test_an_address_as_long_as_a_token_is_no_token() -> None:
    script, args = load("lock/recheck"), (b"sessionname 3000 production:wake:", b"entry")
    for _ in range(3):
        expected = (b"n", b"n:fence", b"n:queue", b"n:q:sessionname")
        assert NamedScript(script, b"n", b"n").evalsha(args) == PreparedScript(script, expected).evalsha(args)


def test_a_first_argument_that_is_no_token_is_packed_each_time() -> None:
    plain = PreparedScript(SCRIPT, (b"key",))
    assert plain.evalsha((b"s" * 33, 1)) == pack(("EVALSHA", SCRIPT.sha, 1, b"key", b"s" * 33, 1))


def test_a_whole_script_goes_with_the_same_keys_and_arguments() -> None:
    reader = hiredis.Reader()
    reader.feed(named().eval((b"a" * 33, *TERMS)))
    command, source, count, *rest = reader.gets()
    assert (command, source, count) == (b"EVAL", SCRIPT.source, b"4")
    assert named().name == SCRIPT.name
    assert rest[:5] == [*keys(b"lock:{name}", (b"a" * 33, *TERMS)), b"a" * 33]
