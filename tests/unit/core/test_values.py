"""The text of a lease that is handed on, and holders in the text of an error."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from aiolocks._core.values import Holder, Offer, described, offer_of


def test_an_offer_is_read_as_it_was_written_and_shows_neither_its_text_nor_its_secret() -> None:
    offer = Offer("lock", (b"aiolocks:lock:{orders}",), 1, b"s" * 33, 30.0)
    text = offer.text()
    assert offer_of(text) == offer
    for shown in (str(offer_of(text)), repr(offer_of(text))):
        assert text not in shown
        assert "s" * 22 not in shown


NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("known", "text"),
    [
        ({}, "an unknown process"),
        ({"holder": "billing"}, "billing"),
        ({"host": "web-3", "pid": 812}, "web-3 (pid 812)"),
        ({"host": "web-3", "pid": 812, "task": "nightly"}, "nightly on web-3 (pid 812)"),
        (
            {"host": "web-3", "pid": 812, "holder": "billing", "task": "nightly", "note": "May's report",
             "since": NOW - timedelta(seconds=41)},
            "billing on web-3 (pid 812) for 41 s: May's report",
        ),
        ({"host": "web\x1b[2J", "pid": 1, "since": NOW + timedelta(5)}, r"web\x1b[2J (pid 1) for 0 s"),
    ],
)  # fmt: skip
def test_a_holder_is_described_as_far_as_it_is_known(known: dict[str, Any], text: str) -> None:
    unknown = dict.fromkeys(("host", "pid", "holder", "task", "since", "mode"))
    holder = Holder(**{**unknown, **known}, remaining=1.0, permits=1, fencing_token=1)
    assert described([holder], NOW) == text
    assert described([holder] * 5, NOW) == ", by ".join([text] * 3) + ", and by 2 more"
