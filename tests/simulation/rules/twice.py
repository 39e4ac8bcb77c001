"""W10: a request that comes twice, or after its own undo."""

from tests.scripts.calls import Granted, Scripts, Withdrawn
from tests.scripts.states import die, line
from tests.simulation.planting import both, instead, never
from tests.simulation.rules.scene import Scene
from tests.simulation.rules.table import LOCK, SEMAPHORE, clause


@clause("W10", instead("W10-fence", "return { 'granted', last_fence(), 0 }"), kinds=LOCK)
def a_lock_asked_for_twice_has_one_fence(scripts: Scripts) -> None:
    """W10: the holder's own fence lies beside its token; the last one issued may be forgotten before the lease ends."""
    fence = scripts.granted("ann").fence
    scripts.redis.delete(scripts.key("fence"))
    assert scripts.granted("ann").fence == fence


@clause("W10", instead("W10-recheck", "answer = -last_fence()"), kinds=LOCK)
def a_turn_found_by_a_recheck_has_its_own_fence(scripts: Scripts) -> None:
    """W10: the same, for a grant whose message was lost."""
    fence = scripts.granted("ann").fence
    scripts.redis.delete(scripts.key("fence"))
    assert scripts.recheck("ann").answers == [-fence]


@clause(
    "W10",
    instead("W10-fence-permits", "return { 'granted', newest, grants, differed, limit_in_force }"),
    kinds=SEMAPHORE,
)
def permits_asked_for_twice_have_one_fence(scripts: Scripts) -> None:
    """W10: others have been granted permits since."""
    scripts.resize(2)
    fence = scripts.granted("ann").fence
    scripts.granted("ben")
    assert scripts.granted("ann").fence == fence


@clause(
    "W10",
    instead("W10-brief-permits", "local place = existing == 6 and sure and alike and used >= limit_in_force"),
    kinds=SEMAPHORE,
)
def a_request_that_comes_while_its_token_holds_a_permit_puts_it_in_no_line(scripts: Scripts) -> None:
    """W10: the same; there may be many holders, and each stands in the hash."""
    fence = scripts.granted("ann").fence
    scripts.queued("ben")
    assert scripts.grant("ann", brief=True) == Granted(fence)
    assert line(scripts) == ["ben"]


@clause(
    "W10",
    both(
        instead("W10-existing", "local existing = redis.call('EXISTS', holder, queue, waiters, tombstone)"),
        instead("W10-line-permits", "and enqueue_behind_own(entry)"),
    ),
)
def a_request_for_a_short_answer_that_comes_after_its_undo_comes_to_nothing(scripts: Scripts) -> None:
    """W10: the same, where it would join others, who have died meanwhile."""
    scripts.granted("ann")
    scripts.queued("ben")
    scripts.release("cat", tombstone_ms=60_000)
    die(scripts, "home")
    assert scripts.grant("cat", brief=True) == Withdrawn()
    assert line(scripts) == []


def _overtaken(scene: Scene) -> bytes:
    """Have an acquire held up by the network, cancelled, undone over another connection, and arrive at 5.4 s.

    Return how long the undo says that it may be held up, in ms.
    """
    program = scene.program()
    scene.take(program, "b", 0.0, 9.0)
    visit = scene.take(program, "a", 0.5, 0.1)
    scene.world.at(0.4, lambda: scene.wires(program, subscribed=False)[0].cut_off(5.0))
    scene.cancel(program, visit, 1.0)
    scene.until(5.3)
    assert [asked.args["tombstone_ms"] for asked in scene.seen("release")] != []
    [undone] = scene.seen("release")
    scene.until(6.0)
    late = scene.seen("grant")[-1]
    assert late.args["token"] == undone.args["token"]
    assert late.reply == [b"withdrawn"]
    return undone.args["tombstone_ms"]


@clause(
    "W10",
    never("W10-late"),
    never("P7-tombstone"),
)
def an_undo_sent_over_another_connection_leaves_a_tombstone(scene: Scene) -> None:
    """W10: for it overtakes the request."""
    _overtaken(scene)


@clause("W10", instead("W10-longest", "tombstone_ms = round(1000 * request.ttl)"))
def a_tombstone_outlasts_the_time_for_which_a_request_may_be_held_up(scene: Scene) -> None:
    """W10: which has nothing to do with the TTL, here of 4 s."""
    assert int(_overtaken(scene)) >= 60_000


@clause("W10", instead("W10-late", "if request.unanswered:"))
def an_undo_behind_its_request_on_one_connection_leaves_none(scene: Scene) -> None:
    """W10: nothing can come after it there, and a key that nobody needs would stay for a minute."""
    program = scene.program()
    scene.take(program, "b", 0.0, 1.0)
    visit = scene.take(program, "a", 0.5, 0.1)
    scene.cancel(program, visit, 0.5005)
    scene.until(0.8)
    assert visit.began is None
    [undone] = scene.seen("release")
    assert undone.args["token"] == scene.seen("grant")[-1].args["token"]
    assert undone.args["tombstone_ms"] == b"0"


@clause("W10", never("W10-undo-for"))
def an_undo_is_tried_for_as_long_as_its_request_may_be_held_up(scene: Scene) -> None:
    """W10: not only for a TTL, here of 0.5 s: what arrives later would be granted to nobody."""
    program = scene.program()
    scene.take(program, "b", 0.0, 9.0, ttl=30.0)
    visit = scene.take(program, "a", 0.5, 0.1, ttl=0.5)
    scene.until(0.4)
    [wire] = scene.wires(program, subscribed=False)
    wire.cut_off(9.0)
    scene.stage.network.cut_off.add(program.process)
    scene.until(1.6)  # its connection is given up
    scene.cancel(program, visit, 1.7)
    scene.world.at(3.0, scene.stage.network.cut_off.discard, program.process)
    scene.until(9.0)
    assert scene.seen("grant", since=0.4) == []
    scene.until(10.0)
    [late] = scene.seen("grant", since=0.4)
    assert late.reply == [b"withdrawn"]
