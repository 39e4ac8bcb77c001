"""The text of a lease that is handed on."""

from aiolocks._core.values import Offer, offer_of


def test_an_offer_is_read_as_it_was_written_and_shows_neither_its_text_nor_its_secret() -> None:
    offer = Offer("lock", (b"aiolocks:lock:{orders}",), 1, b"s" * 33, 30.0)
    text = offer.text()
    assert offer_of(text) == offer
    for shown in (str(offer_of(text)), repr(offer_of(text))):
        assert text not in shown
        assert "s" * 22 not in shown
