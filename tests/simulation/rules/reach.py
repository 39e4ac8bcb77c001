"""W1 and W2: whom a hand-over can reach, and what becomes of whom it cannot."""

from contextlib import closing
from typing import Any

from redis import Redis

from tests.scripts.calls import Scripts
from tests.scripts.states import holders
from tests.simulation.defects import counted_by_publish
from tests.simulation.planting import before, never
from tests.simulation.rules.scene import Scene
from tests.simulation.rules.table import LOCK, clause
from tests.support.replicas import Replicated


def _awaited(scripts: Scripts) -> None:
    """Have ann hold it, and ben wait in the session `away`, for which nobody listens."""
    scripts.granted("ann")
    scripts.queued("ben", session="away")


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


_NO_OLD_TICKET = never("W8-old-ticket")


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
