"""A key of the name that somebody uses for something else is a clear error, and stays as it is."""

from collections.abc import Callable
from typing import get_args

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from aiolocks._core.modes import SHARED
from aiolocks._redis.scripts import load
from tests.scripts.calls import Kind, Scripts
from tests.scripts.states import contents, holders, lapse, line
from tests.support.cases import one_by_one

VERBS: dict[str, Callable[[Scripts], object]] = {
    "grant": lambda scripts: scripts.grant("cat"),
    "grant without waiting": lambda scripts: scripts.grant("cat", wait=False),
    "recheck": lambda scripts: scripts.recheck("ben"), "release": lambda scripts: scripts.release("ann"),
    "withdraw": lambda scripts: scripts.release("ben"), "renew": lambda scripts: scripts.renew("ann"),
    "touch": lambda scripts: scripts.touch(), "statistics": lambda scripts: scripts.statistics(),
    "resize": lambda scripts: scripts.resize(5), "pause": lambda scripts: scripts.pause(60_000),
    "resume": lambda scripts: scripts.pause(0), "downgrade": lambda scripts: scripts.downgrade("ann", SHARED),
    "revoke": lambda scripts: scripts.revoke(0, 10**16),
    "revoke by force": lambda scripts: scripts.revoke(0, 10**16, force=True),
}  # fmt: skip
SCRIPTS = {"grant without waiting": "grant", "withdraw": "release", "revoke by force": "revoke", "resume": "pause"}
ASKING = dict.fromkeys(VERBS, "cat") | dict.fromkeys(("release", "renew", "downgrade"), "ann") | {"withdraw": "ben"}
_ANY_GRANT = {"grant", "grant without waiting"}
_EITHER = {
    "holder": {*_ANY_GRANT, "recheck", "release", "withdraw", "renew", "revoke by force"},
    "queue": {"grant", "recheck", "statistics", "revoke by force"},
    "waiters": {"grant", "recheck", "withdraw", "revoke by force"},
}
_SEMAPHORE = {
    "holder": {"statistics", "resize", "pause", "resume"},
    "queue": {"resize", "pause", "resume"},
    "meta": {*_ANY_GRANT, "recheck", "renew", "statistics", "resize", "pause", "resume"},
}


def _needs(kind: str, field: str, verb: str) -> bool:
    """Say whether a verb cannot do without that key while the name is held and awaited."""
    of_kind = {"lock": {"fence": {"statistics"}}, "semaphore": _SEMAPHORE}.get(kind, {})
    field = field.replace("holders", "holder")
    return verb in _EITHER.get(field, set()) or verb in of_kind.get(field, set())


def _spoil(scripts: Scripts, key: bytes) -> None:
    scripts.redis.delete(key)
    scripts.redis.rpush(key, "a list of somebody else's")


def test_a_newest_ticket_of_another_type_stays_as_it_is_and_waiters_queue_all_the_same(held: Scripts) -> None:
    _spoil(held, held.key("highest"))
    before = held.queued("ben").ticket
    held.redis.zincrby(held.key("waiters"), 10**12, held.entry("ben"))
    assert held.queued("cat").ticket == before + 10**12 + 1
    assert held.redis.lrange(held.key("highest"), 0, -1) == [b"a list of somebody else's"]


def _every_key() -> list[tuple[Kind, str, str]]:
    """Return each key in the header of each script, by kind, field and how the script is run."""

    only = {"resize": "semaphore", "pause": "semaphore", "resume": "semaphore", "downgrade": "rwlock"}
    return [
        (kind, field, verb)
        for kind in get_args(Kind)
        for verb in VERBS
        if only.get(verb, kind) == kind
        for field in load(f"{'modes' if kind == 'rwlock' else kind}/{SCRIPTS.get(verb, verb)}").keys
    ]


@pytest.mark.rest
@one_by_one("free, kind, field, verb", [(free, *key) for free in (False, True) for key in _every_key()])
def test_no_script_touches_a_key_of_another_type(backend: Redis, kind: Kind, field: str, verb: str, free: bool) -> None:
    """It says so if it needs that key. Only what a release has ended before it came upon that key stays ended."""
    backend.flushall()
    scripts = Scripts(backend, kind, limit=1)
    scripts.granted("ann")
    scripts.queued("ben")
    if free:
        lapse(scripts, "ann")
        scripts.statistics()  # which forgets the dead
    key = scripts.key(field, who=ASKING[verb])
    _spoil(scripts, key)
    before = contents(scripts)
    refusal = ""
    try:
        VERBS[verb](scripts)
    except ResponseError as error:
        refusal = str(error)
    assert "wrong kind of value" in refusal or (refusal == "" and (free or not _needs(kind, field, verb)))
    if refusal and verb not in {"release", "withdraw"}:
        assert contents(scripts) == before
    assert contents(scripts)[key] == before[key]


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("field", ["fence", "queue"])
def test_a_free_one_with_a_spoilt_fence_or_queue_is_not_granted(exclusive: Scripts, field: str, wait: bool) -> None:
    exclusive.granted("zoe")
    exclusive.release("zoe")
    _spoil(exclusive, exclusive.key("meta" if field == "fence" and exclusive.kind != "lock" else field))
    before = contents(exclusive)
    with pytest.raises(ResponseError, match="wrong kind of value"):
        exclusive.grant("ann", wait=wait)
    assert contents(exclusive) == before


@pytest.mark.parametrize("who", ["ann", "ben"])
def test_a_release_ends_what_its_token_has_though_the_queue_is_spoilt(awaited_here: Scripts, who: str) -> None:
    """W9: it begins with that. The error says that nobody was served."""
    _spoil(awaited_here, awaited_here.key("queue"))
    with pytest.raises(ResponseError, match="wrong kind of value"):
        awaited_here.release(who)
    assert who not in {*holders(awaited_here), *line(awaited_here)}
