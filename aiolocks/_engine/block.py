"""Blocks: which block is left, and how its lease is released then.

W20: many tasks can enter one object at the same time, so each block must know its own end. `async with` and exit stacks
look up `__aexit__`, then call `__aenter__`, and keep the result of the look-up until the end. So each look-up gives a
fresh handle, and `__aenter__` gives its block to the newest handle of the same task. A block can then be left in
another task, by another stack, in any order.

If a class of the caller's calls both methods by itself, no look-up precedes `__aenter__`. The entered object keeps such
a block. `__aexit__` then leaves the only one of the task, or the only one there is.
"""

import asyncio
import logging
import sys
import threading
import traceback
import weakref
from contextlib import AsyncExitStack
from functools import partial
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE
from types import CoroutineType, FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, final

from .._core.timing import margin
from .._core.untyped import Coro, Task
from .context import Grantor
from .holdings import BodyTask
from .lease_state import GONE_FROM_SERVER, LeaseState, loss_error
from .release import GRACE, Release

T = TypeVar("T")

log = logging.getLogger("aiolocks")

_MAX_UNANSWERED = 4096
"""Maximum number of unanswered releases in one session. Beyond it, leaving a block waits even with
`wait_release=False`. About 1 MB of commands that Redis has not read."""

_NOT_WAITED = "; its block did not wait for the release"

_STACK_LEAVES = AsyncExitStack.__aexit__.__code__


class Block:
    """A block, whose lease ends with it.

    Its state is `_opened`, and `_body` until it is left. Invariant: only its handle, or the entered object, keeps it,
    so a block that cannot be left any more keeps no lease.
    """

    __slots__ = ("_body", "_lease", "_opened", "_state", "before", "entering")

    _lease: object
    """The `Lease`, until the block is left. The block keeps it, as the caller of `async with lock:` does not."""
    _state: LeaseState
    """Deleted before the block waits for its release, so that the garbage collector need not visit it meanwhile."""

    def __init__(self, task: Task | None) -> None:
        """Create a block that *task* begins to enter."""
        self.entering = task
        """The task that enters it, until it is open."""
        # equivalent: constant, without a task nothing is cancelled
        self.before = 0 if task is None else task.cancelling()
        """The `cancelling()` of the task when it began to enter (W19)."""
        self._opened = False
        self._body: BodyTask | None = None

    def open(self, lease: object, state: LeaseState) -> None:
        self._opened = True
        self._lease = lease
        self._state = state
        self._body = body = state.body or state.enter(self)  # if it was acquired for this block, it knows the task
        self.entering = None
        body.enter()

    @property
    def task(self) -> Task | None:
        return None if self._body is None else self._body.task

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._state.context.loop

    async def leave(self, exc: BaseException | None, frame: FrameType | None) -> None:
        """End the block. *exc* is the exception that leaves its body, if any; see `frame_left` for *frame*."""
        body, leaving = self._body, exc
        if body is None:
            raise RuntimeError("this block was left already")
        state = self._state
        context = state.context
        now = context.clock()
        waits = not isinstance(exc, GeneratorExit) or frame is None or may_wait(frame, exc)
        body.leave()
        self._body = None
        valid = state.leave(now)  # P11: renewal has stopped before the release is sent
        # equivalent: line dropped, for speed: the garbage collector visits all that a waiting coroutine refers to
        self._lease = None
        if state.task is not None:
            state.unlist()
        if not state.options.wait_release and valid and len(context.undos.under_way) < _MAX_UNANSWERED:
            state.release_on_server(now, None, partial(_check, state.fence, state.validity.deadline, note=_NOT_WAITED))
            return
        release = state.release_on_server(now, GRACE if valid and waits and exc is None else None)
        if not valid:
            state.unlist()  # `end` may just have recorded a `Loss`: the block reports that itself
            context.schedule_idle_close()
            if not context.forked:  # the loop of a fork does not run
                leaving = await body.sort_out(exc, may_wait=waits)
            if state.validity.lost:
                _report(state.grantor, state.fence, state.validity.reason, state.options.on_lost, leaving)
        elif release is not None and waits:
            fence, on_lost, deadline = state.fence, state.options.on_lost, state.validity.deadline
            del self._state, state, body  # equivalent: line dropped, for speed, as above
            try:
                if release.waited is not None:
                    await release.waited
                else:
                    await release.settle(min(deadline, now + GRACE))
            except asyncio.CancelledError:
                await release.settle(min(deadline, now + GRACE))
                raise
            if not release.ended:
                _check(fence, deadline, release)
            if release.ended is False:
                _report(release.grantor, fence, GONE_FROM_SERVER, on_lost, leaving)
        if leaving is not None and leaving is not exc:
            try:
                raise leaving
            finally:
                del leaving  # or its traceback and this frame keep each other, and the caller's, until a collection


def _check(fence: int, deadline: float, release: Release, note: str = "") -> None:
    """Log any trouble with the release of a lease that was valid until then; *note* ends the text."""
    grantor = release.grantor
    if not release.done or release.trouble is not None:
        left = deadline - grantor.context.clock()
        left += margin(max(release.request.terms.ttl, left))  # `renew(ttl)` can have asked for longer than the TTL
        log.warning(
            "%s %r: the release could not be confirmed; if it failed, the lease ends in about %g s",
            grantor.kind, grantor.name, round(max(left, 0.0), 1),
        )  # fmt: skip
    elif release.ended is False:
        log.warning("%s%s", loss_error(grantor.kind, grantor.name, fence, GONE_FROM_SERVER), note)


def _report(grantor: Grantor, fence: int, reason: str, on_lost: str, leaving: BaseException | None) -> None:
    """Raise the loss, or add it as a note to the body's own exception (P12)."""
    if leaving is None:
        if on_lost == "cancel":
            raise loss_error(grantor.kind, grantor.name, fence, reason) from None
    elif not isinstance(leaving, (asyncio.CancelledError, GeneratorExit)):
        leaving.add_note(str(loss_error(grantor.kind, grantor.name, fence, reason)))


def may_wait(frame: FrameType, leaving: GeneratorExit) -> bool:
    """Whether code in *frame* can await while *leaving* passes.

    It can in an asynchronous generator that is closed. It cannot in a coroutine that is destroyed, nor in a generator
    inside one: *leaving* has then passed through the coroutine.
    """
    if frame.f_code is _STACK_LEAVES and frame.f_back is not None:
        frame = frame.f_back  # the frame that leaves the stack
    if not frame.f_code.co_flags & CO_ASYNC_GENERATOR:
        return False
    return not any(passed.f_code.co_flags & CO_COROUTINE for passed, _ in traceback.walk_tb(leaving.__traceback__))


def frame_left(exc: BaseException | None) -> FrameType | None:
    """Return the frame of the `async with` whose method calls this, if *exc* is one for which `may_wait` asks."""
    return sys._getframe(2) if isinstance(exc, GeneratorExit) else None  # `inspect` takes ten times as long


def as_coroutine(coroutine: Coro[T]) -> "CoroutineType[Any, Any, T]":
    """Return *coroutine*. Exit stacks demand the type of a native coroutine, which `Coroutine` does not show."""
    return cast("CoroutineType[Any, Any, T]", coroutine)


_newest = threading.local()
"""Its `handle` is a weak reference to the last handle that was looked up in this thread."""


@final
class ExitHandle(Block):
    """The block of one look-up of `__aexit__`: on the object, or on its class, as exit stacks do.

    Its state is `_claimed`, and then that of the block. Invariant: it is claimed once at most.
    """

    __slots__ = ("__weakref__", "_claimed", "_owner")

    def __init__(self, owner: "SharedContextManager[Any] | type[SharedContextManager[Any]]") -> None:
        self._owner = owner
        self._claimed = self._opened = False
        self._body = None
        try:
            self.entering = asyncio.current_task()  # as `current_task` does, for speed
        except RuntimeError:
            self.entering = None

    def claim(self, owner: "SharedContextManager[Any]") -> bool:
        """Claim this handle for the block that *owner* opens. Return False if it is not for that block of this task."""
        task = self.entering
        if self._claimed or task is not current_task():
            return False
        if self._owner is not owner:
            if self._owner is not type(owner):
                return False
            self._owner = owner
        self._claimed = True
        # equivalent: constant, without a task nothing is cancelled
        self.before = 0 if task is None else task.cancelling()
        return True

    def __call__(self, *args: Any) -> Coro[None]:
        """Leave the block. A handle that was looked up on the class gets the object as its first argument."""
        exc: BaseException | None = args[-2]
        if self._body is not None:
            if isinstance(exc, GeneratorExit):
                return left_by(self, exc, sys._getframe(1))
            return self.leave(exc, None)
        if self._opened:
            raise RuntimeError(f"{self._owner!r}: this block was left already")
        owner = args[0] if len(args) > 3 else self._owner
        frame = sys._getframe(1)
        # The caller is a class of its own: behind its frame is that of the `async with` around it.
        return left_by(cast("SharedContextManager[Any]", owner)._take_kept(), exc, frame.f_back or frame)


def left_by(block: Block, exc: BaseException | None, frame: FrameType | None) -> Coro[None]:
    """Leave *block*, unless it is destroyed after its loop. *frame* contains its `async with`; see `frame_left`."""
    if isinstance(exc, GeneratorExit) and _running_loop() is not block.loop:
        return _nothing()  # destroyed after its loop: nothing can be sent any more
    return block.leave(exc, frame)


@final
class KeptBlock(Block):
    """A block that was entered without a look-up of `__aexit__`. The entered object keeps it."""

    __slots__ = ("_owner",)

    def __init__(self, owner: "SharedContextManager[Any]") -> None:
        super().__init__(current_task())
        self._owner: SharedContextManager[Any] | None = owner

    def open(self, lease: object, state: LeaseState) -> None:
        super().open(lease, state)
        owner, self._owner = self._owner, None  # no reference cycle: a dropped object drops its lease
        if owner is not None:
            owner._keep(self)


class ExitHandles:
    """The descriptor `__aexit__`."""

    def __get__(self, owner: "SharedContextManager[Any] | None", kind: "type[SharedContextManager[Any]]") -> ExitHandle:
        handle = ExitHandle(kind if owner is None else owner)
        _newest.handle = weakref.ref(handle)
        return handle


class SharedContextManager(Generic[T]):
    """An object that many tasks can enter at the same time; each block gives a T."""

    _kept: "dict[int, list[Block]] | None" = None
    """Open blocks that no handle has, by the id of the task that entered: among many blocks, leaving is as fast."""

    if TYPE_CHECKING:

        async def __aenter__(self) -> T: ...
        async def __aexit__(
            self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
        ) -> None: ...

    else:

        def __aenter__(self):
            """Wait `acquire_timeout` for a lease, which the block holds; see `hold`."""
            reference = getattr(_newest, "handle", None)
            handle = None if reference is None else reference()
            return self._enter(handle if handle is not None and handle.claim(self) else KeptBlock(self))

        __aexit__ = ExitHandles()

    def _enter(self, block: Block) -> Coro[T]:
        """Acquire a lease, open *block* with it, and return it."""
        raise NotImplementedError

    def _keep(self, block: Block) -> None:
        """Keep a block that no handle has."""
        self._kept = self._kept or {}
        self._kept.setdefault(id(block.task), []).append(block)

    def _take_kept(self) -> Block:
        """Return the block that is left without a handle; raise if there is none, or if there are several."""
        # W20: the task's only one, or the only one there is.
        kept, task = self._kept or {}, current_task()
        found = [(id(task), block) for block in kept.get(id(task), ()) if task is not None and block.task is task]
        if len(found) != 1:
            loop = _running_loop()
            found = [(key, block) for key, blocks in kept.items() for block in blocks if block.loop is loop]
        if len(found) == 1:
            key, block = found[0]
            kept[key].remove(block)
            if not kept[key]:
                del kept[key]
            return block
        if not found:
            raise RuntimeError(f"{self!r} is not held by a block that could be left here")
        raise RuntimeError(
            f"{self!r}: {len(found)} blocks of it are open, and __aenter__ and __aexit__ were called by other code "
            "than an `async with`, so it is not known which of them is left; none is. Let that code keep what hold() "
            "returns, one for each block, and enter and leave that"
        )


def current_task() -> Task | None:
    """Return the running task; None if there is none, or no loop runs."""
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
