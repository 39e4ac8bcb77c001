"""What is said of a reply that Redis never sends."""

from aiolocks._core.replies import unreadable
from tests.support.cases import one_by_one


@one_by_one("reply, described", [
    (None, "nothing (nil)"), (True, "true or false"), (7, "the number 7"), (1.5, "a number with a fraction"),
    (b"secret", "a text of 6 bytes"), ([b"secret", 7], "a list of 2"), ({b"secret": 7}, "a map of 1"),
])  # fmt: skip
def test_of_an_odd_reply_its_shape_is_told_and_not_its_contents(reply: object, described: str) -> None:
    assert str(unreadable("GRANT", reply)).startswith(f"Redis answered GRANT with {described}, which it never does")
