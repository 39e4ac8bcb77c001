"""W11: a session that cannot be told looks for its turns itself."""

from aiolocks import _line, _session
from tests.lua.calls import TTL, Scripts, poller
from tests.lua.states import holders
from tests.rules.scene import Scene
from tests.rules.table import clause, each, python, shared, verb

_DEAF = shared("local deaf = not here and tonumber(string.match(head, '^poll(%d+)%-'))", "local deaf = false")


@clause("W11", _DEAF)
def a_session_that_polls_is_handed_its_turn(scripts: Scripts) -> None:
    """W11: a real grant, which nobody is told of."""
    scripts.granted("ann")
    scripts.queued("ben", session=poller(5_000))
    scripts.release("ann")
    assert list(holders(scripts)) == ["ben"]


@clause("W11", shared("deaf and math.min(2 * deaf, tonumber(ttl_ms)) or ttl_ms", "ttl_ms"))
def its_turn_lasts_for_two_of_its_looks(scripts: Scripts) -> None:
    """W11: one that it does not notice costs the others no more than that."""
    scripts.granted("ann")
    scripts.queued("ben", session=poller(5_000))
    scripts.release("ann")
    assert 8_000 < holders(scripts)["ben"] <= 10_000


@clause("W11", each(lock=verb("recheck", "extend(ttl_ms)", ""), semaphore=verb("recheck", "extend(token, ttl_ms)", "")))
def its_next_recheck_makes_that_a_full_lease(scripts: Scripts) -> None:
    """W11: `max(PTTL, ttl)`, counted from the re-check."""
    scripts.granted("ann")
    scripts.queued("ben", session=poller(5_000))
    scripts.release("ann")
    assert scripts.recheck("ben", session=poller(5_000)).answers[0] < 0
    assert holders(scripts)["ben"] > TTL - 1_000


@clause("W11", python(_session.Session, "_forbidden", "self.poll(", "len("), _DEAF)
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


@clause("W11", python(_line.Line, "_answered", "if self._unheard >= 2:", "if False:"))
def a_session_that_is_parked_twice_in_a_row_polls(scene: Scene) -> None:
    """W11: it has subscribed, and yet no server that owns its key finds it."""
    scene.subscriptions_vanish = True
    owner, waiter = scene.program(), scene.program()
    scene.take(owner, "a", 0.0, 6.0)
    scene.take(waiter, "a", 0.1, 0.1)
    scene.until(4.0)
    assert scene.seen("recheck")[-1].args["session"].startswith(b"poll")


def _lines(scene: Scene) -> set[bytes]:
    """Return the names of the sessions that have waiters."""
    return {key.split(b":q:")[1] for key in scene.stage.server.database() if b":q:" in key}


_NO_FAREWELL = python(_line.Line, "identity", "former not in (None, name)", "False")


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
