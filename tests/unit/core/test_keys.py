"""Names become keys: readable, and all of one name in one Cluster slot. `security/` has that none is another's."""

from enum import Enum
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiolocks._core.keys import Keys, channel_of
from tests.support.cases import one_by_one
from tests.support.kinds import every_name
from tests.support.odd_names import odd_names

PREFIX = "aiolocks:"
kinds = st.sampled_from(every_name())
hostile = st.text(st.sampled_from("{}%:25BD7qtfencu\n\0 \x7f\N{GREEK SMALL LETTER ALPHA}"), min_size=1, max_size=12)
ordinary = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
names = hostile | ordinary


def hash_tag(key: bytes) -> bytes:
    """Return what Redis Cluster hashes: what is between the first brace and the first closing one after it."""
    return key.partition(b"{")[2].partition(b"}")[0]


@given(kinds, names)
def test_the_name_can_be_read_off_its_key(kind: str, name: str) -> None:
    assert unquote(hash_tag(Keys(PREFIX, kind, name).base).decode()) == name


@given(kinds, st.text(st.characters(exclude_characters="{}%", exclude_categories=["Cs"]), min_size=1, max_size=40))
def test_a_name_without_braces_stays_readable(kind: str, name: str) -> None:
    assert Keys(PREFIX, kind, name).base.endswith(f":{{{name}}}".encode())


def test_a_session_has_one_channel_for_all_names_of_a_prefix_unless_they_are_those_of_shards() -> None:
    """So it subscribes once, whatever it waits for."""
    assert Keys("a:", "lock", "x").channels == Keys("a:", "semaphore", "y").channels != Keys("b:", "lock", "x").channels
    one, other = (Keys("app:", "lock", name).base for name in ("one", "other"))
    assert channel_of(one, b"app:wake:", b"home") == channel_of(other, b"app:wake:", b"home") == b"app:wake:home"
    assert channel_of(one, b"app:wake:{", b"home") == b"app:wake:{one}:home"
    assert channel_of(other, b"app:wake:{", b"home") == b"app:wake:{other}:home"


def test_no_two_names_or_sessions_share_a_channel_of_shards() -> None:
    """But for the same name of another kind, as one turn is told by its key."""
    names, sessions = odd_names(5_000), (b"home", b"poll250-home", b"{", b"}")
    channels = {
        channel_of(Keys("app:", "lock", name).base, b"app:wake:{", session) for name in names for session in sessions
    }
    assert len(channels) == len(names) * len(sessions)


@one_by_one("name", ["x", "x" * 1024, "\N{EURO SIGN}" * 341])
def test_a_name_of_1_to_1024_bytes_is_a_name(name: str) -> None:
    assert Keys(PREFIX, "lock", name).name == name


class Word(str, Enum):  # noqa: UP042  # an f-string shows a StrEnum by its text
    NAME = "orders"
    FIRST = "first:"
    LATER = "later:"


def test_an_enum_that_is_a_str_is_the_text_that_it_is() -> None:
    for plain, word in (("first:", Word.FIRST), ("later:", Word.LATER)):
        prefixes = (word, plain) if word is Word.FIRST else (plain, word)  # the same, whichever is used first
        bases = [Keys(prefix, "lock", name).base for prefix in prefixes for name in (Word.NAME, "orders")]
        assert set(bases) == {f"{plain}lock:{{orders}}".encode()}
    assert type(Keys(PREFIX, "lock", Word.NAME).name) is str


@one_by_one("error, prefix, name", [
    *((ValueError, PREFIX, name) for name in ("", "x" * 1025, "\N{EURO SIGN}" * 342, "lone \udc80 surrogate")),
    *((ValueError, prefix, "x") for prefix in ("{x}:", "{", "}", "lone \udc80 surrogate")),
    *((TypeError, PREFIX, name) for name in (b"bytes", 7, None)), (TypeError, b"bytes:", "x"), (TypeError, None, "x"),
])  # fmt: skip
def test_what_is_no_name_or_prefix_is_an_error_that_says_which(error: type[Exception], prefix: Any, name: Any) -> None:
    """A prefix with a brace would move the slot."""
    with pytest.raises(error, match="name" if prefix == PREFIX else "prefix"):
        Keys(prefix, "lock", name)


def test_only_a_caller_that_gives_several_names_is_pointed_to_multilock() -> None:
    for several in (["a"], ("a", "b"), {"a"}, frozenset({"a"})):
        with pytest.raises(TypeError, match="a MultiLock takes several names"):
            Keys(PREFIX, "lock", several)  # type: ignore[arg-type]  # as above
    with pytest.raises(TypeError, match=r"not bytes$"):
        Keys(PREFIX, "lock", b"a")  # type: ignore[arg-type]  # as above
