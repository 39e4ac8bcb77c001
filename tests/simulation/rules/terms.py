"""W4 and W5: a grant is made on the waiter's own terms, and believed by whoever it is for, once."""

from aiolocks import Lock
from aiolocks._engine import acquire as _acquire
from aiolocks._engine import request as _request
from aiolocks._grantors import one_server as _one_server
from tests.scripts.calls import TTL, Scripts
from tests.scripts.states import holders, lapse, listening
from tests.simulation.rules.scene import Scene
from tests.simulation.rules.table import LOCK, SEMAPHORE, both, clause, each, python, shared, verb
from tests.simulation.server import encoded

_ENTRY = "local token, ttl_ms, permits, needed_s = string.match(entry, '^(%S+) (%d+) (%d+) ?(%d*)')"


@clause(
    "W4",
    shared(_ENTRY, f"{_ENTRY.replace('ttl_ms', 'its')}\nlocal ttl_ms = string.match(ARGV[2], '^%d+') or its"),
)
def a_lease_handed_over_lasts_as_long_as_the_waiter_asked_for(scripts: Scripts) -> None:
    """W4: by the waiter's entry, not by the arguments of whoever releases."""
    scripts.granted("ann", ttl_ms=1_000)
    scripts.queued("ben", ttl_ms=90_000)
    assert [grant.amount for grant in scripts.release("ann", ttl_ms=1_000).mine] == [90_000]
    assert holders(scripts)["ben"] > 80_000


@clause(
    "W4",
    shared(_ENTRY, f"{_ENTRY.replace('permits', 'its')}\nlocal permits = string.match(ARGV[2], ' (%d+)$') or its"),
    kinds=SEMAPHORE,
)
def as_many_permits_are_handed_over_as_the_waiter_asked_for(scripts: Scripts) -> None:
    """W4: and not as many as come free."""
    scripts.resize(4)
    scripts.granted("ann", permits=4)
    scripts.queued("ben", permits=3)
    scripts.release("ann", permits=4)
    assert scripts.statistics().permits == 3


@clause("W4", shared("notify(head, token, text, ttl_ms)", "notify(head, token, text, life_ms)"))
def the_message_names_the_terms(scripts: Scripts) -> None:
    """W4: who it is for, and for how long."""
    scripts.granted("ann")
    scripts.queued("ben", session="away", ttl_ms=90_000)
    with listening(scripts, "away") as inbox:
        scripts.release("ann")
        assert [(message.who, message.amount) for message in inbox.messages()] == [("ben", 90_000)]


@clause(
    "W5",
    each(lock=verb("grant", "last_fence(number), sub", "0, sub"), semaphore=verb("grant", "newest, sub", "0, sub")),
)
def who_is_told_to_wait_learns_the_last_fencing_token(scripts: Scripts) -> None:
    """W5: no grant up to that one is its own."""
    fence = scripts.granted("ann").fence
    assert scripts.queued("ben").fence == fence


@clause(
    "W5",
    each(
        lock=verb("recheck", "not_before(), before,", "not_before(), last_fence(),"),
        semaphore=verb("recheck", "not_before(), before,", "not_before(), newest,"),
    ),
)
def what_a_recheck_tells_is_older_than_the_grants_in_it(scripts: Scripts) -> None:
    """W5: or they would be taken for stale."""
    scripts.granted("ann")
    scripts.queued("ben")
    lapse(scripts, "ann")
    recheck = scripts.recheck("ben")
    assert [grant.who for grant in recheck.mine] == ["ben"]
    assert recheck.mine[0].fence > recheck.fence


def _notice(scene: Scene, token: bytes, fence: int, session: bytes) -> bytes:
    message = b"%b %d %d aiolocks:%b:{a}" % (token, fence, TTL, scene.kind.encode())
    return encoded([b"message", b"aiolocks:wake:" + session, message])


@clause(
    "W5",
    python(_request.Request, "grant", "(valid_from is None and fence <= self.fence_seen)", "False"),
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
    python(_one_server.RedisGrantor, "told", "if fence > 0:", "if False:"),
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
    both(
        *(
            python(_acquire, name, "context.tokens[request.token] = request", "pass")
            for name in ("take", "_wait_granted")
        )
    ),
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


_AWAITED = "context, request = state.context, state.request"
_KEPT = f"""{_AWAITED}
    if request.turn.done() and not request.turn.cancelled():
        return context.forget(request)"""


@clause("W5", python(_acquire, "_undo", _AWAITED, _KEPT))
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


_DISPATCHED = "self.deliver(grants)"
_BY_THE_TASK = """undoing = self.context.undos.under_way.get(request.token)
        if undoing is None or undoing._waiter is None or not undoing._waiter.cancelled():
            self.deliver(grants)"""


@clause("W5", python(_one_server.RedisGrantor, "_undone", _DISPATCHED, _BY_THE_TASK), kinds=LOCK)
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


@clause("W5", python(_request.Request, "tried", "self.reached or bool(self.unanswered)", "False"), kinds=LOCK)
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
