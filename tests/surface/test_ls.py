"""`aiolocks ls` and `aiolocks show`: every kind, holders and waiters, odd names, many names, and no token."""

import asyncio
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
from tests.support.primitives import cancelled
from tests.support.servers import RedisServer
from tests.surface.commands import Capsys, Command

pytestmark = [pytest.mark.redis, pytest.mark.leaves_residue]

ODD = ["a:b", "{x}", "100%", "%7B", "}{", "new\nline", "snow ☃", "queue", "a}:queue", "*", "[a]"]


async def test_each_kind_has_holders_and_waiters(locks: LockManager, own_server: RedisServer, command: Command) -> None:
    client = locks.client
    async with AsyncExitStack() as stack, LockManager.from_url(own_server.url, ttl=60) as others:
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

        found = (await command("ls", "--json")).json()
        assert {(one["kind"], one["name"]): (one["held"], one["waiting"]) for one in found} == {
            ("lock", "orders:42"): (1, 2), ("rlock", "again"): (1, 0), ("semaphore", "scraper"): (2, 0),
            ("multilock", "one"): (1, 0), ("multilock", "two"): (1, 0), ("rwlock", "price"): (1, 1),
            ("hierarchy", "shop"): (1, 0), ("hierarchy", "shop/orders"): (1, 0),
            ("hierarchy", "shop/orders/4:2"): (1, 0), ("redlock", "voted"): (1, 0),
        }  # fmt: skip
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

        [shown] = (await command("show", "orders:42", "--json")).json()
        first, second = shown["waiters"]
        assert first["seconds"] >= second["seconds"] >= 0
        assert first["session"] == second["session"] != shown["holders"][0]["session"]
        [shown] = (await command("show", "price", "--kind", "rwlock", "--json")).json()
        assert [one["mode"] for one in shown["waiters"]] == ["write"]

        for arguments in (["ls"], ["show", "orders:42"], ["show", "scraper"], ["ls", "--json"]):
            said = await command(*arguments)
            assert said.status == 0
            assert "orders:42" in said.out or "scraper" in said.out
            assert lease.token[11:] not in said.out
        await cancelled(*waiting)


async def test_odd_names_are_told_as_they_were_given(locks: LockManager, command: Command) -> None:
    prefixes = ("aiolocks:", "[my]*app?")
    async with AsyncExitStack() as stack:
        for prefix in prefixes:
            for name in ODD:
                await stack.enter_async_context(locks.lock(name, prefix=prefix))
        for prefix in prefixes:
            found = await command("ls", "--json", "--prefix", prefix)
            assert (found.status, sorted(one["name"] for one in found.json())) == (0, sorted(ODD))
            for name in ODD:
                shown = await command("show", name, "--json", "--prefix", prefix)
                assert (shown.status, [one["name"] for one in shown.json()]) == (0, [name])
        printed = (await command("ls")).out
        assert "new\\nline\n" in printed
        assert len(printed.splitlines()) == 1 + len(ODD)


HOSTILE = "row 500\r\nof \x1b[2J\x1b]0;pwned\x07 \u202e\ud800" + "界" * 150


async def test_notes_are_shown_and_hostile_ones_do_no_harm(locks: LockManager, command: Command) -> None:
    async with AsyncExitStack() as stack:
        for name, note in (("reports:may", "May's report"), ("hostile", HOSTILE), ("invalid", "x")):
            await stack.enter_async_context(locks.lock(name, note=note))
        waiting = [asyncio.ensure_future(locks.lock("hostile", note=f"waits {at}").acquire()) for at in range(2)]
        await asyncio.sleep(0.7)
        async for key in locks.client.scan_iter("aiolocks:session:*"):
            for field, value in (await locks.client.hgetall(key)).items():
                if value == b"x":
                    await locks.client.hset(key, field, b"\xff\x1b[2J\xfe")
        noted = {one["name"]: one["holders"][0]["note"] for one in (await command("ls", "--json")).json()}
        assert noted == {
            "reports:may": "May's report", "hostile": HOSTILE.replace("\ud800", "?"), "invalid": "\ufffd\x1b[2J\ufffd",
        }  # fmt: skip
        [shown] = (await command("show", "hostile", "--json")).json()
        assert [(one["position"], one["note"]) for one in shown["waiters"]] == [(0, "waits 0"), (1, "waits 1")]
        for words, lines in (("ls", 4), ("show hostile", 4), ("show invalid", 2), ("watch --once", 5)):
            printed = (await command(*words.split())).out
            assert printed.replace("\n", "").isprintable(), words
            assert "row 500\\r\\nof \\x1b[2J" in printed or words == "show invalid"
            assert len(printed.splitlines()) == lines
        assert (await command("ls", "reports:*")).out.splitlines()[1].endswith(" reports:may  May's report")
        assert (await command("show", "reports:may")).out.endswith("  note: May's report\n")
        await cancelled(*waiting)


@pytest.mark.parametrize("text", ["short", "界" * 40, "e\u0301" * 40, "a界" * 20, "", "界" * 16, "x" * 32])
def test_a_column_is_as_wide_as_a_terminal_shows_it(text: str) -> None:
    shown = fitted(text, 32)
    columns = sum(0 if combining(sign) else 2 if east_asian_width(sign) in "WF" else 1 for sign in shown)
    assert columns == 32
    assert shown.rstrip() == text or shown.rstrip().endswith("…")


def test_a_name_that_is_not_held_is_not_there_and_an_empty_list_says_where(server: RedisServer, capsys: Capsys) -> None:
    url = ("--url", server.tcp_url, "--prefix", "nothing:")
    for words, status, printed in (
        (["ls", "--json"], 0, "[]\n"),
        (["show", "nothing", "--json"], 1, "[]\n"),
        (["show", "nothing"], 1, "nothing is neither held nor awaited\n"),
    ):
        assert main([*words, *url]) == status
        assert capsys.readouterr().out == printed
    place = f"127.0.0.1:{server.port}"
    for arguments, where in (([], ""), (["a:*", "--kind", "rwlock"], ", names a:*, kind rwlock")):
        assert main(["ls", *arguments, *url]) == 0
        said = f"aiolocks ls: nothing is held or awaited at {place} (prefix nothing:{where})\n"
        assert capsys.readouterr() == ("", said)


async def test_patterns_kinds_and_strangers_keys(locks: LockManager, command: Command) -> None:
    async with locks.lock("orders:1"), locks.lock("carts:1"), locks.semaphore("orders:1", 2):
        for key in ("aiolocks:lock:{odd", "aiolocks:else:{x}", "aiolocks:lock:{list}", "aiolocks:semaphore:{text}"):
            await locks.client.rpush(key, "1")
        await locks.client.set("aiolocks:rlock:{x}", "of another kind")
        found = (await command("ls", "orders:*", "--json")).json()
        assert [(one["kind"], one["name"]) for one in found] == [("lock", "orders:1"), ("semaphore", "orders:1")]
        found = (await command("ls", "--kind", "lock", "--json")).json()
        assert sorted(one["name"] for one in found) == ["carts:1", "orders:1"]


async def test_of_a_rate_the_starts_are_shown_and_no_holders(locks: LockManager, command: Command) -> None:
    for cost in (3, 1):
        await locks.rate_limiter("api", 20, per=60).acquire(cost=cost)
    _, row = (await command("ls")).out.splitlines()
    assert "4 of 20 starts used" in row
    assert (await command("show", "api")).out == "rate api: 4 starts used, 0 waiting, limit 20\n"
    refused = await command("release", "api")
    assert (refused.status, "holds nothing" in refused.err) == (2, True)


async def commands(client: Redis) -> int:
    return int((await client.info("stats"))["total_commands_processed"])


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_ten_thousand_are_listed_as_they_are_found_and_no_command_takes_long(own_server: RedisServer) -> None:
    async with Redis.from_url(own_server.url) as client:
        await client.config_set("slowlog-log-slower-than", 20_000 * int(SLACK))
        locks = LockManager(client, ttl=100, renew=False)
        await asyncio.gather(*(locks.lock(f"order:{number}").acquire() for number in range(10_000)))
        await client.slowlog_reset()
        begun = await commands(client)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "aiolocks", "ls", "--url", own_server.url, stdout=subprocess.PIPE
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


@pytest.mark.parametrize(("sessions", "waiters", "in_ls", "heading", "listed", "more"), [
    (1, 3000, "3000", "3000 waiting", 1000, "and 2000 more"), (150, 2, "300", "300 waiting", 300, ""),
    (600, 1, "500+", "at least 500 waiting", 500, ""),
], ids=["one session", "many sessions", "too many sessions"])  # fmt: skip
async def test_all_waiters_are_counted_or_the_count_is_called_a_lower_bound(
    sessions: int, waiters: int, in_ls: str, heading: str, listed: int, more: str, redis: Redis, redis_url: str,
    capsys: Capsys,
) -> None:  # fmt: skip
    base = "aiolocks:lock:{orders:42}"
    pipeline: Any = redis.pipeline(transaction=False)  # as the scripts write it down
    pipeline.set(base, "t" * 33 + " 1", px=60_000)
    for session in range(sessions):
        known_as = f"s{session:010}"
        line = {f"{known_as}{number:022} 60000 1": number + 1 for number in range(waiters)}
        pipeline.zadd(f"{base}:queue", {known_as: session + 1})
        pipeline.zadd(f"{base}:q:{known_as}", line)
    await pipeline.execute()
    assert await asyncio.to_thread(main, ["ls", "--url", redis_url]) == 0
    assert in_ls in capsys.readouterr().out.splitlines()[-1].split()
    assert await asyncio.to_thread(main, ["show", "orders:42", "--kind", "lock", "--url", redis_url]) == 0
    shown = capsys.readouterr().out
    assert f": 1 held, {heading}\n" in shown
    assert shown.count("\n  waits") == listed
    assert more in shown


@pytest.mark.rest
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
