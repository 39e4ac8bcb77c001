"""Commands on a Cluster: beside a dead primary the names on the others are shown. Slots may move meanwhile."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from aiolocks import LockManager
from aiolocks.cli import _names, main
from aiolocks.cli._nodes import Primaries, primaries
from aiolocks.cli._watch._board import Board
from aiolocks.cli._watch._watcher import Watcher
from tests.support.clusters import ClusterSet, slot_of
from tests.support.lateness import bounded
from tests.surface.commands import Capsys

pytestmark = [pytest.mark.redis, pytest.mark.slow]

PARTIAL = {"cluster-require-full-coverage": "no"}


@dataclass(frozen=True, slots=True)
class HalfDead:
    """A Cluster without full coverage: the address of the dead primary, and the names at the others and at it."""

    url: str
    dead: str
    living: set[str]
    lost: set[str]


@pytest.fixture(scope="module")
def half_dead() -> Iterator[HalfDead]:
    names = [f"order:{number}" for number in range(20)]
    with ClusterSet(replicas=0, options=PARTIAL) as cluster:

        async def hold() -> None:
            async with LockManager.from_url(cluster.url, ttl=600, renew=False) as locks:
                for name in names:
                    await locks.lock(name).acquire()

        asyncio.run(hold())
        dead = cluster.node_of("aiolocks:lock:{order:0}")
        lost = {name for name in names if cluster.node_of(f"aiolocks:lock:{{{name}}}") is dead}
        dead.kill()
        yield HalfDead(cluster.url, f"127.0.0.1:{dead.port}", set(names) - lost, lost)


def test_ls_beside_a_dead_primary_lists_the_names_on_the_others(half_dead: HalfDead, capsys: Capsys) -> None:
    assert main(["ls", "--json", "--url", half_dead.url]) == 2
    printed = capsys.readouterr()
    assert {one["name"] for one in json.loads(printed.out)} == half_dead.living
    assert printed.err == f"aiolocks ls: {half_dead.dead} does not answer: the names there are not listed\n"


def test_watch_beside_a_dead_primary_shows_the_names_on_the_others(half_dead: HalfDead, capsys: Capsys) -> None:
    assert main(["watch", "--once", "--url", half_dead.url]) == 2
    heading, _, *rows = capsys.readouterr().out.splitlines()
    assert f"{half_dead.dead} not asked" in heading
    assert {row.split()[-1] for row in rows} == half_dead.living
    assert main(["watch", "--once", "--json", "--url", half_dead.url]) == 2
    told = json.loads(capsys.readouterr().out)
    assert told["missing"] == [half_dead.dead]
    assert {one["name"] for one in told["names"]} == half_dead.living


def test_doctor_beside_a_dead_primary_examines_the_others(half_dead: HalfDead, capsys: Capsys) -> None:
    assert main(["doctor", "--json", "--url", half_dead.url]) == 2
    told = json.loads(capsys.readouterr().out)
    assert told["status"] == 2
    dangers = [one["found"] for one in told["checks"] if (one["check"], one["verdict"]) == ("server", "danger")]
    assert dangers == [f"{half_dead.dead}: does not answer"]
    assert len([one for one in told["checks"] if one["check"] == "clock"]) == 2


def test_a_name_beside_a_dead_primary_is_shown_or_the_error_names_that(half_dead: HalfDead, capsys: Capsys) -> None:
    for command, *limit in (("show",), ("release",), ("resize", "3"), ("pause", "3"), ("resume",)):
        assert main([command, sorted(half_dead.lost)[0], *limit, "--url", half_dead.url]) == 2
        assert f"{half_dead.dead}, which has this name, does not answer" in capsys.readouterr().err
    for name in sorted(half_dead.living):
        assert main(["show", name, "--url", half_dead.url]) == 0
        assert f"lock {name}: 1 held" in capsys.readouterr().out


@pytest.mark.asyncio
async def test_watch_finds_a_primary_that_comes_back() -> None:
    with ClusterSet(replicas=0, options=PARTIAL) as cluster:
        board = Board(Primaries([]), "aiolocks:")
        watcher = Watcher(board, cluster.url)
        dead = cluster.primaries()[0]
        dead.kill()
        await watcher.begin()
        assert board.missing == [f"127.0.0.1:{dead.port}"]
        await asyncio.to_thread(dead.restart)
        async with bounded(30):
            while board.missing:
                await asyncio.sleep(0.1)
                await watcher.refresh([])
        await watcher.close()


@pytest.mark.asyncio
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


def test_watch_once_beside_a_primary_that_hangs_shows_the_names_on_the_others(capsys: Capsys) -> None:
    with ClusterSet(replicas=0, options=PARTIAL) as cluster:
        hangs = cluster.primaries()[0]
        hangs.pause()
        assert main(["watch", "--once", "--json", "--url", cluster.url]) == 2
        printed = capsys.readouterr()
        told = json.loads(printed.out)
        assert not printed.err
        assert (told["unknown_since"], told["missing"]) == (None, [f"127.0.0.1:{hangs.port}"])
