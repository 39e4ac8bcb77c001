"""W7 and W8: whoever finds it free hands it over, and a re-check puts nobody in line."""

from tests.scripts.calls import Granted, Scripts
from tests.scripts.states import contents, die, holders, lapse, line, now_us, sessions
from tests.simulation.defects import recheck_creates
from tests.simulation.planting import both, instead, never, without
from tests.simulation.rules.scene import Scene
from tests.simulation.rules.table import SEMAPHORE, clause

_HOUR_US = 3_600_000_000


def _lapsed(scripts: Scripts) -> None:
    """Have ben wait in the session `home` for what is free, since a lease has run out."""
    scripts.granted("ann")
    scripts.queued("ben")
    lapse(scripts, "ann")


@clause("W7", without("W7-grant"))
def who_asks_and_would_wait_hands_it_over(scripts: Scripts) -> None:
    """W7: to whoever is first, whom the answer reaches here."""
    _lapsed(scripts)
    assert [grant.who for grant in scripts.queued("cat").mine] == ["ben"]


@clause("W7", without("W7-grant"))
def who_asks_once_hands_it_over(scripts: Scripts) -> None:
    """W7: `try_acquire` passes nobody who waits."""
    _lapsed(scripts)
    scripts.grant("cat", wait=False)
    assert list(holders(scripts))[-1:] == ["ben"]


@clause(
    "W7",
    both(never("W21-past-queue"), instead("W21-past-queue-permits", "verdict = 'later'")),
)
def who_asks_once_where_only_the_dead_wait_has_it(scripts: Scripts) -> None:
    """W7: or dead entries would make `try_acquire` answer None for ever."""
    _lapsed(scripts)
    die(scripts, "home")
    assert isinstance(scripts.grant("cat", session="away", wait=False), Granted)


@clause("W7", without("W7-release"))
def who_releases_what_it_has_not_hands_it_over(scripts: Scripts) -> None:
    """W7: so does whoever leaves the line, or undoes a request that never came."""
    _lapsed(scripts)
    assert [grant.who for grant in scripts.release("zoe").mine] == ["ben"]


@clause("W7", without("W7-recheck"))
def who_rechecks_hands_it_over(scripts: Scripts) -> None:
    """W7: the cure for a holder that has died."""
    _lapsed(scripts)
    assert [grant.who for grant in scripts.recheck("ben").mine] == ["ben"]


@clause("W7", without("W7-resize"), kinds=SEMAPHORE)
def who_resizes_hands_over_what_that_frees(scripts: Scripts) -> None:
    """W7: a higher limit frees permits as a release does."""
    scripts.granted("ann")
    scripts.queued("ben")
    assert [grant.who for grant in scripts.resize(2)[1]] == ["ben"]


@clause("W8", recheck_creates)
def a_recheck_creates_nobody(scripts: Scripts) -> None:
    """W8: one that overtook a withdrawal would put an orphan in line."""
    scripts.granted("ann")
    before = contents(scripts)
    assert scripts.recheck("nobody").answers == [0]
    assert contents(scripts) == before


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


@clause("W8", instead("W8-old-ticket", "if not newcomer then"))
def an_old_ticket_is_never_worse_than_a_new_one(scripts: Scripts) -> None:
    """W8: it may be from before the clock stepped back."""
    scripts.granted("ann")
    assert scripts.queued("ben", ticket=now_us(scripts) + _HOUR_US).ticket <= now_us(scripts)


@clause("W8", never("W8-queue"))
def a_new_ticket_is_never_better_than_one_in_the_queue(scripts: Scripts) -> None:
    """W8: those may be from before the clock stepped back."""
    scripts.granted("ann")
    scripts.queued("ben", session="away")
    scripts.redis.zadd(scripts.key("queue"), {"away": now_us(scripts) + _HOUR_US})
    scripts.queued("cat", session="home")
    assert (sessions(scripts), line(scripts, "home")) == (["away", "home"], ["cat"])


@clause(
    "W8",
    instead("W8-highest", "if not last and redis.call('ZCOUNT', waiters, text, 'inf') > 1 then"),
    instead("W8-newest", "local last = tonumber(redis.pcall('GET', highest))"),
)
def a_new_ticket_is_never_better_than_one_that_the_queue_does_not_show(scripts: Scripts) -> None:
    """W8: such as those behind the first of another session, from before the clock stepped back."""
    scripts.granted("ann")
    scripts.queued("ben", session="away")
    last = scripts.queued("cat", session="away").ticket + _HOUR_US
    scripts.redis.zincrby(scripts.key("waiters", session="away"), _HOUR_US, scripts.entry("cat"))
    if scripts.redis.exists(scripts.key("highest")):
        scripts.redis.incrby(scripts.key("highest"), _HOUR_US)
    assert scripts.queued("dan", session="home").ticket > last
