"""W10: a request that comes twice, or after its own undo; and W9: what ends half-way."""

import pytest
from redis import Redis

from tests.scripts.calls import Scripts, Withdrawn
from tests.scripts.states import die, line

pytestmark = pytest.mark.redis


@pytest.mark.parametrize("kind", ["lock"])
def test_a_lock_has_one_fencing_token_though_the_last_one_issued_is_forgotten(scripts: Scripts) -> None:
    """W10: the holder's own lies beside its token."""
    fence = scripts.granted("ann").fence
    scripts.redis.delete(scripts.key("fence"))
    assert scripts.granted("ann").fence == fence
    assert scripts.recheck("ann").answers == [-fence]


@pytest.mark.parametrize("kind", ["semaphore"])
def test_permits_asked_for_twice_have_one_fencing_token(scripts: Scripts) -> None:
    """W10: others have been granted permits since."""
    scripts.resize(2)
    fence = scripts.granted("ann").fence
    scripts.granted("ben")
    assert scripts.granted("ann").fence == fence


def test_a_request_for_a_short_answer_that_comes_after_its_undo_comes_to_nothing(scripts: Scripts) -> None:
    """W10: also where it would join others, who have died meanwhile."""
    scripts.granted("ann")
    scripts.queued("ben")
    scripts.release("cat", tombstone_ms=60_000)
    die(scripts, "home")
    assert scripts.grant("cat", brief=True) == Withdrawn()
    assert line(scripts) == []


@pytest.mark.parametrize("kind", ["semaphore"])
def test_a_tombstone_that_may_not_be_written_keeps_no_caller_waiting(scripts: Scripts) -> None:
    """W9: it is a protected call, after which the permits still go to the next."""
    scripts.granted("ann")
    scripts.queued("ben")
    scripts.redis.execute_command("ACL", "SETUSER", "limited", "reset", "on", "nopass", "~*", "&*", "+@all", "-set")
    path = scripts.redis.connection_pool.connection_kwargs["path"]
    try:
        with Redis(unix_socket_path=path, username="limited", password="any") as client:
            assert [grant.who for grant in scripts.over(client).release("ann", tombstone_ms=60_000).mine] == ["ben"]
    finally:
        scripts.redis.execute_command("ACL", "DELUSER", "limited")
