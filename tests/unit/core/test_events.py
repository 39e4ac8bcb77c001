"""Who is told: callbacks that come, go and fail, and the lines of the log."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from aiolocks._core import events
from aiolocks._core.events import Event, emit, on_event

HELD = Event("acquired", "orders", "lock", 0.25, 7, 3)


@pytest.fixture(autouse=True)
def nobody_stays() -> Iterator[None]:
    yield
    assert not events.listeners


@contextmanager
def listening(*callbacks: Callable[[Event], None]) -> Iterator[None]:
    ends = [on_event(callback) for callback in callbacks]
    yield
    for end in ends:
        end()


def test_an_event_says_what_happened_to_what_and_is_frozen() -> None:
    assert Event._fields == ("kind", "name", "primitive", "seconds", "fencing_token", "acquisition", "note")
    with pytest.raises(AttributeError):
        HELD.kind = "lost"  # type: ignore[misc]  # this is what is tested


def test_callbacks_are_told_in_order_and_one_registered_twice_twice() -> None:
    told: list[str] = []

    def note(event: Event) -> None:
        told.append("first")

    first, again = on_event(note), on_event(note)
    with listening(lambda event: told.append("next")):
        emit(HELD)
        first()
        first()
        emit(HELD)
    emit(HELD)
    assert told == ["first", "first", "next", "first", "next", "first"]
    again()


def test_a_listener_that_comes_or_goes_during_an_event_keeps_no_other_from_it() -> None:
    told: list[Event] = []
    added: list[Callable[[], None]] = []

    def note(event: Event) -> None:
        if not added:
            added.append(on_event(told.append))

    with listening(note):
        emit(HELD)
        assert told == []
        emit(HELD)
    assert told == [HELD]
    added[0]()
    ends = [on_event(lambda event: ends[0]())]
    ends.append(on_event(told.append))
    emit(HELD)
    emit(HELD)
    ends[1]()
    assert told == [HELD] * 3


@pytest.mark.parametrize("error", [ValueError("no"), asyncio.CancelledError()])
def test_what_a_callback_raises_is_logged_once_by_type(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    told: list[Event] = []
    errors = [error, error, KeyError("other")]

    def fail(event: Event) -> None:
        raise errors[len(told)]

    with listening(fail, told.append):
        for _ in range(3):
            emit(HELD)
    assert told == [HELD] * 3
    assert [record.exc_info[1] for record in caplog.records if record.exc_info] == [error, errors[2]]
    assert {record.levelname for record in caplog.records} == {"ERROR"}
    assert "'acquired'" in caplog.records[0].getMessage()


def test_what_cannot_be_called_or_would_have_to_be_awaited_is_a_type_error() -> None:
    async def note(event: Event) -> None: ...

    class Note:
        async def __call__(self, event: Event) -> None: ...

    for wrong in (None, "print", 7, note, partial(note), Note()):
        listener: Any = wrong
        with pytest.raises(TypeError, match="plain function" if callable(wrong) else "function that takes an event"):
            on_event(listener)


def test_the_log_has_a_line_for_each_event_only_at_debug_level(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "aiolocks"):
        emit(HELD)
        assert not caplog.records
    with caplog.at_level(logging.DEBUG, "aiolocks"):
        emit(HELD)
        emit(Event("polling", "", ""))  # which has a line of its own
    assert [record.getMessage() for record in caplog.records] == [
        "lock 'orders': acquired (0.250 s, fencing token 7, acquisition 3)"
    ]
