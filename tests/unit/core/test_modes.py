"""The numbers of modes: processes of several versions tell each other of them by the server."""

from aiolocks._core import modes as _modes


def test_no_two_modes_have_one_number() -> None:
    modes = {name: number for name, number in vars(_modes).items() if name.isupper() and name != "FRONT"}
    assert sorted(modes.values()) == list(range(1, 8))


def test_the_front_of_a_queue_is_before_every_ticket() -> None:
    """0 asks for a ticket; all others are the server's time in microseconds."""
    assert _modes.FRONT == 1
