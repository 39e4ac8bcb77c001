"""W11 and W15: a session that cannot be told looks for its turns itself, until it can be told."""

from tests.simulation.planting import always, instead, never, without
from tests.simulation.rules.scene import Scene
from tests.simulation.rules.table import clause
from tests.simulation.workload import Program

_POLLS = instead("W11-polls", "local polls = false")


@clause("W11", always("W11-forbidden"), _POLLS)
def a_session_without_rights_has_its_turn_in_its_order(scene: Scene) -> None:
    """W11: under contention it would never be granted anything."""
    owner, deaf, other = scene.program(), scene.program(channels=False), scene.program()
    scene.take(owner, "a", 0.0, 2.0)
    visit = scene.take(deaf, "a", 0.1, 0.5)
    behind = scene.take(other, "a", 0.5, 0.1)
    scene.until(5.0)
    assert visit.began is not None
    assert behind.began is not None
    assert 2.0 < visit.began < 2.6
    assert visit.ended is not None
    assert behind.began > visit.ended


@clause("W11", never("W11-unheard"))
def a_session_that_is_parked_twice_in_a_row_polls(scene: Scene) -> None:
    """W11: it has subscribed, and yet no server that owns its key finds it."""
    scene.subscriptions_vanish = True
    owner, waiter = scene.program(), scene.program()
    scene.take(owner, "a", 0.0, 6.0)
    scene.take(waiter, "a", 0.1, 0.1)
    scene.until(4.0)
    assert scene.seen("recheck")[-1].args["session"].startswith(b"poll")


def _polling_since(scene: Scene, since: float) -> bool:
    return any(request.args["session"].startswith(b"poll") for request in scene.seen("recheck", since=since))


def _cut_wake_ups(scene: Scene, program: Program) -> None:
    for wire in scene.wires(program, subscribed=True):
        scene.stage.server.close(wire.socket)


@clause(
    "W15",
    instead("W15-passed-over", "passed_over = True"),
)
def a_subscription_that_was_lost_is_no_reason_to_poll(scene: Scene) -> None:
    """W15: who was passed over while it was away is put back, and told from then on."""
    owner, waiter = scene.program(), scene.program()
    scene.take(owner, "a", 0.0, 6.0)
    visit = scene.take(waiter, "a", 0.1, 0.1)
    queue = b"aiolocks:%b:{a}:queue" % scene.kind.encode()
    for at in (0.6, 1.6, 2.6):
        scene.until(at)
        _cut_wake_ups(scene, waiter)
        scene.delete(queue)
    scene.until(6.2)
    assert not _polling_since(scene, 0.0)
    assert visit.began is not None


@clause(
    "W15",
    without("W15-try-again"),
    without("W15-counted"),
)
def a_session_that_polls_is_told_again_when_it_can_be(scene: Scene) -> None:
    """W15: what kept its subscription from being found has passed."""
    scene.subscriptions_vanish = True
    owner, waiter = scene.program(), scene.program()
    scene.take(owner, "a", 0.0, 12.0)
    visit = scene.take(waiter, "a", 0.1, 0.1)
    scene.until(4.0)
    assert _polling_since(scene, 3.0)
    scene.subscriptions_vanish = False
    scene.until(12.2)
    assert not _polling_since(scene, 9.0)
    assert visit.began is not None
    assert visit.began < 12.1


@clause("W15", instead("W15-pause", "self._pause = pause"))
def a_session_without_rights_tries_ever_less_often(scene: Scene) -> None:
    """W15: each try costs a connection."""
    owner, deaf = scene.program(), scene.program(channels=False)
    scene.take(owner, "a", 0.0, 40.0)
    scene.take(deaf, "a", 0.1, 0.1)
    scene.until(40.0)
    assert scene.stage.server._numbers <= 10, "two for asking, and each try"


@clause("W15", without("W15-move"))
def who_waits_in_a_session_that_turns_keeps_its_place(scene: Scene) -> None:
    """W15: it leaves the line under the old name and stands in the new one in one go, by its old ticket."""
    owner, waiter = scene.program(), scene.program(channels=False)
    scene.take(owner, "a", 0.0, 6.0)
    visit = scene.take(waiter, "a", 0.2, 0.1)
    scene.until(0.9)
    waiter.client.connection_pool.connection_kwargs["channels"] = True
    for wire in scene.wires(waiter, subscribed=False):
        wire.socket.channels = True
    scene.until(5.0)
    [*_, farewell] = [request for request in scene.seen("recheck") if request.args["life_ms"] == b"0"]
    [*_, before, place] = scene.seen("grant")
    assert farewell.args["session"].startswith(b"poll")
    assert place.args["session"] in farewell.args["session"]
    assert int(place.args["ticket"]) == before.reply[1]
    assert place.at - farewell.at < 0.0005, "others may come between"
    assert visit.began is None


def _lines(scene: Scene) -> set[bytes]:
    """Return the names of the sessions that have waiters."""
    return {key.split(b":q:")[1] for key in scene.stage.server.database() if b":q:" in key}


_NO_FAREWELL = instead("W11-formers", "formers, self._names = set(), {self.identity[0]}")


@clause("W11", _NO_FAREWELL)
def a_session_that_begins_to_poll_leaves_no_line_under_its_old_name(scene: Scene) -> None:
    """W11: or a turn would go to that, and to whoever has left since."""
    scene.subscriptions_vanish = True
    owner, waiter = scene.program(), scene.program()
    scene.take(owner, "a", 0.0, 6.0)
    for _ in range(3):
        scene.take(waiter, "a", 0.1, 0.1)
    while not any(name.startswith(b"poll") for name in _lines(scene)):
        scene.until(scene.world.now + 0.01)
        assert scene.world.now < 6.0
    scene.until(scene.world.now + 0.05)
    assert len(_lines(scene)) == 1


@clause("W11", _NO_FAREWELL)
def a_session_that_polls_more_often_leaves_no_line_under_its_old_name(scene: Scene) -> None:
    """W11: its name says how often; the server would believe in the other one too, and hand it turns."""
    owner, waiter = scene.program(), scene.program(channels=False)
    scene.take(owner, "a", 0.0, 6.0)
    scene.take(waiter, "a", 0.1, 0.1)
    scene.take(waiter, "a", 1.0, 0.1, ttl=0.4)
    scene.until(1.0)
    assert [name[:8] for name in _lines(scene)] == [b"poll250-"]
    scene.until(1.2)
    assert [name[:8] for name in _lines(scene)] == [b"poll100-"]
