"""What may be held beside what, in the order of asking; upgrades and downgrades; books that can be made anew."""

from collections.abc import Callable

import pytest

from aiolocks._core.modes import EXCLUSIVE, FRONT, INTENT_SHARED, SHARED, UPGRADE, UPGRADEABLE
from bench.crowded import _hold
from tests.scripts.calls import TTL, Busy, Grant, Granted, Queued, Refused, Scripts, on_server, token, upgrade_of
from tests.scripts.shared_model import GO_WITH, IS
from tests.scripts.states import configured, fence_of, lapse, modes_held, now_us, sessions

MODES = range(IS, UPGRADE)

READ, WRITE = SHARED, EXCLUSIVE


def upgrade(scripts: Scripts, who: str, *, session: str = "home", wait: bool = True) -> object:
    return scripts.grant(upgrade_of(who), session=session, permits=UPGRADE, ticket=FRONT, wait=wait)


def downgrade(scripts: Scripts, who: str, *, session: str = "home") -> tuple[int, list[str]]:
    """Return 1 if it holds, and who of the session has been let in."""
    done, *mine = scripts.run("downgrade", session=session, who=who, mode=READ)
    return done, [token.decode().rstrip("0") for token in mine[::3]]


def counts(scripts: Scripts) -> bytes:
    return b" ".join(b"%d" % count for count in modes_held(scripts.redis.hget(scripts.key("meta"), "held")))


@pytest.mark.parametrize("held", MODES)
@pytest.mark.parametrize("wanted", MODES)
def test_two_modes_go_together_as_the_table_says(rwlock: Scripts, held: int, wanted: int) -> None:
    rwlock.granted("ann", permits=held)
    answer = rwlock.grant("ben", permits=wanted)
    assert isinstance(answer, Granted if held in GO_WITH[wanted] else Queued)


def test_an_upgrade_is_alone_inside_though_the_lease_it_grew_from_is_gone(rwlock: Scripts) -> None:
    rwlock.granted("ann", permits=UPGRADEABLE)
    upgrade(rwlock, "ann")
    lapse(rwlock, "ann")
    assert all(isinstance(rwlock.grant("ben", permits=mode, wait=False), Busy) for mode in MODES)


@pytest.mark.parametrize("mode", [READ, WRITE])
def test_only_an_upgradeable_lease_can_be_upgraded(rwlock: Scripts, mode: int) -> None:
    rwlock.granted("ann", permits=mode)
    assert upgrade(rwlock, "ann") == Refused(0)


def test_an_upgrade_that_waits_is_refused_when_its_lease_runs_out(rwlock: Scripts) -> None:
    rwlock.granted("ann", permits=UPGRADEABLE)
    rwlock.granted("ben", permits=READ)
    upgrade(rwlock, "ann")
    rwlock.queued("cat", permits=WRITE)
    lapse(rwlock, "ann")
    assert rwlock.release("ben", permits=READ).mine == [
        Grant(upgrade_of("ann"), -1, 0),
        Grant("cat", fence_of(rwlock, "cat"), TTL),
    ]


@on_server
def test_a_writer_can_go_on_as_reader_at_the_memory_limit(rwlock: Scripts) -> None:
    rwlock.granted("ann")
    rwlock.queued("ben", permits=READ)
    with configured(rwlock, maxmemory=1, maxmemory_policy="noeviction"):
        assert downgrade(rwlock, "ann") == (1, ["ben"])


def test_holders_of_whom_nothing_is_known_any_more_exclude_all(rwlock: Scripts) -> None:
    """Somebody has deleted the hash: who holds what is not to be guessed."""
    rwlock.granted("ann", permits=READ)
    rwlock.redis.delete(rwlock.key("meta"))
    assert isinstance(rwlock.grant("ben", permits=READ), Queued)
    assert rwlock.renew("ann")
    assert [grant.who for grant in rwlock.release("ann", permits=READ).mine] == ["ben"]
    assert counts(rwlock) == b"0 0 1 0 0 0 0"


def test_counts_are_made_again_when_all_leases_ran_out_together(rwlock: Scripts) -> None:
    """Redis removes the set itself then, and no script has seen it."""
    for who in ("ann", "ben"):
        rwlock.granted(who, permits=READ)
    rwlock.redis.delete(rwlock.keys.base)
    rwlock.granted("cat")
    assert counts(rwlock) == b"0 0 0 0 0 1 0"
    assert set(rwlock.redis.hkeys(rwlock.key("meta"))) == {b"fence", b"ttl", b"held", b"line", token("cat")}


def test_statistics_say_what_could_be_had(rwlock: Scripts) -> None:
    free = [rwlock.run("statistics", first=0)[8]]
    rwlock.granted("ann", permits=READ)
    free.append(rwlock.run("statistics", first=0)[8])
    rwlock.release("ann", permits=READ)
    rwlock.granted("ben", permits=WRITE)
    free.append(rwlock.run("statistics", first=0)[8])
    assert free == [[1] * 6, [1, 0, 1, 0, 1, 0], [0] * 6]


def let_in_by_an_older_version(rwlock: Scripts, who: str, *, held: str) -> None:
    """It kept seven counts and nothing else, which it wrote with each grant and release."""
    fence = now_us(rwlock)
    rwlock.redis.zadd(rwlock.keys.base, {token(who): fence // 1000 + TTL})
    terms = {"fence": fence, "held": held, token(who).decode(): f"{READ} {fence}"}
    rwlock.redis.hset(rwlock.key("meta"), mapping=terms)


@pytest.mark.parametrize("verb", ["release", "renew", "recheck", "statistics"])
def test_every_verb_counts_again_the_leases_that_an_older_version_wrote(rwlock: Scripts, verb: str) -> None:
    rwlock.granted("ann", permits=READ)
    let_in_by_an_older_version(rwlock, "ben", held="0 0 2 0 0 0 0")
    verbs: dict[str, Callable[[], object]] = {
        "release": lambda: rwlock.release("zoe", permits=READ), "renew": lambda: rwlock.renew("ann"),
        "recheck": rwlock.recheck, "statistics": rwlock.statistics,
    }  # fmt: skip
    verbs[verb]()
    assert counts(rwlock) == b"0 0 2 0 0 0 0"
    assert isinstance(rwlock.grant("cat", wait=False), Busy)


def test_no_writer_comes_beside_what_an_older_version_let_in(rwlock: Scripts) -> None:
    rwlock.granted("ann", permits=READ)
    rwlock.release("ann", permits=READ)
    let_in_by_an_older_version(rwlock, "ben", held="0 0 1 0 0 0 0")
    assert isinstance(rwlock.grant("cat", wait=False), Busy)
    rwlock.granted("dan", permits=READ)
    assert counts(rwlock) == b"0 0 2 0 0 0 0"


def test_readers_that_ask_again_after_the_hash_was_deleted_are_readers_again(rwlock: Scripts) -> None:
    """Each counts as a writer until then."""
    for who in ("ann", "ben"):
        rwlock.granted(who, permits=READ)
    rwlock.redis.delete(rwlock.key("meta"))
    rwlock.granted("ann", permits=READ)
    assert counts(rwlock) == b"0 0 1 0 0 1 0"
    assert isinstance(rwlock.grant("cat", permits=READ, wait=False), Busy)
    rwlock.granted("ben", permits=READ)
    assert counts(rwlock) == b"0 0 2 0 0 0 0"
    rwlock.granted("cat", permits=READ)


def test_no_waiter_is_passed_over_beside_an_exclusive_holder_though_the_hash_was_deleted(rwlock: Scripts) -> None:
    """The lease that was upgraded counts as a writer's then, and so there are two who exclude all."""
    rwlock.granted("ann", permits=UPGRADEABLE)
    upgrade(rwlock, "ann")
    rwlock.redis.delete(rwlock.key("meta"))
    upgrade(rwlock, "ann")
    assert counts(rwlock) == b"0 0 0 0 0 1 1"
    rwlock.queued("ben", session="away")
    rwlock.queued("cat")
    assert sessions(rwlock) == ["away", "home"]


def test_thousands_of_readers_are_counted_again_one_by_one(rwlock: Scripts) -> None:
    _hold(rwlock, 1_100, READ, counted=False)
    rwlock.redis.hset(rwlock.key("meta"), token("h7h"), f"{INTENT_SHARED} 7")
    assert rwlock.renew("h3h")
    assert counts(rwlock) == b"1 0 1099 0 0 0 0"


def test_of_thousands_of_readers_whose_leases_ran_out_nothing_is_left(rwlock: Scripts) -> None:
    rwlock.granted("ann", permits=READ)
    _hold(rwlock, 1_100, READ, ended=True, counted=False)
    assert rwlock.statistics().holders == 1
    assert set(rwlock.redis.hkeys(rwlock.key("meta"))) == {b"fence", b"ttl", b"held", token("ann")}
    assert counts(rwlock) == b"0 0 1 0 0 0 0"
