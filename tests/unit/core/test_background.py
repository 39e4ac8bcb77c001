"""The end of a loop: what can be released is, for a second at most, and nothing is printed."""

import asyncio
import warnings
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

import pytest

from aiolocks._core.background import at_loop_end, background, finish, last_releases
from aiolocks._engine.context import Context
from aiolocks._engine.lease import Lease
from aiolocks._engine.request import Request
from aiolocks._grantors.session import Session
from aiolocks.testing import JumpingLoop
from tests.support.answering import SILENCE, Answering, Asked, Later, ended
from tests.support.virtual import clock

NewLoop = Callable[[], asyncio.AbstractEventLoop]

no, yes = (lambda: False), (lambda: True)


class Closing:
    def __init__(self) -> None:
        self.times = 0

    async def close(self) -> None:
        self.times += 1


@pytest.mark.parametrize("at_once", [False, True])
def test_a_callback_of_the_loops_end_is_called_once(new_loop: NewLoop, at_once: bool) -> None:
    closing = Closing()

    async def main() -> AsyncGenerator[None, None]:
        kept = at_loop_end(closing.close)
        await asyncio.sleep(0)
        if at_once:
            finish(kept)
        assert closing.times == at_once
        return kept

    with asyncio.Runner(loop_factory=new_loop) as runner:
        kept = runner.run(main())
    assert closing.times == 1
    finish(kept)
    assert closing.times == 1


def test_a_loop_whose_generators_were_closed_early_takes_another_without_a_warning(new_loop: NewLoop) -> None:
    """A program may do that and go on."""
    closing = Closing()

    async def main() -> None:
        loop = asyncio.get_running_loop()

        async def last() -> None:
            await last_releases(no, no)
            await closing.close()

        kept = [at_loop_end(last)]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            await loop.shutdown_asyncgens()
            assert closing.times == 1
            kept.append(at_loop_end(closing.close))
            with pytest.raises(ResourceWarning):
                warnings.warn("others are heard", ResourceWarning, stacklevel=1)
        await loop.shutdown_asyncgens()
        assert closing.times == 2

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())


async def test_the_end_of_a_loop_waits_for_answers_and_for_others_that_may_release_but_only_a_second() -> None:
    async def waits(holding: Callable[[], bool], unanswered: Callable[[], bool]) -> object:
        begun = clock()
        await last_releases(holding, unanswered)
        return pytest.approx(clock() - begun, abs=0.01)

    assert await waits(yes, no) == 0, "no task is left that could release it"
    others = asyncio.ensure_future(asyncio.sleep(3))
    assert (await waits(no, no), await waits(no, lambda: clock() < 0.5)) == (0, 0.5)
    assert (await waits(no, yes), await waits(lambda: clock() < 1.8, no)) == (1.0, 0.3)
    assert (await waits(yes, no), await waits(yes, no)) == (1.0, 0.2)
    assert others.done()


def test_the_end_of_a_loop_waits_for_no_task_of_ours_or_of_its_own() -> None:
    async def shutdown_asyncgens() -> None:
        ours = background(asyncio.sleep(5))
        await asyncio.gather(last_releases(yes, no))
        assert clock() == 0
        ours.cancel()

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        runner.run(shutdown_asyncgens())


async def test_a_task_that_waits_for_the_answer_is_out_of_its_block_by_the_end_of_the_loop() -> None:
    answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    out = False

    async def inner() -> None:
        await answer

    async def block() -> None:
        nonlocal out
        await asyncio.ensure_future(inner())
        out = True

    others = asyncio.ensure_future(block())
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_later(0.1, answer.set_result, None)
    await last_releases(no, lambda: not answer.done())
    assert out
    await others


def serving(**others: object) -> Answering:
    def answer(asked: Asked) -> object:
        return others.get(asked.what, 7 if asked.what == "lock_grant" else 1)

    return Answering(answer)


def ends_at(main: Callable[[], Coroutine[Any, Any, object]]) -> float:
    """Run *main* as a program, in virtual time; return when its loop has ended."""
    loops: list[JumpingLoop] = []

    def new_loop() -> JumpingLoop:
        loops.append(JumpingLoop())
        return loops[-1]

    with pytest.MonkeyPatch.context() as patch, asyncio.Runner(loop_factory=new_loop) as runner:
        patch.setattr(Context, "clock", staticmethod(lambda: loops[0].time()))
        kept = runner.run(main())
        runner.close()
        del kept
    return loops[0].time()


async def in_a_block(server: Answering, cleanup: float = 0.0) -> AsyncGenerator[None, None]:
    async with server.hold():
        try:
            yield
        finally:
            await asyncio.sleep(cleanup)


@pytest.mark.parametrize(
    ("cleanup", "reply", "released_at", "ends"),
    [(0.0, Later(0.2, 1), 0.0, 0.2), (0.3, 1, 0.3, 0.3), (0.0, SILENCE, 0.0, 1.0)],
    ids=["in a block", "with cleanup to do first", "with a silent server"],
)
def test_a_generator_that_stands_in_a_block_at_the_end_releases_what_it_holds_within_a_second(
    cleanup: float, reply: object, released_at: float, ends: float
) -> None:
    server = serving(lock_release=reply)

    async def main() -> object:
        generator = in_a_block(server, cleanup)
        await anext(generator)
        return generator

    tolerance = 0.1 if reply is SILENCE else 0.0
    assert ends - tolerance <= ends_at(main) < ends + max(tolerance, 0.01)
    assert server.times("lock_release")[0] == released_at
    assert len(server.times("lock_release")) == 1 or reply is SILENCE


def test_the_end_does_not_wait_for_an_undo_that_has_been_silent_for_longer() -> None:
    server = serving(lock_release=SILENCE)

    async def main() -> None:
        lease = await server.asking().acquire(Lease, by_hand=True)
        releasing = asyncio.ensure_future(lease.release())
        await asyncio.sleep(1.5)
        releasing.cancel()

    assert ends_at(main) == 1.5


def test_what_a_program_still_holds_when_it_ends_is_left_to_its_ttl() -> None:
    server = serving()

    async def main() -> object:
        return await server.asking().acquire(Lease, by_hand=True)

    assert ends_at(main) == 0
    assert not server.times("lock_release")


async def test_a_session_goes_on_after_an_early_end_of_generators_while_it_is_in_use_or_has_a_waiter() -> None:
    server = serving()
    loop = asyncio.get_running_loop()
    session = Session.of(server)
    async with server.hold() as lease:
        await loop.shutdown_asyncgens()
        assert not ended(session)
        assert lease.held
        server.answer = serving(
            lock_grant=[b"queued", 7, 20_000, 0, 1, 0], lock_recheck=[1, 20_000, 0, 0, [7], 0]
        ).answer
        request = Request(30.0, 1, wait=True)
        _ = server.grantor().grant(request)
        await asyncio.sleep(0.1)
    await loop.shutdown_asyncgens()
    assert not ended(session)
    assert not request.turn.done()
    server.grantor().queue.leave(request)
    before = clock()
    await loop.shutdown_asyncgens()
    assert ended(session)
    assert clock() == before
