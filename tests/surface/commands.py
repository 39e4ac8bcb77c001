"""What a command of `aiolocks` said, and the types that its tests share."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

Capsys = pytest.CaptureFixture[str]


@dataclass(frozen=True, slots=True)
class Said:
    """The status of a command, and what it printed."""

    status: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


Command = Callable[..., Awaitable[Said]]
