"""What Redis answers when it cannot run a command just now: which answers say so, and how long they are ridden out."""

import asyncio

import pytest
from redis import exceptions
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, MasterDownError, ReadOnlyError, ResponseError, TryAgainError
from redis.exceptions import ConnectionError as RedisConnectionError

from aiolocks import QuorumError
from aiolocks._core.answers import NoPrimaryError, NotNowError, RidingOut, came_too_early, recognized, ride_out
from tests.support.cases import one_by_one
from tests.support.virtual import clock, gaps

BUSY = "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."

DEMOTED = "You can't write against a read only replica."


@one_by_one("error, kind, says", [
    (ResponseError(BUSY), NotNowError, BUSY),
    (ResponseError(BUSY.replace("SCRIPT", "FUNCTION")), NotNowError, BUSY.replace("SCRIPT", "FUNCTION")),
    (ResponseError("BUSY Redis is busy running a module command."), NotNowError, None),
    (ResponseError(BUSY.replace("Redis", "Valkey")), NotNowError, BUSY.replace("Redis", "Valkey")),
    (ResponseError("NOREPLICAS Not enough good replicas to write."), NotNowError, None),
    (TryAgainError("Multiple keys request"), NotNowError, "TRYAGAIN Multiple keys request"),
    (exceptions.ClusterDownError("The cluster is down"), NotNowError, "CLUSTERDOWN The cluster is down"),
    (ReadOnlyError(DEMOTED), NoPrimaryError, f"READONLY {DEMOTED}"),
    (ResponseError(f"Error running script: 8: -READONLY {DEMOTED}"), NoPrimaryError, f"READONLY {DEMOTED}"),
    (exceptions.BusyLoadingError("Redis is loading"), NoPrimaryError, "LOADING Redis is loading"),
    (MasterDownError("Link with MASTER is down"), NoPrimaryError, "MASTERDOWN Link with MASTER is down"),
])  # fmt: skip
def test_the_answer_of_an_unready_server_is_known(error: Exception, kind: type[Exception], says: str | None) -> None:
    """A server that is no primary looks like an outage, and its connection is left."""
    known = recognized(error)
    assert isinstance(known, kind)
    assert isinstance(known, NoPrimaryError) is isinstance(known, RedisConnectionError) is (kind is NoPrimaryError)
    assert came_too_early(known)
    assert str(known) == (says or str(error))
    assert recognized(known) is known


@one_by_one(
    "text",
    ["BUSYGROUP Consumer Group name already exists", "BUSYKEY Target key name already exists.", "ERR BUSY ", "BUSY"],
)
def test_other_answers_stay_what_they_are(text: str) -> None:
    error = ResponseError(text)
    assert recognized(error) is error


def test_what_came_too_early_is_known_by_its_cause() -> None:
    failed = RedisConnectionError(BUSY)
    assert recognized(failed) is failed
    failed.__cause__ = ResponseError(BUSY)
    assert isinstance(recognized(failed), NotNowError)
    error = QuorumError("too few", name="orders", outcomes={})
    assert not came_too_early(error)
    error.__cause__ = NotNowError(BUSY)
    assert came_too_early(error)


async def test_a_busy_server_is_ridden_out_until_it_answers() -> None:
    over = clock() + 3.0
    asked: list[float] = []

    async def ask() -> str:
        asked.append(clock())
        if clock() < over:
            raise NotNowError(BUSY)
        return "done"

    assert await ride_out(ask, clock, clock() + 10) == "done"
    assert over <= clock() <= over + 0.25
    assert gaps(asked)[:6] == [0.04, 0.08, 0.16, 0.25, 0.25, 0.25]


@pytest.mark.parametrize(("trouble", "seconds"), [(NotNowError(BUSY), 2), (RedisConnectionError("gone"), 0)])
async def test_a_busy_server_alone_is_ridden_out_until_just_before_a_bound(trouble: Exception, seconds: float) -> None:
    await asyncio.sleep(100)

    async def ask() -> None:
        raise trouble

    with pytest.raises(type(trouble)):
        await ride_out(ask, clock, 102)
    assert 100 + 0.99 * seconds <= clock() <= 100 + seconds


async def test_a_policy_of_the_user_s_counts_only_its_own_kind_of_trouble() -> None:
    early = [NotNowError(BUSY)] * 5
    troubles: list[Exception] = [*early, RedisConnectionError("gone"), *early]
    heard: list[Exception] = []

    async def ask() -> str:
        if troubles:
            raise troubles.pop()
        return "done"

    async def failed(error: Exception) -> None:
        heard.append(error)

    policy = RidingOut(Retry(NoBackoff(), 1), clock)
    async with asyncio.timeout(10):
        assert await policy.call_with_retry(ask, failed) == "done"
    assert len(heard) == 11
    troubles += [RedisConnectionError("gone")] * 2
    with pytest.raises(RedisConnectionError):
        await policy.call_with_retry(ask, failed)


async def test_a_wrong_password_is_no_outage() -> None:
    """Whoever made a mistake in a Cluster's URL heard of it after ten seconds."""
    tried = 0

    async def ask() -> None:
        nonlocal tried
        tried += 1
        raise RedisConnectionError("gone") if tried < 3 else AuthenticationError("invalid username-password pair")

    async def failed(error: Exception) -> None:
        pass

    with pytest.raises(AuthenticationError):
        await RidingOut(Retry(NoBackoff(), 0), clock, outages=True).call_with_retry(ask, failed)
    assert tried == 3
