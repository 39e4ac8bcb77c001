"""W1 and W2: whom a hand-over can reach, and what becomes of whom it cannot."""

from contextlib import closing
from typing import Any

from redis import Redis

from tests.scripts.calls import Scripts
from tests.scripts.states import die, holders, line, listening, sessions, tickets
from tests.simulation.defects import counted_by_publish
from tests.simulation.planting import after, before, both, instead, never, without
from tests.simulation.rules.scene import Scene
from tests.simulation.rules.table import LOCK, clause
from tests.support.replicas import Replicated

_ONE = "subscribers = function() return 1 end"


def _awaited(scripts: Scripts) -> None:
    """Have ann hold it, and ben wait in the session `away`, for which nobody listens."""
    scripts.granted("ann")
    scripts.queued("ben", session="away")


@clause("W1", instead("W1-listens", "return 1"))
def who_does_not_listen_is_handed_nothing(scripts: Scripts) -> None:
    """W1: a lease that nobody hears of would keep everybody out for a TTL."""
    _awaited(scripts)
    scripts.release("ann")
    assert holders(scripts) == {}


@clause("W1", instead("W1-listens", "return 0"))
def who_listens_is_handed_it(scripts: Scripts) -> None:
    """W1: NUMSUB counts a subscriber of the channel."""
    _awaited(scripts)
    with listening(scripts, "away") as inbox:
        scripts.release("ann")
        assert [message.who for message in inbox.messages()] == ["ben"]


@clause("W1", counted_by_publish)
def a_monitor_makes_nobody_reachable(scripts: Scripts) -> None:
    """W1: PUBLISH counts `PSUBSCRIBE *`, and tells it too."""
    _awaited(scripts)
    with closing(scripts.redis.pubsub()) as monitor:
        monitor.psubscribe("*")
        assert monitor.get_message(timeout=5)["type"] == "psubscribe"
        scripts.release("ann")
        scripts.redis.publish("end", "end")
        assert monitor.get_message(timeout=5)["data"] == b"end"
    assert holders(scripts) == {}


@clause("W1", counted_by_publish, kinds=LOCK)
def a_subscriber_at_a_replica_is_not_told(replicated: Replicated) -> None:
    """W1: PUBLISH answers 0, for it is not here that anybody listens, and yet the message arrives: two holders."""
    here: Any
    with Redis.from_url(replicated.primary.url) as here, Redis.from_url(replicated.replica.url) as there:
        scripts = Scripts(here, "lock")
        _awaited(scripts)
        channel = scripts.keys.channels + b"away"
        subscriber: Any = there.pubsub()
        with closing(subscriber):
            subscriber.subscribe(channel)
            assert subscriber.get_message(timeout=5)["type"] == "subscribe"
            scripts.release("ann")
            here.publish(channel, "end")
            assert subscriber.get_message(timeout=5)["data"] == b"end"
        assert holders(scripts) == {}


@clause("W1", both(before("W1-grant", _ONE), before("W1-recheck", _ONE)))
def each_answer_says_how_many_listen_for_whoever_asks(scripts: Scripts) -> None:
    """W1: so a session learns that its subscription is not where its key is."""
    scripts.granted("ann")
    assert scripts.queued("ben").subscribers == 0
    assert scripts.recheck("ben").subscribers == 0
    with listening(scripts, "home"):
        assert scripts.queued("cat").subscribers == 1
        assert scripts.recheck("ben", "cat").subscribers == 1


@clause("W1", never("W1-subscribe"))
def a_session_that_nobody_finds_listening_subscribes_anew(scene: Scene) -> None:
    """W1: 0 in an answer makes it do so; here the server has closed the connection, and the word of it was lost."""
    owner, waiter = scene.program(), scene.program()
    scene.take(owner, "a", 0.0, 5.0)
    visit = scene.take(waiter, "a", 0.1, 0.1)
    scene.until(0.5)
    [wire] = scene.wires(waiter, subscribed=True)
    scene.stage.server.close(wire.socket)
    scene.until(5.2)
    assert visit.began is not None
    assert scene.wires(waiter, subscribed=True) != [wire]
    assert visit.began < 5.1, "found only by a re-check"
    assert not [request for request in scene.seen("recheck") if request.args["session"].startswith(b"poll")]


@clause(
    "W1",
    before("W1-subscribed", "return"),
)
def a_turn_that_came_before_the_subscription_is_found_as_soon_as_that_is_confirmed(scene: Scene) -> None:
    """W1: the first waiter stands in line before its session listens; it must not cost it a re-check interval."""
    owner, waiter = scene.program(), scene.program()
    scene.take(owner, "a", 0.0, lambda: scene.seen("grant")[-1].reply[0] == b"queued")
    visit = scene.take(waiter, "a", 0.2, 0.1)
    scene.until(2.0)
    assert visit.began is not None
    [queued] = [request for request in scene.seen("grant") if request.reply[0] == b"queued"]
    [released] = [request for request in scene.seen("release") if request.at < visit.began]
    assert queued.at < released.at
    assert [other for other in scene.seen("recheck", since=released.at) if other.reply[5]], "told by a notice"
    assert visit.began - released.at < 0.1


@clause("W2", after("W2-passed-over", "redis.call('DEL', line)"))
def who_is_passed_over_keeps_line_and_tickets(scripts: Scripts) -> None:
    """W2: only the session leaves the queue, in one step."""
    _awaited(scripts)
    scripts.queued("cat", session="away")
    before = tickets(scripts, "away")
    scripts.release("ann")
    assert sessions(scripts) == []
    assert tickets(scripts, "away") == before


@clause("W2", instead("W2-passed-over", "return grants"))
def who_is_passed_over_is_in_nobodys_way(scripts: Scripts) -> None:
    """W2: the next one that can be reached has it, and no later script comes across the first again."""
    _awaited(scripts)
    scripts.queued("cat", session="home")
    assert [grant.who for grant in scripts.release("ann", session="home").mine] == ["cat"]
    assert sessions(scripts) == []


@clause(
    "W2",
    both(
        instead("W2-put-back", "redis.call('PEXPIRE', waiters, life_ms)"),
        never("W2-stand-again"),  # whoever hands over, too
    ),
)
def the_next_recheck_puts_it_back(scripts: Scripts) -> None:
    """W2: with its old ticket, and so at its old place."""
    _awaited(scripts)
    scripts.release("ann")
    scripts.granted("dan", wait=False)
    scripts.queued("cat", session="third")
    assert scripts.recheck("ben", session="away").passed_over
    assert sessions(scripts) == ["away", "third"]


@clause("W2", instead("W2-dead", "return grants"))
def a_session_whose_line_has_vanished_is_dead(scripts: Scripts) -> None:
    """W2: however many waited there, it is dropped in one step."""
    _awaited(scripts)
    scripts.queued("cat", session="home")
    die(scripts, "away")
    assert [grant.who for grant in scripts.release("ann", session="home").mine] == ["cat"]
    assert sessions(scripts) == []


@clause(
    "W2",
    after("W2-first", "head = redis.call('ZRANGE', queue, '-1', '-1')[1]"),
    instead("W2-line", "local first = redis.call('ZREVRANGE', line, '0', '1')"),
    without("W2-move-on"),
)
def who_can_be_reached_is_served_in_the_order_of_asking(scripts: Scripts) -> None:
    """W2: also when waiters of several sessions alternate."""
    scripts.granted("ann")
    for who, session in [("ben", "home"), ("cat", "away"), ("dan", "home"), ("eve", "away")]:
        scripts.queued(who, session=session)
    served, holder = [], "ann"
    with listening(scripts, "away"):
        for _ in range(4):
            scripts.release(holder)
            holder = next(iter(holders(scripts)), "nobody")
            served.append(holder)
    assert served == ["ben", "cat", "dan", "eve"]


_NO_OLD_TICKET = never("W8-old-ticket")


@clause("W2", _NO_OLD_TICKET)
def who_was_forgotten_returns_to_its_old_place(scripts: Scripts) -> None:
    """W2: after a stall of the server for longer than lines live, order returns with the re-checks."""
    _awaited(scripts)
    scripts.queued("cat", session="home")
    places = {**tickets(scripts, "away"), **tickets(scripts, "home")}
    die(scripts, "away")
    die(scripts, "home")
    assert scripts.recheck("cat", session="home").answers == scripts.recheck("ben", session="away").answers == [0]
    scripts.queued("cat", session="home", ticket=places["cat"])
    scripts.queued("ben", session="away", ticket=places["ben"])
    assert (sessions(scripts), line(scripts, "away")) == (["away", "home"], ["ben"])


@clause("W2", _NO_OLD_TICKET)
def after_a_stall_of_the_server_the_order_is_as_before(scene: Scene) -> None:
    """W2: the engine brings the tickets back, whichever of its re-checks comes first."""
    owner = scene.program()
    scene.take(owner, "a", 0.0, 6.0, ttl=30.0)
    programs = [scene.program() for _ in range(6)]
    visits = [scene.take(program, "a", 0.1 + 0.02 * at, 0.1, ttl=30.0) for at, program in enumerate(programs)]
    scene.until(1.0)
    scene.stage.server.stopped = True
    scene.world.at(5.0, scene.stage.server.resume)
    scene.until(9.0)
    began = [visit.began for visit in visits]
    assert None not in began
    assert began == sorted(began, key=lambda at: at or 0.0)
