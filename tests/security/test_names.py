"""What users name is data: it reaches the server as a key or an argument, and it is never another name's."""

import asyncio
import re
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Any

import hiredis
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from redis.asyncio import Redis

import aiolocks
from aiolocks import Semaphore
from aiolocks._core.keys import Keys
from aiolocks._redis.scripts import Script, load
from aiolocks.testing import FaultProxy
from tests.support.cases import one_by_one
from tests.support.kinds import every_name
from tests.support.network import client_of, until
from tests.support.primitives import ROWS, Row, as_a_stranger, queued

LUA = Path(aiolocks.__file__).parent / "_redis" / "lua"
KINDS = every_name()

# What would end a hash tag, a key, a Lua string, a comment, a message or a line early, if it were not data.
HOSTILE = [
    "a", "a:fence", "a}:fence", "a}:queue", "{a}", "a}", "%7Ba%7D", "a%257D", "a}:t:0123456789abcdef0123456789abcdef",
    "' .. redis.call('SET', 'pwned', '1') .. '", "]] redis.call('SET', 'pwned', '1') --",
    "a') redis.call('SET', 'pwned', '1') --[[", "a\r\n*3\r\n$3\r\nSET\r\n$5\r\npwned\r\n$1\r\n1\r\n",
    "a\n\x00\t $1 %s %d {0} \\", "0123456789abcdef0123456789abcdef 1 9999",
    "\N{GREEK SMALL LETTER ALPHA}\N{RIGHT-TO-LEFT OVERRIDE}\N{MUSICAL SYMBOL G CLEF}", "[a-z]*?",
]  # fmt: skip

pieces = st.sampled_from(
    ["{", "}", "%", ":", "\n", " ", "7B", "a", *KINDS, "queue", "fence", "q:", "t:", "wake:", "\0"]
)
hostile = st.lists(pieces, min_size=1, max_size=8).map("".join)
names = hostile | st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
prefixes = names.map(lambda text: text.translate({ord("{"): "", ord("}"): ""})) | st.sampled_from(["", "aiolocks:"])
kinds = st.sampled_from(KINDS)
ids = st.binary(min_size=4, max_size=4).map(lambda raw: raw.hex().encode())


def all_keys(keys: Keys, session: bytes, token: bytes) -> set[bytes]:
    parts = (b"fence", b"meta", b"queue", b"q:" + session, b"q:poll250-" + session, b"t:" + token)
    return {keys.base, *map(keys.part, parts)}


@given(prefixes, kinds, names, prefixes, kinds, names, st.tuples(ids, ids), st.tuples(ids, ids))
@example("", "lock", "a", "lock:{a}", "lock", "a", (b"1", b"2"), (b"1", b"2"))
@example("a:", "lock", "b", "a:lock:", "lock", "b", (b"1", b"2"), (b"1", b"2"))
@example("", "lock", "a", "", "lock", "a}:q:1", (b"1", b"2"), (b"1", b"2"))
@example("", "lock", "a", "", "lock", "a}:fence", (b"1", b"2"), (b"1", b"2"))
@example("", "lock", "{", "", "lock", "%7B", (b"1", b"2"), (b"1", b"2"))
@example("", "lock", "%", "", "lock", "%25", (b"1", b"2"), (b"1", b"2"))
@example("", "lock", "a", "", "semaphore", "a", (b"1", b"2"), (b"1", b"2"))
def test_two_prefixes_kinds_or_names_never_share_a_key_whatever_the_sessions_and_tokens(
    prefix: str, kind: str, name: str, other_prefix: str, other_kind: str, other: str,
    ids: tuple[bytes, bytes], other_ids: tuple[bytes, bytes],
) -> None:  # fmt: skip
    assume((prefix, kind, name) != (other_prefix, other_kind, other))
    assume("{" not in prefix + other_prefix)
    one, two = Keys(prefix, kind, name), Keys(other_prefix, other_kind, other)
    assert all_keys(one, *ids).isdisjoint(all_keys(two, *other_ids))


@one_by_one("kind, other", list(permutations(KINDS, 2)))
def test_no_kinds_keys_begin_as_anothers_behind_some_prefix(kind: str, other: str) -> None:
    """Or a longer prefix in front of the shorter one would give the keys of the longer one."""
    assert not Keys("", kind, "a").base.endswith(Keys("", other, "a").base)


@given(prefixes, prefixes, kinds, names, ids, ids)
def test_no_key_is_a_channel_and_no_prefix_hears_messages_of_another(
    prefix: str, other: str, kind: str, name: str, session: bytes, token: bytes
) -> None:
    keys = Keys(prefix, kind, name)
    assert keys.channels + session not in all_keys(keys, session, token)
    assume(prefix != other)
    assert keys.channels + session != Keys(other, kind, name).channels + token


@pytest.mark.parametrize("name", ["\udc80", "a\ud800", "\udfffa"], ids=ascii)
@one_by_one("row", ROWS)
def test_a_lone_surrogate_is_refused_before_any_io(row: Row, name: str) -> None:
    client = Redis(unix_socket_path="/nowhere")
    for arguments in ({"name": name}, {"name": "a", "prefix": name}):
        with pytest.raises(ValueError, match="surrogate"):
            row.make(client, **arguments)


@pytest.mark.redis
async def test_names_that_look_like_each_other_s_keys_are_held_all_at_once(redis: Redis, quick_sessions: None) -> None:
    prefixes = ("aiolocks:", "", "aiolocks:lock:", "' .. x --\n \t")
    rows = [row for row in ROWS if row.places == 1]
    objects = [row.make(redis, name, prefix=prefix) for row in rows for name in HOSTILE for prefix in prefixes]
    leases = [await held.try_acquire() for held in objects]
    assert all(leases)
    assert [await as_a_stranger(held.try_acquire()) for held in objects] == [None] * len(objects)
    statistics = [await held.statistics() for held in objects]
    assert {(now.holders, now.waiting) for now in statistics} == {(1, 0)}
    for lease in leases:
        assert lease is not None
        assert await lease.release()
    assert not await redis.exists("pwned")


@pytest.mark.redis
@pytest.mark.parametrize("row", [row for row in ROWS if row.queue and not row.composed], ids=str)
@pytest.mark.parametrize("prefix", ["aiolocks:", "]] error('x') --\r\n"], ids=ascii)
async def test_names_and_values_reach_the_server_as_keys_and_arguments_only(
    proxy: FaultProxy, redis: Redis, quick_sessions: None, row: Row, prefix: str
) -> None:
    """The text of each script that is sent is that of the files, and a digest is of one of them."""
    seen: list[list[bytes]] = []
    rechecked = asyncio.Event()
    proxy.on_request = lambda request: seen.append(words_of(request))
    async with client_of(proxy) as one, client_of(proxy) as other:
        async with asyncio.TaskGroup() as users:
            for name in HOSTILE:
                users.create_task(use(row, one, other, name, prefix, rechecked))
            await until(lambda: any(is_recheck(words) for words in seen))
            rechecked.set()
    scripts = all_scripts()
    ran: set[str] = set()
    for verb, *words in seen:
        if verb in (b"EVAL", b"EVALSHA"):
            script = scripts[words[0]]  # a KeyError: a text or digest that is no file's
            spared = script.name.endswith("/release") and words[1] == b"4"  # a tombstone that is not needed
            of_many = script.name.endswith("/renew_many")  # on a busy machine, and of any number
            assert of_many or int(words[1]) + spared == len(script.keys)
            ran.add(script.name.rpartition("/")[2])
        else:
            assert verb in (b"SUBSCRIBE", b"UNSUBSCRIBE", b"HELLO", b"CLIENT", b"SELECT"), (verb, words)
    assert {"grant", "renew", "release", "statistics", "recheck"} <= ran
    assert not await redis.exists("pwned")


async def use(row: Row, one: Redis, other: Redis, name: str, prefix: str, rechecked: asyncio.Event) -> None:
    """Do whatever sends something: acquire, wait, ask again, be told, renew, resize, pause, release."""
    mine, theirs = (row.make(client, name, prefix=prefix, ttl=1.5) for client in (one, other))
    leases = [await mine.acquire() for _ in range(row.places)]
    waiting = asyncio.ensure_future(theirs.acquire())
    await queued(mine, 1)
    assert await theirs.locked()
    assert await leases[0].renew()
    if isinstance(mine, Semaphore):
        await mine.resize(row.places)
        await mine.pause(0.001)
        await mine.resume()
    await rechecked.wait()
    for lease in leases:
        await lease.release()
    lease = await waiting
    assert lease.name == name
    assert await lease.release()


def is_recheck(words: list[bytes]) -> bool:
    return words[0] == b"EVAL" and all_scripts()[words[1]].name.endswith("/recheck")


def words_of(request: bytes) -> list[bytes]:
    reader: Any = hiredis.Reader()
    reader.feed(request)
    words: list[bytes] = reader.gets()
    return [words[0].upper(), *words[1:]]


@cache
def all_scripts() -> dict[bytes, Script]:
    scripts = [
        load(f"{file.parent.name}/{file.stem}") for file in LUA.glob("*/*.lua") if file.parent.name != "libraries"
    ]
    return {key: script for script in scripts for key in (script.source, script.sha)}


def test_a_script_s_text_is_that_of_its_files_and_nothing_is_put_into_it() -> None:
    """Each line is one of a file's, or declares a name for a key or an argument."""
    written = [line for file in LUA.glob("*/*.lua") for line in file.read_text(encoding="utf-8").splitlines()]
    lines = {line.split(" -- ")[0].strip() for line in written}
    declaration = re.compile(
        r"local \w+(, \w+)* = (KEYS|ARGV)\[1\](, \2\[\d+\])*|local \w+ = (\{\}|KEYS|ARGV)"
        r"|for at = \d+, #(KEYS|ARGV) do \w+\[at - \d+ \+ 1\] = \5\[at\] end|--!df flags=allow-undeclared-keys"
    )
    for script in all_scripts().values():
        for line in script.source.decode().splitlines():
            assert line in lines or declaration.fullmatch(line), (script.name, line)
