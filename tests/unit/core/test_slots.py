"""Cluster slots: what is in one, and that all keys and channels of a name are."""

import random

import pytest
from redis.crc import key_slot

from aiolocks._core.keys import Keys, beside, channel_of, slot_of, tag_of
from tests.support.cases import one_by_one
from tests.support.kinds import every_name
from tests.support.odd_names import odd_names

KINDS = [name for name in every_name() if name != "versioned"]
PARTS = ("fence", "meta", "queue", "agreed", "q:home", "q:poll250-home", "t:token", "g:token")
SESSIONS = (b"home", b"poll250-home", b"{", b"}")


@one_by_one("key, tag", [
        (b"", b""), (b"a", b"a"), (b"{a}", b"a"), (b"x{a}b", b"a"), (b"{a}{b}", b"a"), (b"{{a}}", b"{a"),
        (b"{}a", b"{}a"), (b"a{}b{c}", b"a{}b{c}"), (b"a{b", b"a{b"), (b"a}b", b"a}b"), (b"}{", b"}{"),
        (b"}a{b}", b"b"),
    ])  # fmt: skip
def test_what_stands_in_the_first_braces_is_hashed_or_all(key: bytes, tag: bytes) -> None:
    assert tag_of(key) == tag


@one_by_one("key, slot", [(b"123456789", 0x31C3), (b"", 0), (b"foo", 12182), (b"{foo}bar", 12182)])
def test_slots_are_those_of_the_specification(key: bytes, slot: int) -> None:
    """0x31C3 is the check value of CRC16/XMODEM, and under 16,384."""
    assert slot_of(key) == slot


def test_slots_are_those_that_redis_py_knows() -> None:
    assert [slot_of(name.encode()) for name in odd_names(5_000)] == [
        key_slot(name.encode()) for name in odd_names(5_000)
    ]


@pytest.mark.rest
@one_by_one("kind", KINDS)
def test_all_keys_and_channels_of_a_name_are_in_one_slot(kind: str) -> None:
    for name in odd_names(20_000):
        slots = slots_of(Keys("aiolocks:", kind, name))
        assert len(slots) == 1, name


@pytest.mark.rest
def test_all_keys_and_channels_of_all_paths_with_one_root_are_in_one_slot() -> None:
    draw = random.Random(2)
    names = odd_names(20_000)
    for name in names:
        root = name.replace("/", "") or "root"
        paths = [root, f"{root}/{draw.choice(names)}", f"{root}/{draw.choice(names)}/{draw.choice(names)}"]
        slots = {slot for path in paths for slot in slots_of(Keys("", "hierarchy", path, "modes", path=True))}
        assert len(slots) == 1, root


def slots_of(keys: Keys) -> set[int]:
    channels = keys.channels + b"{"
    places = [keys.base, *(keys.part(part.encode()) for part in PARTS)]
    return {slot_of(key) for key in (*places, *(channel_of(keys.base, channels, session) for session in SESSIONS))}


def test_what_stands_beside_a_key_is_in_its_slot() -> None:
    keys = [name.encode() for name in odd_names(20_000)]
    in_no_tag = [key for key in keys[:2_000] if b"}" in key and tag_of(key) == key]
    for key in [key for key in keys if b"}" not in key or tag_of(key) != key] + in_no_tag[::20]:
        # Of the latter a few, as a number that is hashed alike is looked for.
        assert slot_of(b"app:versioned:" + beside(key)) == slot_of(key), key


def test_no_two_keys_without_a_tag_have_the_same_beside_them() -> None:
    keys = {key for key in (name.encode() for name in odd_names(3_000)) if tag_of(key) == key}
    plain = {beside(key) for key in keys if b"}" not in key}
    odd = {b"{1}:" + key for key in keys if b"}" in key}
    assert len(plain | odd) == len(keys)


@one_by_one(
    "key, end",
    [(b"stock:42", b"{stock:42}"), (b"{shop}:stock", b"{shop}:stock"), (b"a{b", b"{a{b}"), (b"50%", b"{50%}")],
)
def test_beside_a_key_of_the_usual_kind_stands_what_always_stood_there(key: bytes, end: bytes) -> None:
    """Processes of several versions read each other's marks."""
    assert beside(key) == end
