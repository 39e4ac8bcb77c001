"""W4 and W5: a grant is made on the waiter's own terms, and believed by whoever it is for, once."""

from aiolocks import Lock
from tests.scripts.calls import TTL
from tests.simulation.planting import after, instead, never, without
from tests.simulation.rules.scene import Scene
from tests.simulation.rules.table import LOCK, clause
from tests.simulation.server import encoded


def _notice(scene: Scene, token: bytes, fence: int, session: bytes) -> bytes:
    message = b"%b %d %d aiolocks:%b:{a}" % (token, fence, TTL, scene.kind.encode())
    return encoded([b"message", b"aiolocks:wake:" + session, message])


@clause(
    "W5",
    instead("W5-stale", "if turn.done():"),
)
def a_grant_older_than_the_answer_that_it_waits_is_ignored(scene: Scene) -> None:
    """W5: such as one that was read after SIGCONT, when the lease it tells of has lapsed."""
    owner, waiter = scene.program(), scene.program()
    holding = scene.take(owner, "a", 0.0, 3.0)
    visit = scene.take(waiter, "a", 0.1, 0.1)
    scene.until(1.0)
    [_, asked] = scene.seen("grant")
    [wire] = scene.wires(waiter, subscribed=True)
    fence = asked.reply[3]
    wire.reply(_notice(scene, asked.args["token"], fence, asked.args["session"]))
    scene.until(5.0)
    assert holding.ended is not None
    assert visit.began is not None
    assert visit.began > 3.0, "the owner has left its block, and its own answer may come later"


@clause(
    "W5",
    never("W5-stray"),
    kinds=LOCK,
)
def a_grant_that_nobody_here_awaits_is_passed_on_at_once(scene: Scene) -> None:
    """W5: rather than held by nobody until it lapses."""
    stray = b"5" * 32
    ghost = scene.stage.server.accept(None)
    scene.stage.server.execute(ghost, [b"SET", b"aiolocks:lock:{a}", stray + b" 5", b"PX", b"30000"])
    waiter = scene.program()
    visit = scene.take(waiter, "a", 0.1, 0.1)
    scene.until(1.0)
    [wire] = scene.wires(waiter, subscribed=True)
    wire.reply(_notice(scene, stray, 5, scene.seen("grant")[0].args["session"]))
    scene.until(2.0)
    assert visit.began is not None
    assert visit.began < 1.1


@clause(
    "W5",
    without("W5-awaited"),
)
def a_grant_that_overtakes_the_answer_to_its_request_is_awaited(scene: Scene) -> None:
    """W5: a token counts from before its first byte leaves."""
    owner, waiter = scene.program(), scene.program()
    scene.take(owner, "b", 0.0, 5.0)
    holding = scene.take(owner, "a", 0.0, lambda: bool(scene.seen("grant", since=1.1)))
    scene.take(waiter, "b", 0.1, 0.1)  # so that the session listens
    visit = scene.take(waiter, "a", 1.1, 0.1)
    scene.until(1.0)
    [wire] = scene.wires(waiter, subscribed=False)
    scene.world.at(1.1, lambda: wire._down.delay(0.5))
    scene.until(1.7)
    assert holding.ended is not None
    assert holding.ended < 1.2
    assert visit.began is not None
    assert len(scene.seen("grant", since=1.1)) == 1


@clause(
    "W5",
    after("W5-undo", "if request.turn.done() and not request.turn.cancelled():\n    return context.forget(request)"),
)
def a_cancellation_after_the_grant_was_set_passes_it_on(scene: Scene) -> None:
    """W5: here the news and the cancellation wait together for a process that was stopped."""
    owner, waiter, other = scene.program(), scene.program(), scene.program()
    scene.take(owner, "a", 0.0, 1.2)
    visit = scene.take(waiter, "a", 0.1, 0.1)
    behind = scene.take(other, "a", 0.2, 0.1)
    scene.world.at(1.0, lambda: waiter.process.stop(suspend=False))
    scene.cancel(waiter, visit, 1.3)
    scene.world.at(1.5, waiter.process.resume)
    scene.until(3.0)
    assert visit.began is None
    assert behind.began is not None
    assert behind.began < 1.6


_BY_THE_TASK = """undoing = self.context.undos.under_way.get(request.token)
if undoing is None or undoing._waiter is None or not undoing._waiter.cancelled():
    self.deliver(grants)"""


@clause("W5", instead("W5-dispatched", _BY_THE_TASK), kinds=LOCK)
def a_waiter_told_by_a_release_is_not_forgotten_when_the_releasing_task_is_cancelled(scene: Scene) -> None:
    """W5: grants in replies are dispatched by the connection's reader."""
    program = scene.program()

    async def release_by_hand() -> None:
        lease = await Lock(program.client, "a").acquire()
        await scene.linger(1.0)
        await lease.release()

    program.process.begin(release_by_hand())
    releasing = program.process.tasks[-1]
    visit = scene.take(program, "a", 0.1, 0.1)
    while not scene.seen("release"):
        scene.until(scene.world.now + 0.0005)
    program.process.post(releasing.cancel)
    scene.until(1.05)  # before the next re-check, which would find it
    assert releasing.cancelled()
    assert visit.began is not None


@clause("W5", instead("W5-tried", "return False"), kinds=LOCK)
def who_asks_again_is_told_at_length(scene: Scene) -> None:
    """W5: the earlier request may have been granted; its notice is older than the fence that the long answer names."""
    owner, waiter = scene.program(), scene.program()
    scene.take(owner, "a", 0.0, 9.0)
    scene.take(waiter, "a", 0.1, 0.0)
    scene.until(0.2)
    [wire] = scene.wires(waiter, subscribed=False)
    wire.black_hole()
    scene.take(waiter, "a", 0.3, 0.0)
    scene.until(4.0)
    assert [asked.args["ticket"] for asked in scene.seen("grant", since=0.25)] == [b"0"]
