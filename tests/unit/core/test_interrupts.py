"""Ctrl-C on the command line while modules are imported."""

import signal
from collections.abc import Iterator

import pytest

from aiolocks._core.interrupts import end_at_once, raise_again


@pytest.fixture(autouse=True)
def usual() -> Iterator[None]:
    handler = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, handler)


@pytest.mark.parametrize(
    ("before", "meanwhile"), [(signal.default_int_handler, signal.SIG_DFL), (signal.SIG_IGN, signal.SIG_IGN)]
)
def test_ctrl_c_is_quiet_for_a_while_unless_it_is_ignored_as_under_nohup(before: object, meanwhile: object) -> None:
    signal.signal(signal.SIGINT, before)  # type: ignore[arg-type]
    end_at_once()
    assert signal.getsignal(signal.SIGINT) == meanwhile
    raise_again()
    assert signal.getsignal(signal.SIGINT) == before
