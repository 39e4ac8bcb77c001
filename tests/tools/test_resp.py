"""Where messages end, and which request a reply answers."""

from hypothesis import given
from hypothesis import strategies as st

from aiolocks.testing._resp import Pairing, Scanner
from tests.support.network import command

MESSAGES = [
    b"+OK\r\n", b"-ERR no\r\n", b":-12\r\n", b"$-1\r\n", b"$0\r\n\r\n", b"$12\r\na\r\nb*3\r\n$1\r\n\r\n", b"*-1\r\n",
    b"*0\r\n", b"*2\r\n*1\r\n:1\r\n$3\r\nabc\r\n", b"_\r\n", b",1.5\r\n", b"#t\r\n", b"(12345678901234567890123\r\n",
    b"=7\r\ntxt:abc\r\n", b"!5\r\nERR x\r\n", b"%2\r\n+a\r\n*2\r\n:1\r\n:2\r\n+b\r\n%0\r\n", b"~2\r\n:1\r\n:2\r\n",
    b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n", b"|1\r\n+ttl\r\n:3\r\n$1\r\nv\r\n", b"PING\r\n",
]  # fmt: skip


@given(st.lists(st.sampled_from(MESSAGES), max_size=12), st.data())
def test_messages_are_cut_at_their_ends_however_they_arrive(messages: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(messages)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    scanner = Scanner()
    found: list[bytes] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += scanner.feed(stream[start:end])
    assert found == messages


def test_an_error_answers_a_subscription_as_a_whole_and_an_array_like_a_message_is_a_reply_where_none_is() -> None:
    pairing = Pairing()
    pairing.ask(command(b"SUBSCRIBE", b"a", b"b"))
    pairing.ask(command(b"PING"))
    assert pairing.answer(b"-NOPERM\r\n") == command(b"SUBSCRIBE", b"a", b"b")
    assert pairing.answer(b"+PONG\r\n") == command(b"PING")

    pairing = Pairing()
    pairing.ask(command(b"LRANGE", b"key", b"0", b"-1"))
    assert pairing.answer(command(b"message", b"channel", b"text")) == command(b"LRANGE", b"key", b"0", b"-1")
