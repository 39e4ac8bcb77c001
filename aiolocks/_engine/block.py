"""The body of a block: stopped when its lease is lost, and the lease released at its end, whichever way it ends.

Which block an `async with` leaves, where many tasks share one object, is known by what the block calls at its end.
`async with` and exit stacks look up `__aexit__`, then call `__aenter__`, and keep what they looked up until the end.
So each look-up gives a fresh handle, and `__aenter__` gives its block to the newest one that the task has just looked
up. Nothing is searched, and a block is its own wherever it is left: in another task, by another stack, in any order.

Where a class of the caller's own calls both methods by itself, no look-up precedes `__aenter__`. The entered object
keeps such a block, and the only one of the task is left, or the only one there is.
"""

import asyncio
import logging
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE
from types import CoroutineType, FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, final

from .cancellation import BodyTask
from .lease_state import Entry, LeaseState
from .release import GRACE, Release
from .validity import GONE_FROM_SERVER

T = TypeVar("T")

log = logging.getLogger("aiolocks")

_STACK_LEAVES = AsyncExitStack.__aexit__.__code__


@final
class Block:
    """The body of a block with a lease, which ends with it.

    Only what can leave the block holds this: a block that cannot be left any more keeps no lease.
    """

    __slots__ = ("_inside", "_lease", "_state")

    def __init__(self, lease: object, state: LeaseState, task: "asyncio.Task[Any] | None", before: int) -> None:
        """Begin it, in *task*; *before* is how often that had been asked to cancel when it began to enter."""
        context = state.context
        self._lease: object = lease  # or it would be collected, and let lapse, in a block that does not name it
        self._state = state
        inside = BodyTask(
            # A lease that changes its mode leaves as what it entered as.
            task, before, context.loop, context.holdings, state.grantor, state.base, state.request.permits
        )  # fmt: skip
        self._inside: BodyTask | None = inside
        state.enter(inside)

    @property
    def task(self) -> "asyncio.Task[Any] | None":
        """Which task works in it; None once that has ended."""
        return None if self._inside is None else self._inside.task

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._state.context.loop

    async def leave(self, exc: BaseException | None, frame: FrameType) -> None:
        """End the block that *frame* leaves, with the exception that leaves its body, if any.

        The cancellation that a loss has sent becomes its LeaseLostError.

        Raises:
            LeaseLostError: The lease was lost, and the body did not raise an exception of its own.
        """
        state, inside, leaving = self._state, self._inside, exc
        if inside is None:
            raise RuntimeError("this block was left already")
        context = state.context
        now = context.clock()
        waits = not isinstance(exc, GeneratorExit) or may_wait(frame, exc)
        state.leave()
        inside.leave()
        valid = state.end(now)
        if state.task is not None:
            state.unlist()
        self._lease = self._inside = None  # equivalent: line dropped, the block has given the body up by then
        if not state.options.wait_release and valid and context.undos.take_more():
            state.release_on_server(now, None, self._settled)
            return
        release = state.release_on_server(now, GRACE if valid and waits and exc is None else None)
        if not valid:
            state.unlist()  # again: `end` may have noted a loss, which the block itself reports
            context.schedule_idle_close()
            if not context.forked:  # in a fork no loop runs that it could be left in
                leaving = await inside.sort_out(exc, may_wait=waits)
            if state.lost:
                self._report(state.reason, leaving)
        elif release is not None and waits:
            # equivalent: line dropped, for speed
            del inside  # the garbage collector goes through all that a waiting frame refers to
            until = state.deadline if state.deadline < now + GRACE else now + GRACE
            try:
                if release.waited is not None:
                    await release.waited
                else:
                    await release.settle(until)
            except asyncio.CancelledError:
                await release.settle(until)
                raise
            if not release.ended:
                self._judge(release, leaving)
        if leaving is not None and leaving is not exc:
            try:
                raise leaving
            finally:
                del leaving  # or its traceback and this frame keep each other, and all that the caller has, until a gc

    def _settled(self, release: Release) -> None:
        """Say what is wrong with the release that was not waited for."""
        state = self._state
        if release.trouble is not None:
            self._warn_unconfirmed()
        elif release.ended is False:
            log.warning("%s; its block had ended without waiting to hear of it", state.error(GONE_FROM_SERVER))

    def _warn_unconfirmed(self) -> None:
        state = self._state
        log.warning(
            "%s %r: the release could not be confirmed; the lease ends with its TTL of %g s at the latest",
            state.grantor.kind, state.grantor.name, state.request.ttl,
        )  # fmt: skip

    def _judge(self, release: Release, leaving: BaseException | None) -> None:
        """Say what is wrong with the release of a lease that was valid until then, if anything is."""
        if not release.done or release.trouble is not None:
            self._warn_unconfirmed()
        elif release.ended is False:
            log.warning("%s", self._state.error(GONE_FROM_SERVER))
            self._report(GONE_FROM_SERVER, leaving)

    def _report(self, reason: str, leaving: BaseException | None) -> None:
        if leaving is None:
            if self._state.options.on_lost == "cancel":
                raise self._state.error(reason) from None
        elif not isinstance(leaving, (asyncio.CancelledError, GeneratorExit)):
            leaving.add_note(str(self._state.error(reason)))


def may_wait(frame: FrameType, leaving: GeneratorExit) -> bool:
    """Whether code in *frame* may await while *leaving* passes: not in a coroutine that is being destroyed.

    A generator that is closed may; but in one that a destroyed coroutine leaves, *leaving* has come through that.
    """
    if frame.f_code is _STACK_LEAVES and frame.f_back is not None:
        frame = frame.f_back  # which leaves the stack
    if not frame.f_code.co_flags & CO_ASYNC_GENERATOR:
        return False
    return not any(passed.f_code.co_flags & CO_COROUTINE for passed, _ in traceback.walk_tb(leaving.__traceback__))


def calling_frame() -> FrameType:
    """Return the frame of the `async with` whose method calls this; see `may_wait`."""
    return sys._getframe(2)  # inspect's way round it costs ten times as much


def as_coroutine(coroutine: Coroutine[Any, Any, T]) -> "CoroutineType[Any, Any, T]":
    """Return *coroutine*, of which only `async def` says that it is a native one, as exit stacks demand."""
    return cast("CoroutineType[Any, Any, T]", coroutine)


Task = asyncio.Task[Any]


_newest = threading.local()
"""Its `handle` is a weak reference to the one that was looked up last in this thread."""


@final
class Handle:
    """What leaves a block: `__aexit__` as it was looked up once, on an object or (by exit stacks) on its class."""

    __slots__ = ("__weakref__", "_body", "_given", "_opened", "_owner", "_type", "before", "task")

    def __init__(self, owner: "Enterable[Any] | None", kind: type) -> None:
        self._owner = owner
        self._type = kind
        self._body: Block | None = None
        self._given = self._opened = False
        self.before = 0
        self.task: Task | None = None
        try:
            self.task = asyncio.current_task()
        except RuntimeError:  # no loop runs: a debugger or `hasattr` looks it up
            pass

    def open(self, lease: object, state: LeaseState) -> None:
        """Leave this block from now on."""
        task, self.task = self.task, None
        self._opened = True
        self._body = Block(lease, state, task, self.before)

    def claim(self, owner: "Enterable[Any]") -> bool:
        """Be for the block that *owner* begins, if the running task has looked this up for it, and it has none."""
        if self._given or self.task is not current_task():
            return False
        if self._owner is not owner and (self._owner is not None or self._type is not type(owner)):
            return False
        self._given = True
        self._owner = owner
        # equivalent: constant, without a task nothing is cancelled
        self.before = 0 if self.task is None else self.task.cancelling()
        return True

    def __call__(self, *args: Any) -> "CoroutineType[Any, Any, None]":
        """Leave the block: like a bound method, or, looked up on the class, with the object in front."""
        *owner, _, exc, _ = args
        frame = sys._getframe(1)
        body, self._body = self._body, None
        if body is None:
            if self._opened:
                raise RuntimeError(f"{self._owner!r}: this block was left already")
            body = cast("Enterable[Any]", owner[0] if owner else self._owner)._take_kept()
            frame = frame.f_back or frame  # that of the `async with` around the class which calls this
        if isinstance(exc, GeneratorExit) and _running_loop() is not body.loop:
            return as_coroutine(_nothing())  # destroyed after its loop: nothing can be sent any more
        return as_coroutine(body.leave(exc, frame))


class ExitHandles:
    """The `__aexit__` of what many tasks may enter at once."""

    def __get__(self, owner: "Enterable[Any] | None", kind: type) -> Handle:
        handle = Handle(owner, kind)
        _newest.handle = weakref.ref(handle)
        return handle


@final
class _Kept:
    """The entry of a block that no handle has. The entered object keeps the block."""

    __slots__ = ("_owner", "before", "task")

    def __init__(self, owner: "Enterable[Any]") -> None:
        self._owner = owner
        self.task = task = current_task()
        # equivalent: constant, without a task nothing is cancelled
        self.before = 0 if task is None else task.cancelling()

    def open(self, lease: object, state: LeaseState) -> None:
        self._owner._keep(Block(lease, state, self.task, self.before))


class Enterable(Generic[T]):
    """What many tasks may enter at once; each block gives a T."""

    _kept: tuple[Block, ...] = ()
    """Open blocks that no handle has."""

    def __aenter__(self) -> "CoroutineType[Any, Any, T]":
        """Wait `acquire_timeout` for a lease, which the block holds; see `hold`."""
        return cast("CoroutineType[Any, Any, T]", self._enter(_entry(self)))

    if TYPE_CHECKING:

        async def __aexit__(
            self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
        ) -> None: ...

    else:
        __aexit__ = ExitHandles()

    def _enter(self, block: Entry) -> Coroutine[Any, Any, T]:
        """Do what it takes to begin *block*, and open it."""
        raise NotImplementedError

    def _keep(self, block: Block) -> None:
        self._kept += (block,)

    def _take_kept(self) -> Block:
        """Return the block that is left without a handle: the task's only one, or the only one there is (W20).

        Raises:
            RuntimeError: There is none, or there are several.
        """
        loop, task = _running_loop(), current_task()
        here = [block for block in self._kept if block.loop is loop]
        own = [block for block in here if task is not None and block.task is task]
        found = own if len(own) == 1 else here
        if len(found) == 1:
            self._kept = tuple(block for block in self._kept if block is not found[0])
            return found[0]
        if not found:
            raise RuntimeError(f"{self!r} is not held by a block that could be left here")
        raise RuntimeError(
            f"{self!r}: {len(here)} blocks of it are open, and __aenter__ and __aexit__ were called by other code than "
            "an `async with`, so it is not known which of them is left; none is. Let that code keep what hold() "
            "returns, one for each block, and enter and leave that"
        )


def _entry(owner: Enterable[Any]) -> Entry:
    """Return what gets the block that `__aenter__`, which calls this, is about to begin."""
    reference: Callable[[], Handle | None] | None = getattr(_newest, "handle", None)
    handle = None if reference is None else reference()
    return handle if handle is not None and handle.claim(owner) else _Kept(owner)


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
