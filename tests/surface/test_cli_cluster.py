"""Commands on a Cluster: beside a dead primary the names on the others are shown. Slots may move meanwhile."""

import asyncio

import pytest

from aiolocks import LockManager
from aiolocks.cli import _names
from aiolocks.cli._nodes import Primaries, primaries
from aiolocks.cli._watch._board import Board
from aiolocks.cli._watch._watcher import Watcher
from tests.support.clusters import ClusterSet, slot_of
from tests.support.lateness import bounded
from tests.surface.commands import Capsys, at

pytestmark = [pytest.mark.redis, pytest.mark.slow]

PARTIAL = {"cluster-require-full-coverage": "no"}


async def test_beside_a_dead_primary_the_others_are_asked_and_so_is_that_once_it_comes_back(capsys: Capsys) -> None:
    with ClusterSet(replicas=0, options=PARTIAL) as cluster:
        names = {f"order:{number}" for number in range(20)}
        async with LockManager.from_url(cluster.url, ttl=600, renew=False) as locks:
            for name in names:
                await locks.lock(name).acquire()
        dead = cluster.node_of("aiolocks:lock:{order:0}")
        lost = {name for name in names if cluster.node_of(f"aiolocks:lock:{{{name}}}") is dead}
        dead.kill()
        address = f"127.0.0.1:{dead.port}"

        listed = await at(cluster.url, capsys, "ls", "--json")
        assert (listed.status, {one["name"] for one in listed.json()}) == (2, names - lost)
        assert listed.err == f"aiolocks ls: {address} does not answer: the names there are not listed\n"

        watched = await at(cluster.url, capsys, "watch", "--once")
        heading, _, *rows = watched.out.splitlines()
        assert (watched.status, {row.split()[-1] for row in rows}) == (2, names - lost)
        assert f"{address} not asked" in heading
        watched = await at(cluster.url, capsys, "watch", "--once", "--json")
        assert (watched.status, watched.json()["missing"]) == (2, [address])
        assert {one["name"] for one in watched.json()["names"]} == names - lost

        examined = await at(cluster.url, capsys, "doctor", "--json")
        assert (examined.status, examined.json()["status"]) == (2, 2)
        checks = [(one["check"], one["verdict"], one["found"]) for one in examined.json()["checks"]]
        assert [one for one in checks if one[:2] == ("server", "danger")] == [
            ("server", "danger", f"{address}: does not answer")
        ]
        assert len([one for one in checks if one[0] == "clock"]) == 2

        for words in (("show",), ("release",), ("resize", "3"), ("pause", "3"), ("resume",)):
            asked = await at(cluster.url, capsys, words[0], min(lost), *words[1:])
            assert (asked.status, f"{address}, which has this name, does not answer" in asked.err) == (2, True)
        for name in names - lost:
            shown = await at(cluster.url, capsys, "show", name)
            assert (shown.status, f"lock {name}: 1 held" in shown.out) == (0, True)

        board = Board(Primaries([]), "aiolocks:")
        watcher = Watcher(board, cluster.url)
        await watcher.begin()
        assert board.missing == [address]
        await asyncio.to_thread(dead.restart)
        async with bounded(30):
            while board.missing:
                await asyncio.sleep(0.1)
                await watcher.refresh([])
        await watcher.close()


async def test_a_name_is_shown_while_its_slot_moves_and_after_it_has_moved() -> None:
    with ClusterSet(replicas=0) as cluster:
        key = "aiolocks:lock:{orders:42}"
        slot = slot_of(key)
        to = next(server for server in cluster.primaries() if server is not cluster.node_of(key))
        async with LockManager.from_url(cluster.url, ttl=600, renew=False) as locks, primaries(cluster.url) as before:
            await locks.lock("orders:42").acquire()
            await asyncio.to_thread(cluster.begin_move, slot, to)
            await asyncio.to_thread(cluster.migrate, [key])
            (moving,) = await _names.named(cluster.url, "aiolocks:", "orders:42", "lock")
            await asyncio.to_thread(cluster.end_move, slot)
            (moved,) = await _names.named(cluster.url, "aiolocks:", "orders:42", "lock")
            assert (moving.held, moved.held) == (1, 1)
            moved.held = 0
            await _names.read(before, [moved], "aiolocks:")
            assert moved.held == 1


async def test_watch_once_beside_a_primary_that_hangs_shows_the_names_on_the_others(capsys: Capsys) -> None:
    with ClusterSet(replicas=0, options=PARTIAL) as cluster:
        hangs = cluster.primaries()[0]
        hangs.pause()
        said = await at(cluster.url, capsys, "watch", "--once", "--json")
        assert (said.status, said.err) == (2, "")
        assert (said.json()["unknown_since"], said.json()["missing"]) == (None, [f"127.0.0.1:{hangs.port}"])
