"""Which block an `async with` leaves, where many tasks share one object: known by what the block calls at its end.

`async with` and exit stacks look up `__aexit__`, then call `__aenter__`, and keep what they looked up until the end.
So each look-up gives a fresh handle, and `__aenter__` gives its block to the newest one that the task has just looked
up. Nothing is searched, and a block is its own wherever it is left: in another task, by another stack, in any order.

Where a class of the caller's own calls both methods by itself, no look-up precedes `__aenter__`. Such blocks are kept
with the entered object, by the frame of the `async with` around that class, if that can be told.
"""

import asyncio
import sys
import threading
import weakref
from collections.abc import Callable
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE
from types import CoroutineType, FrameType
from typing import TYPE_CHECKING, Any, Protocol, cast, final

from ._lease import as_coroutine

if TYPE_CHECKING:
    from ._body import Body

Task = asyncio.Task[Any]


class Enterable(Protocol):
    """What can be entered by many tasks at once."""

    _kept: "dict[FrameType | None, list[Body]] | None"
    """Blocks that no handle has, by the frame that leaves them, if it can be told; None: there were none yet."""


class Entry(Protocol):
    """What waits for a block to begin."""

    task: Task | None
    """Who enters it."""
    before: int
    """How often that task had been asked to cancel."""

    def open(self, body: "Body") -> None:
        """Note that the body has begun."""
        ...


_newest = threading.local()
"""Its `handle` is a weak reference to the one that was looked up last in this thread."""


@final
class Handle:
    """What leaves a block: `__aexit__` as it was looked up once, on an object or (by exit stacks) on its class."""

    __slots__ = ("__weakref__", "_body", "_given", "_owner", "_type", "before", "task")

    def __init__(self, owner: Enterable | None, kind: type) -> None:
        self._owner = owner
        self._type = kind
        self._body: Body | None = None
        self._given = False
        self.before = 0
        self.task: Task | None = None
        try:
            self.task = asyncio.current_task()
        except RuntimeError:  # no loop runs: somebody has a look
            pass

    def open(self, body: "Body") -> None:
        """Leave this block from now on."""
        self.task = None
        self._body = body

    def claim(self, owner: Enterable) -> bool:
        """Be for the block that *owner* begins, if the running task has looked this up for it, and it has none."""
        if self._given or self.task is not current_task():
            return False
        if self._owner is not owner and (self._owner is not None or self._type is not type(owner)):
            return False
        self._given = True
        self._owner = owner
        self.before = 0 if self.task is None else self.task.cancelling()
        return True

    def __call__(self, *args: Any) -> "CoroutineType[Any, Any, None]":
        """Leave the block: like a bound method, or, looked up on the class, with the object in front."""
        *owner, _, exc, _ = args
        frame = sys._getframe(1)
        body, self._body = self._body, None
        if body is None:
            if self._given:
                raise RuntimeError(f"{self._owner!r}: this block was left already")
            body, frame = _kept(cast("Enterable", owner[0] if owner else self._owner), frame)
        if isinstance(exc, GeneratorExit) and _running_loop() is not body.loop:
            return as_coroutine(_nothing())  # destroyed after its loop: nothing can be sent any more
        return as_coroutine(body.leave(exc, frame))


class ExitHandles:
    """The `__aexit__` of what many tasks may enter at once."""

    def __get__(self, owner: Enterable | None, kind: type) -> Handle:
        handle = Handle(owner, kind)
        _newest.handle = weakref.ref(handle)
        return handle


@final
class _Kept:
    """The entry of a block that no handle has."""

    __slots__ = ("_frame", "_owner", "before", "task")

    def __init__(self, owner: Enterable, frame: FrameType | None) -> None:
        self._owner = owner
        self._frame = frame
        self.task = task = current_task()
        self.before = 0 if task is None else task.cancelling()

    def open(self, body: "Body") -> None:
        if self._owner._kept is None:
            self._owner._kept = {}
        self._owner._kept.setdefault(self._frame, []).append(body)


def enter(owner: Enterable) -> Entry:
    """Return what gets the block that `__aenter__`, which calls this, is about to begin."""
    reference: Callable[[], Handle | None] | None = getattr(_newest, "handle", None)
    handle = None if reference is None else reference()
    if handle is not None and handle.claim(owner):
        return handle
    return _Kept(owner, _around(sys._getframe(2)))


def _around(caller: FrameType) -> FrameType | None:
    """Return the frame that awaits the method *caller*, if it is one that can hold a block."""
    above = caller.f_back
    return above if above is not None and above.f_code.co_flags & (CO_COROUTINE | CO_ASYNC_GENERATOR) else None


def _kept(owner: Enterable, caller: FrameType) -> "tuple[Body, FrameType]":
    """Take the block that *caller* leaves by itself: return its body, and the frame that it is in.

    Raises:
        RuntimeError: There is none, or it cannot be told which one.
    """
    around, kept = _around(caller), owner._kept or {}
    bodies = kept.get(around) if around is not None else None
    if bodies:
        return _taken(kept, around, bodies[-1]), cast("FrameType", around)
    loop, task = _running_loop(), current_task()
    all_here = [(key, body) for key, bodies in kept.items() for body in bodies if body.loop is loop]
    of_task = [(key, body) for key, body in all_here if task is not None and body.task is task]
    for found in (all_here, of_task):
        if len(found) == 1:
            key, body = found[0]
            return _taken(kept, key, body), key or caller
    if not all_here:
        raise RuntimeError(f"{owner!r} is not held by a block that could be left here")
    raise RuntimeError(
        f"{owner!r}: {len(all_here)} blocks of it are open, and it cannot be told which of them is left here, as "
        "__aenter__ and __aexit__ were called by other code than the `async with`; none is left. Have that code keep "
        "what hold() returns, one for each block, and enter and leave that"
    )


def _taken(kept: "dict[FrameType | None, list[Body]]", key: FrameType | None, body: "Body") -> "Body":
    kept[key].remove(body)
    if not kept[key]:
        del kept[key]
    return body


def current_task() -> Task | None:
    """Return the running task, also where no loop runs."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


async def _nothing() -> None:
    pass
