"""`aiolocks release NAME`: holders are told and stop; by force they end at once; `run` stops its command."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from aiolocks import HierarchicalLock, LeaseLostError, LockManager, MultiLock, RLock, RWLock, Semaphore
from aiolocks.cli import main
from tests.support.children import family
from tests.support.kinds import complete, kinds_where
from tests.support.lateness import SLACK
from tests.support.servers import RedisServer

pytestmark = [pytest.mark.redis, pytest.mark.asyncio, pytest.mark.leaves_residue]

REPOSITORY = Path(__file__).parents[2]


@pytest_asyncio.fixture
async def locks(own_server: RedisServer) -> AsyncIterator[LockManager]:
    async with LockManager.from_url(own_server.url, ttl=2) as locks:
        yield locks


KINDS = kinds_where(lambda kind: kind.leased and not kind.quorum)
"""Without the Redlock: it is on several servers, so the command says to ask them by `revoke()`."""


def all_of(locks: LockManager) -> dict[str, Any]:
    client = locks.client
    return complete(
        {
            "lock": locks.lock("x"),
            "rlock": RLock(client, "x", ttl=2),
            "semaphore": Semaphore(client, "x", 3, ttl=2),
            "multilock": MultiLock(client, ["x", "y"], ttl=2),
            "rwlock": RWLock(client, "x", ttl=2).read,
            "hierarchy": HierarchicalLock(client, "x", ttl=2).write,
        },
        KINDS,
    )


async def release(url: str, *arguments: str) -> int:
    return await asyncio.to_thread(main, ["release", "x", "--url", url, *arguments])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("force", [False, True], ids=["", "force"])
async def test_the_holder_is_told_and_the_name_is_free(
    locks: LockManager, own_server: RedisServer, kind: str, force: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    acquirable = all_of(locks)[kind]
    with pytest.raises(LeaseLostError):
        async with acquirable as lease:
            assert await release(own_server.url, "--dry-run") == 0
            assert "would " in capsys.readouterr().out
            assert lease.held
            releasing = asyncio.ensure_future(release(own_server.url, *(["--force"] if force else [])))
            await asyncio.sleep(2 * SLACK)
    assert await releasing == 0
    printed = capsys.readouterr().out
    assert "released: 1 holder gone after" in printed
    assert ("two may be at work" in printed) is force
    assert lease.token[11:] not in printed
    assert await release(own_server.url) == 1
    assert capsys.readouterr().out == "x is not held\n"


@pytest.mark.parametrize("limit", ["abc", "9" * 5000, "-1", "²"])
async def test_what_another_kind_has_kept_of_the_name_may_be_malformed(
    locks: LockManager, own_server: RedisServer, limit: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lease = await locks.lock("x").acquire()
    await locks.client.hset("aiolocks:semaphore:{x}:meta", "limit", limit)
    assert await release(own_server.url, "--force") == 0
    assert "released: 1 holder gone after" in capsys.readouterr().out
    await lease.release()


async def test_of_several_kinds_one_must_be_named(
    locks: LockManager, own_server: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    primitives = all_of(locks)
    lease, other = await primitives["lock"].acquire(), await primitives["rlock"].acquire()
    assert await release(own_server.url) == 2
    assert "say which by --kind" in capsys.readouterr().err
    assert await release(own_server.url, "--kind", "lock", "--force", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["fencing_token"] for one in told["released"]] == [lease.fencing_token]
    assert await other.release()
    await lease.release()


@pytest.mark.parametrize("kind", ["lock", "semaphore"])
async def test_what_min_hold_alone_keeps_is_freed_and_said_to_be_so(
    locks: LockManager, own_server: RedisServer, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """ "0 holders gone" would say nothing: no one is at work, and until when it would have stayed is known."""
    acquirable: Any = locks.lock("x", min_hold=60) if kind == "lock" else locks.semaphore("x", 1, min_hold=60)
    released_at = datetime.now(UTC)
    async with acquirable:
        pass
    until = r"not held, but kept by min_hold, for \d\d s more, until ([-\d]+ [:\d]+) UTC\n"
    for arguments, begins in ((["--dry-run"], "would free it at once: "), ([], "freed: ")):
        assert await release(own_server.url, *arguments) == 0
        found = re.search(f"(?m)^{begins}{until}", printed := capsys.readouterr().out)
        assert found, printed
        assert abs(datetime.fromisoformat(f"{found[1]}+00:00") - released_at - timedelta(seconds=60)).seconds < 10
        assert "holders gone" not in printed
    async with acquirable.hold(timeout=0):
        pass
    assert await release(own_server.url, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["released"], told["told"][:15]) == ([], "freed: not held")


async def test_a_holder_beside_what_min_hold_keeps_is_told_of_by_itself(
    locks: LockManager, own_server: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    async with locks.semaphore("x", 2, min_hold=60):
        pass
    lease = await locks.semaphore("x", 2, renew=False).acquire()
    assert await release(own_server.url, "--dry-run") == 0
    assert re.search(r"it ends in [12]\.\d s at the latest", capsys.readouterr().out)
    assert await release(own_server.url) == 0
    assert "released: 1 holder gone after" in (printed := capsys.readouterr().out)
    assert "; freed: not held, but kept by min_hold, for " in printed
    assert not lease.held


async def test_what_was_handed_off_and_not_adopted_is_freed(
    locks: LockManager, own_server: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    await (await locks.lock("x", ttl=60).acquire()).hand_off()
    assert await release(own_server.url) == 0
    assert "freed: handed off, and not adopted, for " in capsys.readouterr().out


async def test_release_waits_for_a_holder_that_ignores_it_no_longer_than_its_time_out(
    locks: LockManager, own_server: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    lease = await locks.lock("x", ttl=60, renew=False).acquire()
    assert await release(own_server.url, "--timeout", "0.2") == 1
    assert "still held after 0.2 s" in capsys.readouterr().out
    await lease.release()


async def test_run_stops_its_command_and_the_next_one_begins(
    locks: LockManager, own_server: RedisServer, tmp_path: Path
) -> None:
    """What it may take: 0.37 ttl until the renewal is refused, and 5 s between TERM and KILL, within the lease."""
    environment = {**os.environ, "AIOLOCKS_URL": own_server.url, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-m", "aiolocks", "run", "x", "--ttl", "3", "--", "sh", "-c"]
    polite = "trap 'sleep 0.3; date +%s%N; exit' TERM; echo begun; while :; do sleep 0.02; done"
    with family(*command, polite, env=environment, stderr=subprocess.PIPE) as first:
        assert first.stdout is not None
        assert await asyncio.to_thread(first.stdout.readline) == "begun\n"
        with family(*command, "date +%s%N", env=environment) as second:  # not before: it might be granted first
            while (await locks.lock("x").statistics()).waiting < 1:
                await asyncio.sleep(0.01)
            assert await release(own_server.url) == 0
            ended, errors = await asyncio.to_thread(first.communicate, timeout=10 * SLACK)
            began, _ = await asyncio.to_thread(second.communicate, timeout=10 * SLACK)
    assert first.returncode == 74
    assert "revoked" in errors
    assert int(ended) < int(began)
