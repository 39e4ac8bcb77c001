"""When a loop is kept turning for a reply, and when it may sleep, by a clock and a loop that stand still."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from aiolocks._vigil import SOON, Vigil

LATELY = 1e-3


@dataclass
class Asked:
    sent_at: float
    receiver: Callable[..., None] | None = print


class Night:
    """The loop and the clock of a vigil."""

    def __init__(self, processors: int = 2) -> None:
        self.now = 100.0
        self.due: list[Callable[[], None]] = []
        loop: Any = self
        self.vigil = Vigil(loop, lambda: self.now, processors)

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.due.append(callback)

    def turn(self) -> int:
        """Let the loop turn once, and return for how many callbacks it will turn again at once."""
        due, self.due = self.due, []
        for callback in due:
            callback()
        return len(self.due)

    def hear(self, took: float = SOON / 2) -> None:
        self.vigil.heard(self.now, took)

    def ask(self) -> Asked:
        asked = Asked(self.now)
        self.vigil.expect(asked)
        return asked


@pytest.fixture
def night() -> Night:
    night = Night()
    night.hear()
    return night


def test_a_loop_turns_until_the_reply_has_come(night: Night) -> None:
    asked = night.ask()
    assert [night.turn(), night.turn(), night.turn()] == [1, 1, 1]
    asked.receiver = None
    assert night.turn() == 0


def test_it_sleeps_when_the_reply_does_not_come_soon(night: Night) -> None:
    night.ask()
    night.now += 0.9 * SOON
    assert night.turn() == 1
    night.now += 0.2 * SOON
    assert night.turn() == 0


def test_it_turns_for_the_newest_of_several_and_once_for_all(night: Night) -> None:
    first = night.ask()
    night.now += 0.9 * SOON
    night.ask()
    first.receiver = None
    assert night.turn() == 1
    night.now += 0.9 * SOON
    assert night.turn() == 1


def test_it_turns_again_for_what_is_asked_later(night: Night) -> None:
    night.ask().receiver = None
    assert night.turn() == 0
    night.hear()
    night.ask()
    assert night.turn() == 1


def test_it_sleeps_before_anything_is_known() -> None:
    night = Night()
    night.ask()
    assert not night.due


def test_it_sleeps_where_the_newest_reply_took_longer(night: Night) -> None:
    night.hear(took=SOON)
    night.ask()
    assert not night.due


def test_it_sleeps_where_nothing_has_come_lately(night: Night) -> None:
    night.now += LATELY
    night.ask()
    assert not night.due


def test_it_sleeps_where_there_is_one_processor() -> None:
    """Whoever is to answer may need just that one."""
    night = Night(processors=1)
    night.hear()
    night.ask()
    assert not night.due
