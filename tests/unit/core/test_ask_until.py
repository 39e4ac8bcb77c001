"""What is asked until it is answered, in virtual time: until when, and what is told in the end."""

import asyncio
from itertools import pairwise

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ReadOnlyError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from aiolocks._core.answers import REPLY_TIMEOUT, NotNowError, as_the_client_would
from aiolocks._core.timing import retry_delay
from aiolocks._grantors.session import Session
from tests.support.answering import SILENCE, Answering, insist
from tests.support.pipelines import pipeline_in
from tests.support.virtual import clock

GONE = RedisConnectionError("gone")

BUSY = ResponseError("BUSY Redis is busy running a script.")


async def test_a_question_is_repeated_until_just_before_its_time_and_not_beyond() -> None:
    await asyncio.sleep(100)
    server = Answering(lambda asked: GONE)
    grantor = server.grantor()
    with grantor.context.in_use(), pytest.raises(RedisConnectionError, match="gone"):
        await insist(grantor, until=130)
    times = server.times("lock_statistics")
    expected = [100.0]
    while (pause := retry_delay(130 - expected[-1], len(expected))) + expected[-1] < 130:
        expected.append(expected[-1] + pause)
    assert times == pytest.approx(expected)
    assert 129.9 < times[-1] < 130
    assert all(later > sooner for sooner, later in pairwise(times))
    await server.close()


@pytest.mark.parametrize(
    "trouble", [GONE, BUSY, ReadOnlyError("You can't write against a read only replica."), SILENCE]
)
async def test_it_is_asked_again_after_what_that_may_mend_and_the_answer_returned(trouble: object) -> None:
    troubles = [trouble] * 3
    server = Answering(lambda asked: troubles.pop() if troubles else [1, 1, 0, 7, 1, 0, 0, 0])
    grantor = server.grantor()
    with grantor.context.in_use():
        assert await insist(grantor, until=60) == [1, 1, 0, 7, 1, 0, 0, 0]
    assert len(server.asked) == 4
    await server.close()


async def test_a_refusal_is_told_at_once() -> None:
    server = Answering(lambda asked: ResponseError("OOM command not allowed"))
    grantor = server.grantor()
    with grantor.context.in_use(), pytest.raises(ResponseError, match="OOM"):
        await insist(grantor, until=60)
    assert len(server.asked) == 1
    await server.close()


@pytest.mark.parametrize(
    ("said", "told", "seconds"),
    [(GONE, RedisConnectionError, 0), (BUSY, NotNowError, REPLY_TIMEOUT), (SILENCE, RedisTimeoutError, 4)],
    ids=["gone", "busy", "silent"],
)
async def test_a_question_is_repeated_as_often_as_the_client_would_for_ten_seconds_at_most(
    said: object, told: type[Exception], seconds: float
) -> None:
    server = Answering(lambda asked: said)
    grantor = server.grantor()
    with grantor.context.in_use(), pytest.raises(told):
        await as_the_client_would(
            pipeline_in(grantor.context).retry_policy(), lambda: grantor.ask_once("statistics", (0,), patience=1)
        )
    assert clock() == seconds
    assert len(server.asked) == 4 or told is NotNowError
    await server.close()


async def test_what_is_not_answered_by_then_says_so() -> None:
    async def never() -> None:
        await asyncio.sleep(3600)

    session = Session.of(Answering(lambda asked: 1))
    with pytest.raises(RedisTimeoutError, match="did not answer within 10 s"):
        await as_the_client_would(pipeline_in(session.context).retry_policy(), never)
    assert clock() == REPLY_TIMEOUT
    session.close()
