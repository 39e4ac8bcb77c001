"""Every example runs by the command in its own docstring, and does what the docstring says."""

import ast
import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

import aiolocks
from tests.support.cases import one_by_one, the_rest_slow
from tests.support.children import family
from tests.support.clusters import ClusterSet
from tests.support.sentinels import SERVICE, SentinelSet
from tests.surface.test_run import wait_until

pytestmark = [pytest.mark.redis, pytest.mark.timeout(40), pytest.mark.rest]

REPOSITORY = Path(__file__).parents[2]
EXAMPLES = sorted(path.stem for path in (REPOSITORY / "examples").glob("*.py"))
PRINTING = [
    "cache_stampede", "decorated", "fencing_sqlite", "guard", "hand_off", "orders_table", "price_list", "prometheus",
    "quorum", "tickets", "transfer", "cron", "scraper", "apscheduler_once", "taskiq_jobs", "token_refresh",
]  # fmt: skip
OTHERS = [
    "arq_jobs", "celery_task", "cluster", "graceful", "leader", "leader_handover", "sentinel", "test_your_code",
    "worker",
]  # fmt: skip
ORDERS = ["django_view", "fastapi_orders", "flask_orders", "litestar_orders", "starlette_orders"]
SERVERS = ["aiohttp_checkout", "idempotent_payment", *ORDERS]
WITHIN = 20


def blocks(example: str) -> list[str]:
    """Return the indented blocks of an example's docstring: its command, then what it prints or answers."""
    source = (REPOSITORY / "examples" / f"{example}.py").read_text(encoding="utf-8")
    docstring = ast.get_docstring(ast.parse(source)) or ""
    return [textwrap.dedent(block) for block in re.findall(r"(?:^    .*\n)+", f"{docstring}\n", re.MULTILINE)]


@contextmanager
def running(
    example: str, *arguments: str, warnings: str = "error", unbuffered: str = ""
) -> Iterator["subprocess.Popen[str]"]:
    """Run an example as its docstring says, in the repository's directory; at the end nothing of it is left running."""
    python, program = blocks(example)[0].split()
    assert (python, program) == ("python", f"examples/{example}.py")
    package = str(Path(aiolocks.__file__).parents[1])  # the one under test, installed or not
    environment = {**os.environ, "PYTHONPATH": package, "PYTHONUNBUFFERED": unbuffered}
    with family(
        sys.executable, "-W", warnings, program, *arguments,
        cwd=REPOSITORY, env=environment, stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        yield process


@contextmanager
def site(example: str, redis_url: str) -> Iterator[str]:
    """Run an example that serves, on a free port, and return its URL; Ctrl-C ends it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    with running(example, redis_url, port, warnings="default", unbuffered="1") as process:
        assert process.stdout is not None
        url = f"http://127.0.0.1:{port}"
        assert any(f"unning on {url}" in line for line in iter(process.stdout.readline, "")), "ended before it served"
        wait_until(lambda: listens(int(port)))
        yield url
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        process.wait(WITHIN)
    assert "Error" not in rest


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def output(example: str, redis_url: str) -> str:
    with running(example, redis_url) as process:
        printed, _ = process.communicate(timeout=WITHIN)
    assert process.returncode == 0, printed
    return re.sub(r"(?m)^.*; stop acting on it\n", "", printed)  # the warning of a lost lease, on stderr


def as_shown(answer: httpx.Response) -> str:
    """Return an answer as the docstrings show it: of its headers, only the one that an example adds."""
    lines = [f"{answer.http_version} {answer.status_code} {answer.reason_phrase}"]
    for name, value in answer.headers.raw:
        if name.lower() == b"retry-after":
            lines.append(f"{name.decode()}: {value.decode()}")
    return "\n".join([*lines, answer.text.rstrip("\n"), ""])


async def ask_at_once(urls: list[str]) -> list[tuple[float, httpx.Response]]:
    """Return what each request got and after how many seconds, in the order of the answers."""
    begun = time.monotonic()
    async with httpx.AsyncClient(timeout=WITHIN) as client:

        async def ask(url: str) -> tuple[float, httpx.Response]:
            answer = await client.post(url)
            return time.monotonic() - begun, answer

        answers = await asyncio.gather(*map(ask, urls))
    return sorted(answers, key=lambda answer: answer[0])


def requests(example: str, url: str) -> list[str]:
    """Return the URLs that the docstring's curl commands ask for, at the address it is served at now."""
    found = re.findall(r"curl -i -X POST http://127.0.0.1:\d+(\S+)", blocks(example)[1])
    assert len(found) == len(blocks(example)[1].splitlines())
    return [url + path for path in found]


@pytest.mark.smoke
def test_every_example_is_tested() -> None:
    assert {*SERVERS, *PRINTING, *OTHERS} == set(EXAMPLES)


@pytest.mark.smoke
@one_by_one("example", EXAMPLES)
def test_an_example_has_less_than_60_lines(example: str) -> None:
    assert len((REPOSITORY / "examples" / f"{example}.py").read_text(encoding="utf-8").splitlines()) < 60


@pytest.mark.parametrize("example", the_rest_slow(PRINTING, quick=5))
def test_an_example_prints_what_its_docstring_says(example: str, tcp_url: str) -> None:
    assert output(example, tcp_url) == blocks(example)[1]


@pytest.mark.slow
def test_behind_sentinels_the_example_goes_on_at_the_new_primary() -> None:
    with SentinelSet(replicas=1) as sentinels:
        addresses = ",".join(f"{host}:{port}" for host, port in sentinels.sentinel_addresses)
        assert output("sentinel", f"redis+sentinel://{addresses}/{SERVICE}") == blocks("sentinel")[1]


@pytest.mark.slow
def test_the_example_moves_money_between_nodes_of_a_cluster() -> None:
    with ClusterSet(replicas=0) as cluster:
        assert output("cluster", cluster.servers[0].tcp_url) == blocks("cluster")[1]


def test_the_killed_workers_job_is_taken_over_as_the_docstring_says(tcp_url: str) -> None:
    printed = output("worker", tcp_url).splitlines()
    assert [*sorted(printed[:2]), *printed[2:]] == blocks("worker")[1].splitlines()


def test_the_tests_of_an_example_pass() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "examples/test_your_code.py"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=WITHIN)
    assert "3 passed" in done.stdout, done.stdout


@pytest.mark.smoke
async def test_a_worker_that_is_told_to_end_frees_its_lock_at_once(tcp_url: str) -> None:
    with running("graceful", tcp_url) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=WITHIN)
    assert (process.returncode, first + rest) == (0, blocks("graceful")[1])
    async with aiolocks.LockManager.from_url(tcp_url) as locks:
        assert not await locks.lock("example:graceful").locked()


def test_arq_skips_what_is_running_already(tcp_url: str) -> None:
    pytest.importorskip("arq")
    with running("arq_jobs", tcp_url, warnings="ignore") as process:  # arq uses what redis-py 8 deprecates
        printed, _ = process.communicate(timeout=WITHIN)
    assert printed.splitlines()[-1:] == blocks("arq_jobs")[1].splitlines()


@pytest.mark.slow
def test_celery_imports_no_shop_twice_at_once(tcp_url: str) -> None:
    pytest.importorskip("celery")
    with running("celery_task", tcp_url, warnings="ignore") as process:  # Celery warns that it runs as root
        printed, _ = process.communicate(timeout=2 * WITHIN)
    assert blocks("celery_task")[1] in printed


@pytest.mark.parametrize(("example", "nodes"), [("leader", ["ann", "bob", "cid"]), ("leader_handover", ["ann", "bob"])])
def test_the_leaders_take_turns_in_any_order(example: str, nodes: list[str], tcp_url: str) -> None:
    printed = output(example, tcp_url)
    names = dict.fromkeys(line.split()[0] for line in printed.splitlines())
    assert sorted(names) == nodes
    renamed = dict(zip(names, nodes, strict=True))
    assert re.sub(r"^\w+", lambda name: renamed[name[0]], printed, flags=re.MULTILINE) == blocks(example)[1]


@pytest.mark.parametrize("example", ORDERS)
async def test_the_orders_are_answered_as_the_docstring_says(example: str, tcp_url: str) -> None:
    pytest.importorskip(example.partition("_")[0])
    _, _, paid, busy = blocks(example)
    with site(example, tcp_url) as url:
        order = requests(example, url)
        assert [as_shown(answer) for _, answer in await ask_at_once(order)] == [busy, paid]
        assert [as_shown(answer) for _, answer in await ask_at_once(order[:1])] == [paid]


async def test_the_payments_are_answered_as_the_docstring_says(tcp_url: str) -> None:
    pytest.importorskip("fastapi")
    _, commands, answers = blocks("idempotent_payment")
    asked = re.findall(r"http://127.0.0.1:8000(\S+)\" -H \"Idempotency-Key: (\w+)", commands)
    with site("idempotent_payment", tcp_url) as url:
        async with httpx.AsyncClient(timeout=WITHIN) as client:

            async def ask(path: str, key: str) -> str:
                return (await client.post(url + path, headers={"Idempotency-Key": key})).text

            at_once = await asyncio.gather(*(ask(*each) for each in asked[:2]))
            assert [*at_once, await ask(*asked[2])] == answers.splitlines()


async def test_the_checkouts_are_answered_as_the_docstring_says(tcp_url: str) -> None:
    _, _, done, busy = blocks("aiohttp_checkout")
    with site("aiohttp_checkout", tcp_url) as url:
        cart = requests("aiohttp_checkout", url)
        answers = await ask_at_once(cart)
        assert [as_shown(answer) for _, answer in await ask_at_once(cart[:1])] == [done]
    assert [as_shown(answer) for _, answer in answers] == [done, busy, done]
    first, _, second = (at for at, _ in answers)
    assert first > 1.9
    assert second > first + 1.9
