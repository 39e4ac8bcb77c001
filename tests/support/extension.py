"""What a primitive adds to its requests, in the test's own hands."""

from collections.abc import Callable, Sequence
from typing import Any, final

from aiolocks._core.errors import LockError
from aiolocks._engine.extension import Extension


@final
class Adding(Extension):
    """Declares once, as a semaphore does; the rest does what the test says."""

    def __init__(
        self, *declared: bytes | int, on_reply: Callable[[Sequence[Any], Any], None] = lambda args, reply: None,
        objection: Callable[[int], RuntimeError | None] = lambda limit: None,
        refusal: Callable[[int], LockError | None] = lambda amount: None,
    ) -> None:  # fmt: skip
        self._declared = declared
        self._declares = bool(declared)
        self._on_reply, self._objection, self._refusal = on_reply, objection, refusal

    def arguments(self, *, again: bool = False) -> tuple[bytes | int, ...]:
        if not self._declared:
            return ()
        declares, self._declares = self._declares and not again, self._declares and again
        return (*self._declared, 1 if declares else 0)

    def not_run(self, args: Sequence[Any]) -> None:
        self._declares = args[-1] == 1

    def on_reply(self, args: Sequence[Any], reply: Sequence[Any] | int) -> None:
        self._on_reply(args, reply)

    def objection(self, limit: int) -> RuntimeError | None:
        return self._objection(limit)

    def refusal(self, amount: int) -> LockError | None:
        return self._refusal(amount)
