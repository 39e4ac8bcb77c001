"""A token says whose it is, and the rest of it cannot be guessed."""

import base64
import re
from collections.abc import Callable

import pytest

from aiolocks._core import tokens
from aiolocks._core.tokens import LENGTH, OWN, SESSION, digest_of, fresh_session, fresh_token, own_part, session_of
from tests.support.cases import one_by_one


@pytest.mark.parametrize("draw", [tokens.tokens_of, lambda session: lambda: fresh_token(session)], ids=["many", "one"])
def test_tokens_are_their_session_and_132_random_bits(draw: Callable[[bytes], Callable[[], bytes]]) -> None:
    session = fresh_session()
    another = draw(session)
    drawn = [another() for _ in range(1000)]
    assert {(len(token), session_of(token)) for token in drawn} == {(LENGTH, session)}
    assert len({own_part(token) for token in drawn}) == 1000
    assert all(re.fullmatch(rb"[A-Za-z0-9_-]+", token) for token in drawn), "scripts take it for one word"
    assert 6 * OWN >= 128
    for at in range(SESSION, LENGTH):  # each letter may be any: a part that never changes would be no secret
        assert len({token[at] for token in drawn}) == 64


def test_an_id_is_64_random_bits() -> None:
    drawn = [fresh_session() for _ in range(1000)]
    assert {len(base64.urlsafe_b64decode(session + b"=")) for session in drawn} == {8}
    assert len(set(drawn)) == 1000
    assert len({session_of(fresh_token()) for _ in range(100)}) == 100


def test_no_id_looks_like_the_name_of_a_session_that_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = iter([base64.urlsafe_b64decode(b"poll50-0000="), b"\0" * 8])
    monkeypatch.setattr("os.urandom", lambda _: next(ids))
    assert fresh_session() == b"A" * SESSION


@one_by_one("token", [b"", b"t", b"x" * (LENGTH - 1), b"x" * (LENGTH + 1), b"x" * 20 + b" " + b"x" * 12])
def test_a_token_of_others_is_of_no_session(token: bytes) -> None:
    assert session_of(token) == b""


def test_tokens_are_told_apart_by_their_secret_or_however_short_they_are() -> None:
    assert len({digest_of(token) for token in (b"w1", b"w2", b"worker-0001", b"worker-0001-x", b"worker-0002-x")}) == 5
    token = fresh_token()
    assert digest_of(token) == digest_of(fresh_session() + own_part(token))
