"""W8: a waiter that the server has forgotten asks again for its old place."""

from tests.simulation.planting import both, instead, never, without
from tests.simulation.rules.scene import Scene
from tests.simulation.rules.table import clause


@clause(
    "W8",
    without("W8-anew"),
    instead("W8-ticket", "ticket = 0 if request.wait else ~request.ticket"),
)
def who_is_forgotten_asks_anew_at_its_old_place(scene: Scene) -> None:
    """W8: it brings its old ticket along."""
    owner, waiter = scene.program(), scene.program()
    holding = scene.take(owner, "a", 0.0, 3.0)
    visit = scene.take(waiter, "a", 0.1, 0.1)
    scene.until(1.0)
    base, asked = b"aiolocks:%b:{a}" % scene.kind.encode(), scene.seen("grant")[-1]
    scene.delete(base + b":queue", base + b":q:" + asked.args["session"])
    scene.until(5.0)
    assert [int(again.args["ticket"]) for again in scene.seen("grant", since=1.0)] == [asked.reply[1]]
    assert holding.ended is not None
    assert visit.began is not None
    assert visit.began - holding.ended < 0.1


@clause(
    "W8",
    both(
        never("W8-left"),
        instead("W8-done", "if request.token not in self._asking_anew:"),
    ),
)
def who_is_forgotten_and_has_left_does_not_ask_anew(scene: Scene) -> None:
    """W8: only if it still waits; here it is cancelled while the answer is on its way."""
    owner, waiter = scene.program(), scene.program()
    scene.take(owner, "a", 0.0, 3.0)
    visit = scene.take(waiter, "a", 0.1, 0.1)
    scene.until(1.0)
    base, asked = b"aiolocks:%b:{a}" % scene.kind.encode(), scene.seen("grant")[-1]
    scene.delete(base + b":queue", base + b":q:" + asked.args["session"])
    while not scene.seen("recheck", since=1.0):
        scene.until(scene.world.now + 0.0005)
    scene.cancel(waiter, visit, scene.world.now)
    scene.until(2.5)
    assert scene.seen("grant", since=1.0) == []
    assert scene.value(base + b":queue") is None
