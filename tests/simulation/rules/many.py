"""W21: with thousands who hold and wait, no script keeps the server for long, and none grants more than there is."""

from tests.simulation.planting import always, without
from tests.simulation.rules.scene import Scene
from tests.simulation.rules.table import clause

_DEAD = 120


@clause("W21", without("W21-hand-over"))
def who_hears_more_goes_on_at_once(scene: Scene) -> None:
    """W21: each re-check alone would get 50 entries further, once a second."""
    owner, waiter = scene.program(), scene.program()
    scene.take(owner, "a", 0.0, 2.0)
    visit = scene.take(waiter, "a", 0.1, 0.1)
    scene.until(1.995)
    queue = scene.value(b"aiolocks:%b:{a}:queue" % scene.kind.encode())
    for number in range(_DEAD):
        queue.add(b"dead%03d" % number, float(number + 1))
    scene.until(2.1)
    assert visit.began is not None


@clause(
    "W21",
    without("W21-apart"),
    always("W21-each"),
)
def what_many_renewals_leave_open_is_asked_for_at_once(scene: Scene) -> None:
    """W21: a lease that is gone is known to be lost a round trip after the others were renewed."""
    program = scene.program()
    visits = [scene.take(program, f"{number:02}", 0.0, 8.0) for number in range(40)]
    scene.until(1.0)
    scene.delete(b"aiolocks:%b:{07}" % scene.kind.encode())
    scene.until(2.0)
    lost = [visit for visit in visits if visit.error is not None]
    assert scene.seen("renew_many")
    assert lost == [visits[7]]
    assert visits[7].ended is not None
    assert visits[7].ended < 1.6
