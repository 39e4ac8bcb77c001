"""`aiolocks release`: holders are told and stop; by force they end at once. `resize`, `pause`: at once, for all."""

import asyncio
import contextlib
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio

from aiolocks import HierarchicalLock, Lease, LeaseLostError, LockManager, MultiLock, RLock, RWLock, Semaphore
from tests.support.children import family
from tests.support.kinds import complete, kinds_where
from tests.support.lateness import SLACK
from tests.support.primitives import enter, queued, until
from tests.support.servers import RedisServer
from tests.support.workers import environment
from tests.surface.commands import Command

pytestmark = [pytest.mark.redis, pytest.mark.leaves_residue]


@pytest_asyncio.fixture
async def locks(own_server: RedisServer) -> AsyncIterator[LockManager]:
    async with LockManager.from_url(own_server.url, ttl=2) as locks:
        yield locks


RELEASED = "released: 1 holder gone after"

KINDS = kinds_where(lambda kind: kind.leased and not kind.quorum)
"""Without the Redlock: it is on several servers, so the command says to ask them by `revoke()`."""


def all_of(locks: LockManager) -> dict[str, Any]:
    client = locks.client
    return complete({
        "lock": locks.lock("x"), "rlock": RLock(client, "x", ttl=2), "semaphore": Semaphore(client, "x", 3, ttl=2),
        "multilock": MultiLock(client, ["x", "y"], ttl=2), "rwlock": RWLock(client, "x", ttl=2).read,
        "hierarchy": HierarchicalLock(client, "x", ttl=2).write,
    }, KINDS)  # fmt: skip


Release = Callable[..., Awaitable[tuple[int, str]]]


@pytest.fixture
def release(command: Command) -> Release:
    """Release "x"; return the status, and what was said."""

    async def run(*arguments: str) -> tuple[int, str]:
        said = await command("release", "x", *arguments)
        return said.status, said.out + said.err

    return run


@pytest.mark.rest
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("force", [False, True], ids=["", "force"])
async def test_holders_stop_and_the_name_is_free(locks: LockManager, release: Release, kind: str, force: bool) -> None:
    acquirable = all_of(locks)[kind]
    with pytest.raises(LeaseLostError, match=r"revoked: deploy 1\.7"):
        async with acquirable as lease:
            with pytest.raises(SystemExit):
                await release("--reason", "x" * 201)
            status, printed = await release("--dry-run")
            assert (status, lease.held) == (0, True)
            assert "would " in printed
            releasing = asyncio.ensure_future(release("--reason", "deploy 1.7", *(["--force"] if force else [])))
            await asyncio.sleep(2 * SLACK)
    status, printed = await releasing
    assert (status, RELEASED in printed) == (0, True)
    assert ("two holders may work" in printed) is force
    assert lease.token[11:] not in printed
    assert await release() == (1, "x is not held\n")


@pytest.mark.rest
@pytest.mark.parametrize("kind", ["once", "election"])
async def test_the_function_of_a_loop_is_stopped(locks: LockManager, release: Release, kind: str) -> None:
    """A leader stands again, and is elected with a larger fencing token."""
    terms: list[int] = []

    async def works(*lease: Lease) -> None:
        terms.extend(each.fencing_token for each in lease)
        if len(terms) <= 1:
            await asyncio.sleep(60)

    loop: Any = locks.once("x", keep=60) if kind == "once" else locks.election("x")
    running = asyncio.ensure_future(loop.run(works))
    await until(loop.holders if kind == "once" else loop.leader)
    status, printed = await release()
    assert (status, RELEASED in printed) == (0, True)
    with pytest.raises(LeaseLostError, match="revoked") if kind == "once" else contextlib.nullcontext():
        await asyncio.wait_for(running, 5)
    assert len(set(terms)) == (0 if kind == "once" else 2)
    assert terms == sorted(terms)


@pytest.mark.parametrize("limit", ["abc", "9" * 5000, "-1", "²"])
async def test_what_another_kind_keeps_may_be_malformed(locks: LockManager, release: Release, limit: str) -> None:
    lease = await locks.lock("x").acquire()
    await locks.client.hset("aiolocks:semaphore:{x}:meta", "limit", limit)
    status, printed = await release("--force")
    assert (status, RELEASED in printed) == (0, True)
    await lease.release()


async def test_of_several_kinds_one_must_be_named(locks: LockManager, release: Release) -> None:
    primitives = all_of(locks)
    lease, other = await primitives["lock"].acquire(), await primitives["rlock"].acquire()
    status, said = await release()
    assert status == 2
    assert "say which by --kind" in said
    status, said = await release("--kind", "lock", "--force", "--json")
    assert status == 0
    assert [one["fencing_token"] for one in json.loads(said)["released"]] == [lease.fencing_token]
    assert await other.release()
    await lease.release()


@pytest.mark.parametrize("kind", ["lock", "semaphore"])
async def test_what_min_hold_alone_keeps_is_freed_with_a_word(locks: LockManager, release: Release, kind: str) -> None:
    """ "0 holders gone" would say nothing: no one is at work, and until when it would have stayed is known."""
    acquirable: Any = locks.lock("x", min_hold=60) if kind == "lock" else locks.semaphore("x", 1, min_hold=60)
    released_at = datetime.now(UTC)
    await enter(acquirable)
    until = r"not held, but kept by min_hold, for \d\d s more, until ([-\d]+ [:\d]+) UTC\n"
    for arguments, begins in ((["--dry-run"], "would free it at once: "), ([], "freed: ")):
        status, printed = await release(*arguments)
        found = re.search(f"(?m)^{begins}{until}", printed)
        assert found, printed
        assert abs(datetime.fromisoformat(f"{found[1]}+00:00") - released_at - timedelta(seconds=60)).seconds < 10
        assert (status, "holders gone" in printed) == (0, False)
    await enter(acquirable.hold(timeout=0))
    status, printed = await release("--json")
    told = json.loads(printed)
    assert (status, told["released"], told["told"][:15]) == (0, [], "freed: not held")


@pytest.mark.rest
async def test_a_holder_beside_what_min_hold_keeps_is_told_of_by_itself(locks: LockManager, release: Release) -> None:
    await enter(locks.semaphore("x", 2, min_hold=60))
    lease = await locks.semaphore("x", 2, renew=False).acquire()
    status, printed = await release("--dry-run")
    assert status == 0
    assert re.search(r"it ends in [12]\.\d s at the latest", printed)
    status, printed = await release()
    assert (status, RELEASED in printed) == (0, True)
    assert "; freed: not held, but kept by min_hold, for " in printed
    assert not lease.held


async def test_a_lease_handed_off_and_not_adopted_is_freed(locks: LockManager, release: Release) -> None:
    await (await locks.lock("x", ttl=60).acquire()).hand_off()
    status, printed = await release()
    assert status == 0
    assert "freed: handed off, and not adopted, for " in printed


async def test_release_waits_for_a_stubborn_holder_for_its_time_out(locks: LockManager, release: Release) -> None:
    lease = await locks.lock("x", ttl=60, renew=False).acquire()
    status, printed = await release("--timeout", "0.2")
    assert status == 1
    assert "still held after 0.2 s" in printed
    await lease.release()


@pytest.mark.rest
async def test_run_ends_its_command_for_the_next(locks: LockManager, own_server: RedisServer, release: Release) -> None:
    """What it may take: 0.37 ttl until the renewal is refused, and 5 s between TERM and KILL, within the lease."""
    env = environment({"AIOLOCKS_URL": own_server.url})
    command = [sys.executable, "-m", "aiolocks", "run", "x", "--ttl", "3", "--", "sh", "-c"]
    polite = "trap 'sleep 0.3; date +%s%N; exit' TERM; echo begun; while :; do sleep 0.02; done"
    with family(*command, polite, env=env, stderr=subprocess.PIPE) as first:
        assert first.stdout is not None
        assert await asyncio.to_thread(first.stdout.readline) == "begun\n"
        with family(*command, "date +%s%N", env=env) as second:  # not before: it might be granted first
            await queued(locks.lock("x"), 1)
            assert (await release())[0] == 0
            ended, errors = await asyncio.to_thread(first.communicate, timeout=10 * SLACK)
            began, _ = await asyncio.to_thread(second.communicate, timeout=10 * SLACK)
    assert first.returncode == 74
    assert "revoked" in errors
    assert int(ended) < int(began)


async def test_the_limit_is_in_force_at_once(locks: LockManager, command: Command) -> None:
    async with locks.semaphore("scraper", 1):
        waiting = asyncio.create_task(locks.semaphore("scraper", 1).acquire(timeout=10))
        await queued(locks.semaphore("scraper", 1), 1)
        said = await command("resize", "scraper", "2")
        assert await (await waiting).release()
    assert (said.status, said.out) == (0, "semaphore scraper: the limit is 2; it was 1\n")


async def test_a_pin_is_set_kept_shown_and_gone(locks: LockManager, command: Command) -> None:
    shown = []
    for arguments in (("2", "--pin"), ("3",), ("4", "--unpin"), ("5",)):
        told = (await command("resize", "scraper", *arguments, "--json")).json()
        shown.append((told["before"], told["limit"], told["pinned"]))
    assert shown == [(None, 2, True), (2, 3, True), (3, 4, False), (4, 5, False)]
    await command("resize", "scraper", "2", "--pin")
    async with locks.semaphore("scraper", 9):
        assert "limit 2 (pinned)" in (await command("show", "scraper")).out


async def test_a_pause_is_shown_until_it_is_ended(locks: LockManager, command: Command) -> None:
    """As none of its holders, in every view; also of a name that was never used."""

    async def told(*arguments: str, status: int = 0) -> str:
        said = await command(*arguments)
        assert said.status == status
        return said.out

    async with locks.semaphore("scraper", 3).hold(permits=2):
        assert await told("pause", "scraper", "60") == "semaphore scraper: paused for 60 s\n"
        assert await told("pause", "another", "10800") == "semaphore another: paused for 3 h\n"
        assert re.search("paused (59|60) s, 2 of 3 permits, ", await told("ls", "scraper"))
        for view in (["ls"], ["watch", "--once"]):
            assert re.search(r"semaphore +- +- +0  paused 3 h +another\n", await told(*view))
        shown = await told("show", "scraper")
        assert re.match("semaphore scraper: 1 held, 0 waiting, limit 3, paused for (59|60) s\n  held", shown)
        assert len(shown.splitlines()) == 2
        [seen] = json.loads(await told("show", "scraper", "--json"))
        assert (seen["held"], len(seen["holders"])) == (1, 1)
        assert 58 < seen["paused"] <= 60
        assert "resumed; its pause had" in await told("resume", "scraper")
    assert json.loads(await told("resume", "another", "--json"))["resumed"] is True
    assert await told("resume", "another", status=1) == "semaphore another: it is not paused\n"
    assert json.loads(await told("pause", "another", "0.001", "--json")) == {
        "kind": "semaphore", "name": "another", "paused": 0.001
    }  # fmt: skip


async def test_a_rate_is_paused_under_a_name_that_is_no_semaphore(locks: LockManager, command: Command) -> None:
    limiter = locks.rate_limiter("api", 5, per=0.5)
    await limiter.acquire()
    assert (await command("pause", "api", "60")).out == "rate api: paused for 60 s\n"
    assert not await limiter.try_acquire()
    assert re.search("paused (59|60) s", (await command("ls", "api")).out)
    assert (await command("pause", "api", "60", "--kind", "semaphore")).status == 0
    said = await command("resume", "api")
    assert (said.status, "several kinds" in said.err) == (2, True)
    assert [(await command("resume", "api", "--kind", kind)).status for kind in ("semaphore", "rate")] == [0, 0]
    assert await limiter.try_acquire()


async def test_keys_of_another_prefix_are_others(locks: LockManager, command: Command) -> None:
    assert (await command("resize", "scraper", "2", "--prefix", "theirs:", "--kind=semaphore")).status == 0
    async with locks.semaphore("scraper", 9, prefix="theirs:"), locks.semaphore("scraper", 8):
        limits = [
            (await locks.semaphore("scraper", None, prefix=p).statistics()).limit for p in ("theirs:", "aiolocks:")
        ]
    assert limits == [9, 8]


async def test_a_key_of_another_type_is_one_line(locks: LockManager, command: Command) -> None:
    await locks.client.set("aiolocks:semaphore:{scraper}", "text")
    said = await command("resize", "scraper", "2")
    assert (said.status, len(said.err.splitlines())) == (2, 1)
    await locks.client.delete("aiolocks:semaphore:{scraper}")
