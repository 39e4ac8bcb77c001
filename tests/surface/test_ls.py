"""`aiolocks ls` and `aiolocks show`: every kind, holders and waiters, odd names, many names, and no token."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any
from unicodedata import combining, east_asian_width

import pytest
from redis.asyncio import Redis

from aiolocks import HierarchicalLock, LockManager, MultiLock, Redlock, RLock, RWLock, Semaphore
from aiolocks.cli import main
from aiolocks.cli._ls import fitted
from tests.support.kinds import kinds_where
from tests.support.lateness import SLACK, assert_within
from tests.support.servers import RedisServer

pytestmark = [pytest.mark.redis, pytest.mark.leaves_residue]

Capsys = pytest.CaptureFixture[str]
ODD = ["a:b", "{x}", "100%", "%7B", "}{", "new\nline", "snow ☃", "queue", "a}:queue", "*", "[a]"]


def ask(capsys: Capsys, *arguments: str) -> tuple[int, Any]:
    status = main([*arguments, "--json"])
    return status, json.loads(capsys.readouterr().out)


async def in_a_thread(capsys: Capsys, *arguments: str) -> tuple[int, Any]:
    """Ask while this loop keeps its leases."""
    return await asyncio.to_thread(ask, capsys, *arguments)


@pytest.mark.asyncio
async def test_every_kind_is_listed_with_its_holders_and_waiters(own_server: RedisServer, capsys: Capsys) -> None:
    url = own_server.url
    async with AsyncExitStack() as stack:
        locks, others = [await stack.enter_async_context(LockManager.from_url(url, ttl=60)) for _ in range(2)]
        client = locks.client
        lease = await stack.enter_async_context(locks.lock("orders:42"))
        await stack.enter_async_context(RLock(client, "again"))
        await stack.enter_async_context(Semaphore(client, "scraper", 5).hold(permits=2))
        await stack.enter_async_context(Semaphore(others.client, "scraper", 5).hold(permits=1))
        await stack.enter_async_context(MultiLock(client, ["one", "two"]))
        rw = RWLock(client, "price")
        await stack.enter_async_context(rw.read)
        await stack.enter_async_context(HierarchicalLock(client, "shop/orders/4:2").write)
        await stack.enter_async_context(Redlock([client], "voted"))
        waiting = [asyncio.ensure_future(others.lock("orders:42").acquire()) for _ in range(2)]
        waiting.append(asyncio.ensure_future(RWLock(others.client, "price").write.acquire()))
        while (await locks.lock("orders:42").statistics()).waiting < 2 or (await rw.read.statistics()).waiting < 1:
            await asyncio.sleep(0.01)

        status, found = await in_a_thread(capsys, "ls", "--url", url)
        assert status == 0
        assert {(one["kind"], one["name"]): (one["held"], one["waiting"]) for one in found} == {
            ("lock", "orders:42"): (1, 2),
            ("rlock", "again"): (1, 0),
            ("semaphore", "scraper"): (2, 0),
            ("multilock", "one"): (1, 0),
            ("multilock", "two"): (1, 0),
            ("rwlock", "price"): (1, 1),
            ("hierarchy", "shop"): (1, 0),
            ("hierarchy", "shop/orders"): (1, 0),
            ("hierarchy", "shop/orders/4:2"): (1, 0),
            ("redlock", "voted"): (1, 0),
        }
        assert {one["kind"] for one in found} == set(kinds_where())
        by_name = {one["name"]: one for one in found}
        (holder,) = by_name["orders:42"]["holders"]
        assert (holder["fencing_token"], holder["session"]) == (lease.fencing_token, lease.token[:11])
        assert (holder["host"], holder["pid"]) == (socket.gethostname(), os.getpid())
        assert 0 <= by_name["orders:42"]["seconds"] < 60
        assert 0 < by_name["orders:42"]["remaining"] <= 60
        assert by_name["scraper"]["limit"] == 5
        assert sorted(one["permits"] for one in by_name["scraper"]["holders"]) == [1, 2]
        assert by_name["price"]["holders"][0]["mode"] == "read"
        assert by_name["shop"]["holders"][0]["mode"] == "intent-write"

        _, (shown,) = await in_a_thread(capsys, "show", "orders:42", "--url", url)
        first, second = shown["waiters"]
        assert first["seconds"] >= second["seconds"] >= 0
        assert first["session"] == second["session"] != shown["holders"][0]["session"]
        _, (shown,) = await in_a_thread(capsys, "show", "price", "--kind", "rwlock", "--url", url)
        assert [one["mode"] for one in shown["waiters"]] == ["write"]

        for arguments in (["ls"], ["show", "orders:42"], ["show", "scraper"], ["ls", "--json"]):
            await asyncio.to_thread(main, [*arguments, "--url", url])
            printed = capsys.readouterr().out
            assert "orders:42" in printed or "scraper" in printed
            assert lease.token[11:] not in printed
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)


@pytest.mark.asyncio
async def test_odd_names_are_told_as_they_were_given(own_server: RedisServer, capsys: Capsys) -> None:
    url = own_server.url
    async with AsyncExitStack() as stack:
        for prefix in ("aiolocks:", "[my]*app?"):
            locks = await stack.enter_async_context(LockManager.from_url(url, ttl=60, prefix=prefix))
            for name in ODD:
                await stack.enter_async_context(locks.lock(name))
        for prefix in ("aiolocks:", "[my]*app?"):
            status, found = await in_a_thread(capsys, "ls", "--url", url, "--prefix", prefix)
            assert (status, sorted(one["name"] for one in found)) == (0, sorted(ODD))
            for name in ODD:
                status, shown = await in_a_thread(capsys, "show", name, "--url", url, "--prefix", prefix)
                assert (status, [one["name"] for one in shown]) == (0, [name])
        await asyncio.to_thread(main, ["ls", "--url", url])
        printed = capsys.readouterr().out
        assert "new\\nline\n" in printed
        assert len(printed.splitlines()) == 1 + len(ODD)


HOSTILE = "row 500\r\nof \x1b[2J\x1b]0;pwned\x07 \u202e\ud800" + "界" * 150


@pytest.mark.asyncio
async def test_notes_are_shown_and_hostile_ones_do_no_harm(own_server: RedisServer, capsys: Capsys) -> None:
    url = own_server.url
    async with AsyncExitStack() as stack:
        locks = await stack.enter_async_context(LockManager.from_url(url, ttl=60, holder="billing"))
        await stack.enter_async_context(locks.lock("reports:may", note="May's report"))
        await stack.enter_async_context(locks.lock("hostile", note=HOSTILE))
        await stack.enter_async_context(locks.lock("invalid", note="x"))
        waiting = [asyncio.ensure_future(locks.lock("hostile", note=f"waits {at}").acquire()) for at in range(2)]
        await asyncio.sleep(0.7)
        async for key in locks.client.scan_iter("aiolocks:session:*"):
            for field, value in (await locks.client.hgetall(key)).items():
                if value == b"x":
                    await locks.client.hset(key, field, b"\xff\x1b[2J\xfe")
        status, found = await in_a_thread(capsys, "ls", "--url", url)
        noted = {one["name"]: one["holders"][0]["note"] for one in found}
        assert (status, noted["reports:may"]) == (0, "May's report")
        assert noted["hostile"] == HOSTILE.replace("\ud800", "?")
        assert noted["invalid"] == "\ufffd\x1b[2J\ufffd"
        status, (shown,) = await in_a_thread(capsys, "show", "hostile", "--url", url)
        assert [(one["position"], one["note"]) for one in shown["waiters"]] == [(0, "waits 0"), (1, "waits 1")]
        for command in (["ls"], ["show", "hostile"], ["show", "invalid"], ["watch", "--once"]):
            await asyncio.to_thread(main, [*command, "--url", url])
            printed = capsys.readouterr().out
            assert printed.replace("\n", "").isprintable(), command
            assert "row 500\\r\\nof \\x1b[2J" in printed or command == ["show", "invalid"]
            assert len(printed.splitlines()) == {"ls": 4, "show": 4 if "hostile" in command else 2}.get(command[0], 5)
        await asyncio.to_thread(main, ["ls", "reports:*", "--url", url])
        assert capsys.readouterr().out.splitlines()[1].endswith(" reports:may  May's report")
        await asyncio.to_thread(main, ["show", "reports:may", "--url", url])
        assert capsys.readouterr().out.endswith("  note: May's report\n")
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)


@pytest.mark.parametrize("text", ["short", "界" * 40, "e\u0301" * 40, "a界" * 20, "", "界" * 16, "x" * 32])
def test_a_column_is_as_wide_as_a_terminal_shows_it(text: str) -> None:
    shown = fitted(text, 32)
    columns = sum(0 if combining(sign) else 2 if east_asian_width(sign) in "WF" else 1 for sign in shown)
    assert columns == 32
    assert shown.rstrip() == text or shown.rstrip().endswith("…")


def test_a_name_that_is_not_held_is_not_there_and_an_empty_list_says_where(server: RedisServer, capsys: Capsys) -> None:
    url = ("--url", server.tcp_url, "--prefix", "nothing:")
    assert ask(capsys, "ls", *url) == (0, [])
    assert ask(capsys, "show", "nothing", *url) == (1, [])
    assert main(["show", "nothing", *url]) == 1
    assert capsys.readouterr().out == "nothing is neither held nor awaited\n"
    place = f"127.0.0.1:{server.port}"
    for arguments, where in (([], ""), (["a:*", "--kind", "rwlock"], ", names a:*, kind rwlock")):
        assert main(["ls", *arguments, *url]) == 0
        said = f"aiolocks ls: nothing is held or awaited at {place} (prefix nothing:{where})\n"
        assert capsys.readouterr() == ("", said)


@pytest.mark.asyncio
async def test_patterns_kinds_and_strangers_keys(own_server: RedisServer, capsys: Capsys) -> None:
    url = own_server.url
    async with LockManager.from_url(url, ttl=60) as locks:
        async with locks.lock("orders:1"), locks.lock("carts:1"), locks.semaphore("orders:1", 2):
            for key in ("aiolocks:lock:{odd", "aiolocks:else:{x}", "aiolocks:lock:{list}", "aiolocks:semaphore:{text}"):
                await locks.client.rpush(key, "1")
            await locks.client.set("aiolocks:rlock:{x}", "of another kind")
            _, found = await in_a_thread(capsys, "ls", "orders:*", "--url", url)
            assert [(one["kind"], one["name"]) for one in found] == [("lock", "orders:1"), ("semaphore", "orders:1")]
            _, found = await in_a_thread(capsys, "ls", "--kind", "lock", "--url", url)
            assert sorted(one["name"] for one in found) == ["carts:1", "orders:1"]


@pytest.mark.asyncio
async def test_of_a_rate_the_starts_are_shown_and_no_holders(own_server: RedisServer, capsys: Capsys) -> None:
    url = own_server.url
    async with LockManager.from_url(url) as locks:
        await locks.rate_limiter("api", 20, per=60).acquire(cost=3)
        await locks.rate_limiter("api", 20, per=60).acquire()
        await asyncio.to_thread(main, ["ls", "--url", url])
        (_, row) = capsys.readouterr().out.splitlines()
        assert "4 of 20 starts used" in row
        await asyncio.to_thread(main, ["show", "api", "--url", url])
        assert capsys.readouterr().out == "rate api: 4 starts used, 0 waiting, limit 20\n"
        assert await asyncio.to_thread(main, ["release", "api", "--url", url]) == 2
        assert "holds nothing" in capsys.readouterr().err


async def commands(client: Redis) -> int:
    return int((await client.info("stats"))["total_commands_processed"])


FIRST_LINES = "import sys\nfrom aiolocks.cli import main\nsys.exit(main(sys.argv[1:]))"


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.asyncio
async def test_ten_thousand_are_listed_as_they_are_found_and_no_command_takes_long(
    own_server: RedisServer,
) -> None:
    async with Redis.from_url(own_server.url) as client:
        await client.config_set("slowlog-log-slower-than", 20_000 * int(SLACK))
        locks = LockManager(client, ttl=100, renew=False)
        await asyncio.gather(*(locks.lock(f"order:{number}").acquire() for number in range(10_000)))
        await client.slowlog_reset()
        begun = await commands(client)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", FIRST_LINES, "ls", "--url", own_server.url, stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        await process.stdout.readline()
        await process.stdout.readline()
        first = await commands(client) - begun
        rest = await process.stdout.read()
        assert await process.wait() == 0
        assert rest.count(b"\n") == 9_999
        assert first < 0.7 * (await commands(client) - begun)  # while nobody reads on, it asks no further
        slowest = max((command["duration"] for command in await client.slowlog_get(10)), default=0) / 1e6
        assert_within(slowest, SLACK * 0.02, "a command kept the server")


@pytest.mark.parametrize("command", ["ls", "show x", "release x", "watch --once"])
def test_the_url_of_one_node_of_a_cluster_is_refused_and_the_clusters_is_named(
    command: str, servers: Callable[..., RedisServer], capsys: Capsys
) -> None:
    node = servers(options={"cluster-enabled": "yes"})
    url = f"redis://127.0.0.1:{node.port}"
    assert main([*command.split(), "--url", url]) == 2
    printed = capsys.readouterr()
    assert "one node of a Cluster: give --url redis+cluster://HOST:PORT" in printed.err
    assert printed.out == ""


async def wait_in(redis: Redis, name: str, sessions: int, waiters: int) -> None:
    """Have so many *sessions* wait for *name*, with so many *waiters* each, as the scripts write them down."""
    base = f"aiolocks:lock:{{{name}}}"
    pipeline: Any = redis.pipeline(transaction=False)
    pipeline.set(base, "t" * 33 + " 1", px=60_000)
    for session in range(sessions):
        known_as = f"s{session:010}"
        line = {f"{known_as}{number:022} 60000 1": number + 1 for number in range(waiters)}
        pipeline.zadd(f"{base}:queue", {known_as: session + 1})
        pipeline.zadd(f"{base}:q:{known_as}", line)
    await pipeline.execute()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("sessions", "waiters", "in_ls", "heading", "listed", "more"),
    [
        (1, 3000, "3000", "3000 waiting", 1000, "and 2000 more"),
        (150, 2, "300", "300 waiting", 300, ""),
        (600, 1, "500+", "at least 500 waiting", 500, ""),
    ],
    ids=["one session", "many sessions", "too many sessions"],
)
async def test_all_waiters_are_counted_or_the_count_is_called_a_lower_bound(
    sessions: int, waiters: int, in_ls: str, heading: str, listed: int, more: str, redis: Redis, redis_url: str,
    capsys: Capsys,
) -> None:  # fmt: skip
    await wait_in(redis, "orders:42", sessions, waiters)
    assert await asyncio.to_thread(main, ["ls", "--url", redis_url]) == 0
    assert in_ls in capsys.readouterr().out.splitlines()[-1].split()
    assert await asyncio.to_thread(main, ["show", "orders:42", "--kind", "lock", "--url", redis_url]) == 0
    shown = capsys.readouterr().out
    assert f": 1 held, {heading}\n" in shown
    assert shown.count("\n  waits") == listed
    assert more in shown


@pytest.mark.rest
@pytest.mark.asyncio
@pytest.mark.parametrize("command", [["ls"], ["watch", "--once"]], ids=["ls", "watch"])
async def test_a_reader_that_has_gone_is_no_fault_of_the_server(own_server: RedisServer, command: list[str]) -> None:
    """As after `aiolocks ls | head`: there is nothing to complain of."""
    program = [sys.executable, "-m", "aiolocks", *command, "--url", own_server.url]
    async with LockManager.from_url(own_server.url) as locks, locks.lock("orders:42"):
        theirs, ours = os.pipe()
        os.close(theirs)
        try:
            process = await asyncio.create_subprocess_exec(*program, stdout=ours, stderr=subprocess.PIPE)
        finally:
            os.close(ours)
        _, complaints = await process.communicate()
    assert (process.returncode, complaints) == (1, b"")
