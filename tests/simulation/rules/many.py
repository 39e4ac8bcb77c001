"""W21: with thousands who hold and wait, no script keeps the server for long, and none grants more than there is."""

from tests.scripts import older
from tests.scripts.calls import MORE, TTL, Busy, Scripts, token
from tests.scripts.states import holders, lapse
from tests.simulation.planting import always, both, instead, never, without
from tests.simulation.rules.scene import Scene
from tests.simulation.rules.table import SEMAPHORE, clause

_DEAD = 120


def _dead(scripts: Scripts) -> None:
    """Have sessions that have died wait for longer than all others: more than one script looks at."""
    scripts.redis.zadd(scripts.key("queue"), {f"dead{number:03}": number + 1 for number in range(_DEAD)})


@clause(
    "W21",
    instead("W21-looked-at", "while head do"),
    never("W21-more"),
)
def a_hand_over_that_has_no_time_for_all_says_more(scripts: Scripts) -> None:
    """W21: at most 50 entries are looked at, the dead and the refused among them."""
    scripts.granted("ann")
    scripts.queued("ben")
    _dead(scripts)
    assert scripts.release("ann").mine == [MORE]
    assert scripts.redis.zcard(scripts.key("queue")) == _DEAD + 1 - 50


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
    both(
        instead("W21-renewed", "local renewed = type(value) == 'string' and value ~= ''"),
        instead("W21-usual", "if tonumber(ttl_ms) <= longest then"),
    ),
    both(
        instead("W21-renewed", "local renewed = value and (string.match(value, '^(%S+) %d+$') or value) == token"),
        instead("W21-by-itself", "local done, renewed = true, extend_as_usual(terms[2 * at - 1], terms[2 * at])"),
    ),
    both(
        instead("P3-renew-many", "if renewed then"),
        instead("P3-extend", "redis.call('ZADD', holders, 'XX', now_ms + tonumber(ttl_ms), token)"),
    ),
)
def of_many_renewals_in_one_script_each_is_done_or_not_by_itself(scripts: Scripts) -> None:
    """W21: another's lease, one that is longer, and a key of another type among them change nothing for the rest."""
    longer, others, list_, last = [scripts.named(name) for name in ("longer", "others", "list", "last")]
    for one in (scripts, others, list_, last):
        one.granted("ann", ttl_ms=5_000)
        one.redis.pexpire(one.keys.base, 6_000)
        if one.kind == "semaphore":
            one.redis.hset(one.key("meta"), "ttl", TTL)
    longer.granted("ann", ttl_ms=2 * TTL)
    list_.redis.delete(list_.keys.base)
    list_.redis.rpush(list_.keys.base, "somebody else's")
    asked = [(each, "ann", TTL) for each in (scripts, longer, list_, last)]
    assert scripts.renew_many(*asked[:3], (others, "ben", TTL), *asked[3:]) == [True, True, False, False, True]
    assert holders(scripts)["ann"] > TTL - 1_000
    assert holders(last)["ann"] > TTL - 1_000
    assert holders(longer)["ann"] > TTL + 1_000
    assert holders(others)["ann"] < 6_000


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


@clause(
    "W21",
    both(
        instead("W21-past-queue", "if not owner and not held_back and not young then"),
        instead("W21-past-queue-permits", "verdict = can_grant(tonumber(permits))"),
    ),
)
def nothing_is_granted_past_a_queue_that_is_not_empty(scripts: Scripts) -> None:
    """W21: behind the dead there may be somebody who has waited for longer."""
    scripts.granted("ann")
    scripts.queued("ben", session="away")
    lapse(scripts, "ann")
    _dead(scripts)
    answer = scripts.grant("cat", wait=False)
    assert isinstance(answer, Busy)
    assert answer.mine == [MORE]
    assert "cat" not in holders(scripts)


@clause("W21", instead("W21-witness", "local counted = witness"), kinds=SEMAPHORE)
def what_an_older_version_granted_shows_in_the_fencing_token(scripts: Scripts) -> None:
    """W21: as many hold as before, but with other weights."""
    scripts.resize(3)
    scripts.granted("ann")
    scripts.granted("ben")
    older.release(scripts, "ann")
    older.grant(scripts, "cat", permits=2)
    assert isinstance(scripts.grant("dan", wait=False), Busy)


@clause("W21", instead("W21-members", "local anew = not counted and count > 0"), kinds=SEMAPHORE)
def what_an_older_version_released_shows_in_how_many_hold(scripts: Scripts) -> None:
    """W21: the fencing token is the same as before."""
    scripts.resize(3)
    scripts.granted("ann", permits=2)
    scripts.granted("ben")
    older.release(scripts, "ann")
    scripts.granted("cat", permits=2)


@clause("W21", instead("W21-unknown", "local unknown = 1"), kinds=SEMAPHORE)
def a_holder_of_which_nothing_is_known_counts_as_the_largest(scripts: Scripts) -> None:
    """W21: never as one permit, which may be too few."""
    scripts.resize(3)
    scripts.granted("ann", permits=2)
    scripts.redis.hdel(scripts.key("meta"), token("ann"), "used")
    assert isinstance(scripts.grant("ben", permits=2, wait=False), Busy)


@clause("W21", instead("W21-weight", "used = used - 1"), kinds=SEMAPHORE)
def a_lease_that_ran_out_gives_back_its_own_weight(scripts: Scripts) -> None:
    """W21: or what it had beyond one permit could never be had again."""
    scripts.resize(3)
    scripts.granted("ann", permits=2)
    scripts.granted("ben")
    lapse(scripts, "ann")
    scripts.granted("cat", permits=2)
