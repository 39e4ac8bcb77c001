"""Listens to everything that is said while a test runs, and says where a secret is in it."""

import asyncio
import gc
import logging
import re
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

import pytest

from aiolocks._core.tokens import LENGTH, SESSION
from aiolocks.events import on_event

PASSWORD = "s3same/öpen me"
"""Has to be escaped in a URL; and what it begins with tells too much already."""

_TOKEN = re.compile(rb"(?<![\w-])[\w-]{%d}(?![\w-])" % LENGTH)

_TELLING = 12
"""Letters from which on a part of what is secret in a token tells too much of it."""

_LETTERS = re.compile(rf"[\w-]{{{_TELLING},}}")


@final
class Ear(logging.Handler):
    """Hears log records of every level, warnings, exceptions, and what asyncio and Python say of themselves."""

    def __init__(self) -> None:
        super().__init__(1)
        self.heard: list[tuple[str, str]] = []
        self._searched = 0
        self.secrets = {PASSWORD.partition("/")[0]}
        self.tokens: set[str] = set()

    def note_request(self, request: bytes) -> None:
        """Learn the tokens that a request has in it: for `FaultProxy.on_request`."""
        if b"EVAL" in request:
            self.tokens |= {token.decode() for token in _TOKEN.findall(request)}

    def say(self, where: str, *things: object) -> None:
        """Hear both texts of each thing."""
        self.heard += [(where, text) for thing in things for text in (str(thing), repr(thing))]

    def emit(self, record: logging.LogRecord) -> None:
        where = f"log record of {record.name}, {record.levelname}"
        self.say(where, record.getMessage(), record.msg, record.args, record.stack_info)
        if record.exc_info and record.exc_info[1]:
            self.listen_to(record.exc_info[1])

    def listen_to(self, error: BaseException) -> None:
        """Hear an exception with all that hangs on it."""
        todo, seen = [error], set[int]()
        while todo:
            one = todo.pop()
            if id(one) not in seen:
                seen.add(id(one))
                self.say(f"{type(one).__name__}", one, one.args, vars(one))
                self.heard.append((f"traceback of {type(one).__name__}", "".join(traceback.format_exception(one))))
                todo += [next_ for next_ in (one.__cause__, one.__context__) if next_ is not None]
                todo += one.exceptions if isinstance(one, BaseExceptionGroup) else ()

    @contextmanager
    def raises(self, *expected: type[BaseException], match: str | None = None) -> Iterator[None]:
        """Expect the block to raise, and listen to what it raises."""
        with pytest.raises(expected, match=match) as caught:
            yield
        self.listen_to(caught.value)

    @contextmanager
    def warnings(self) -> Iterator[None]:
        """Listen to warnings, which the test's run would make errors of."""
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = lambda message, *_, **__: self.say("warning", message)
            yield

    def look_around(self) -> None:
        """Hear how everything of ours that is alive shows itself."""
        for thing in gc.get_objects():
            module = str(type(thing).__module__)
            if module.startswith("aiolocks") and not module.startswith("aiolocks.testing"):  # the proxy's own notes
                self.say(f"{type(thing).__name__} object", thing)
        for task in asyncio.all_tasks():
            self.say("task", task)

    def hears(self, words: str) -> bool:
        """Whether *words* have been said since this was last asked."""
        begin, self._searched = self._searched, len(self.heard)
        return any(words in text for _, text in self.heard[begin : self._searched])

    def leaks(self) -> list[str]:
        """Return each text that tells a secret, whole or in good part."""
        parts = {part for token in self.tokens for part in (token[SESSION:][:_TELLING], token[-_TELLING:])}

        def tells(text: str) -> bool:
            return any(secret in text for secret in self.secrets) or any(
                letters[at : at + _TELLING] in parts
                for letters in _LETTERS.findall(text)
                for at in range(len(letters) - _TELLING + 1)
            )

        return [f"{where}: {text}" for where, text in dict.fromkeys(self.heard) if tells(text)]


@contextmanager
def listening() -> Iterator[Ear]:
    """Listen in a running asyncio loop, which is made as talkative as can be; fail at the end if a secret was told."""
    ear, loop = Ear(), asyncio.get_running_loop()
    loggers = [logging.getLogger(name) for name in ("", "aiolocks", "redis", "asyncio")]
    before = [(logger.level, logger.propagate) for logger in loggers]
    unraisable = sys.unraisablehook

    def unhandled(_: Any, context: dict[str, Any]) -> None:
        ear.say("asyncio", context)
        if isinstance(error := context.get("exception"), BaseException):
            ear.listen_to(error)

    sys.unraisablehook = lambda said: ear.say("unraisable", said, said.exc_value, said.err_msg)
    loop.set_exception_handler(unhandled)
    loop.set_debug(True)
    loop.slow_callback_duration = 0.0  # every callback and task is a line in the log
    for logger in loggers:
        logger.addHandler(ear)
        logger.setLevel(1)
        logger.propagate = False
    unsubscribe = on_event(lambda event: ear.say("event", event))
    try:
        yield ear
    finally:
        unsubscribe()
        sys.unraisablehook = unraisable
        loop.set_exception_handler(None)
        loop.set_debug(False)
        for logger, (level, propagate) in zip(loggers, before, strict=True):
            logger.removeHandler(ear)
            logger.setLevel(level)
            logger.propagate = propagate
    assert ear.tokens, "no token was used"
    assert not (leaks := ear.leaks()), "\n".join(leaks[:5])
