"""Threads under faults: their process forks, exits or is interrupted while they hold and wait. Nothing stays behind."""

import signal
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis as redis_sync

from aiolocks.sync import LockManager
from tests.faults.support.programs import printed
from tests.support.lateness import SLACK, assert_within
from tests.support.workers import Worker, spawn

TTL = 2.0

HEAD = """
import logging, os, random, signal, sys, threading, time
import redis
from aiolocks import LeaseLostError
from aiolocks.sync import LockManager
os.dup2(1, 2)
logging.getLogger("asyncio").addFilter(lambda record: "Executing" not in record.getMessage())  # the machine stood still
url = sys.argv[1]
locks = LockManager.from_url(url, ttl=2)
lock, once, election = locks.lock("a"), locks.once("a", keep=60), locks.election("a")
class Interrupted(BaseException): pass
def interrupt(number, frame): raise Interrupted
signal.signal(signal.SIGALRM, interrupt)

def say(*words): print(*words, flush=True)
def status_of(child): return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
def until(condition):
    while not condition(): time.sleep(0.01)
def in_daemon(function, name="daemon"):
    thread = threading.Thread(target=function, name=name, daemon=True)
    thread.start()
    return thread
"""


@pytest.fixture
def locks(redis_url: str) -> Iterator[LockManager]:
    with LockManager.from_url(redis_url, ttl=TTL) as locks:
        yield locks


def program(url: str, *lines: str) -> str:
    """Run a program to its end, and return what it printed."""
    return printed("-X", "dev", "-W", "error", "-c", HEAD + "\n".join(lines), url)


def lines_of(worker: Worker) -> list[str]:
    assert worker.process.stdout is not None
    return worker.process.stdout.read().splitlines()


# Fork.

IN_A_BLOCK = """
from tests.support.inside import command_of
mine = command_of(locks, "CLIENT", "ID")
held = locks.lock("held").acquire()
with lock as lease:
    child = os.fork()
    if child == 0:
        say("child:", lease.held, lease.lost, lease.renew(), lease.release(), held.release())
        say("child:", mine == command_of(locks, "CLIENT", "ID"))
        with locks.lock("b"): say("child:", lock.try_acquire())
        try:
            with lock.hold(timeout=0): pass
        except Exception as error:
            say("child:", type(error).__name__)
        sys.exit(7)
    say("parent:", status_of(child), lease.renew(), held.release())
say("parent:", mine == command_of(locks, "CLIENT", "ID"), lock.locked())
"""


def test_a_child_forked_in_a_block_has_a_loop_and_connections_of_its_own_and_no_lease(redis_url: str) -> None:
    assert program(redis_url, IN_A_BLOCK).splitlines() == [
        "child: False True False False False", "child: False", "child: None", "child: AcquireTimeoutError",
        "parent: 7 True True", "parent: True False",
    ]  # fmt: skip


PREFORK = """
counter = redis.Redis.from_url(url)
def work():
    for _ in range(10):
        with lock:
            count = int(counter.get("count") or 0)
            time.sleep(random.uniform(0, 0.002))
            counter.set("count", count + 1)
work()  # the parent has its loop before it forks, as with gunicorn's preload_app
held = locks.lock("held").acquire()
in_daemon(lambda: locks.lock("held").acquire())
children = []
for _ in range(4):
    child = os.fork()
    if child == 0:
        others = [threading.Thread(target=work) for _ in range(2)]
        for thread in others: thread.start()
        work()
        for thread in others: thread.join()
        sys.exit(0)
    children.append(child)
work()
say([status_of(child) for child in children], counter.get("count"))
"""


def test_workers_forked_from_a_parent_that_has_used_locks_exclude_one_another(redis_url: str) -> None:
    """gunicorn's and Celery's way: 13 threads of 5 processes."""
    assert program(redis_url, PREFORK) == "[0, 0, 0, 0] b'140'\n"


# Exit.

EXIT = """
held = lock.acquire()
in_daemon(lambda: lock.acquire())
until(lock.waiters)
inside = threading.Event()
def hold():
    with locks.lock("daemon"):
        inside.set(); time.sleep(60)
in_daemon(hold); inside.wait()
{how}
"""


@pytest.mark.parametrize(("how", "status"), [("", 0), ("sys.exit(3)", 3), ("with locks.lock('block'): sys.exit(4)", 4)])
def test_an_exit_with_held_locks_is_quick_and_silent_and_waiters_leave(
    redis_url: str, locks: LockManager, how: str, status: int
) -> None:
    """What a block of the exiting thread holds is released; what daemon threads hold ends with its TTL."""
    begun = time.monotonic()
    with spawn("-X", "dev", "-W", "error", "-c", HEAD + EXIT.format(how=how), redis_url) as worker:
        assert lines_of(worker) == []
        assert worker.wait(10) == status
    assert_within(time.monotonic() - begun, 2 + SLACK * 1.5)
    assert (locks.lock("a").waiters(), locks.lock("block").locked()) == ((), False)
    for name in ("a", "daemon"):
        locks.lock(name).acquire(timeout=TTL + SLACK).release()


OUTLIVES = """
def work():
    main.join()
    with LockManager.from_url(url + "/1").lock("a") as lease:  # its first connection
        say(lease.held)
lock.locked()
main = threading.main_thread()
threading.Thread(target=work).start()
"""


def test_a_thread_that_outlives_the_main_thread_can_still_find_a_host_by_its_name(tcp_url: str) -> None:
    assert program(tcp_url.replace("127.0.0.1", "localhost"), OUTLIVES) == "True\n"


BLOCKED = """
from aiolocks.events import on_event
on_event(lambda event: event.name == "b" and time.sleep(60))
in_daemon(lambda: locks.lock("b").acquire())
time.sleep(0.3)
say("exits")
"""


def test_an_exit_waits_for_a_blocked_loop_only_for_a_while(redis_url: str) -> None:
    with spawn("-c", HEAD + BLOCKED, redis_url) as worker:
        assert worker.line() == "exits"
        begun = time.monotonic()
        worker.wait(30)
        assert_within(time.monotonic() - begun, 3 + SLACK)


# A failure of the loop.

FAILS = """
from aiolocks.events import on_event
from tests.support.inside import command_of
def tried(call):
    try:
        say(call())
    except Exception as error:
        say(type(error).__name__, type(error.__cause__).__name__)
def lead(lease):
    lost.join(); tried(lease.renew)
    renews.set(); ended.wait()
renews, ended = threading.Event(), threading.Event()
command_of(locks, "PING")  # a connection of the client itself
hold = lock.hold(); hold.__enter__()
lost = in_daemon(lambda: tried(lock.acquire))
leads = in_daemon(lambda: tried(lambda: election.run(lead)))
until(lambda: lock.waiters() and election.is_leader)
stop = on_event(lambda event: event.kind == "renewed" and sys.exit(1))
renews.wait(); stop()
tried(lambda: hold.__exit__(None, None, None))
hold.__exit__(None, ValueError(), None)
tried(lambda: locks.election("a").leader() is not None)
ended.set(); leads.join()
tried(lambda: command_of(locks, "PING"))
lock.acquire(timeout=4)
"""


def test_if_an_event_ends_the_loop_its_calls_get_an_error_and_the_next_call_begins_another(redis_url: str) -> None:
    """As `sys.exit()` in a callback does. While a function runs in a thread, its lease is not released."""
    failed = "RuntimeError SystemExit"
    said = [line for line in program(redis_url, FAILS).splitlines() if line in ("True", failed)]
    assert said == [failed, failed, failed, "True", failed, "True"]


# Ctrl-C.


INTERRUPTS = """
logging.disable()  # leases that lapse
lock, outcomes = locks.lock("a", ttl=0.5), []
def until_interrupted():
    signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 2e-3))
    while True:
        try:
            with lock.hold(timeout=2): pass
        except (RuntimeError, LeaseLostError) as error:  # the block before was interrupted just before it was left
            assert not isinstance(error.__context__, Interrupted), "an interrupt became another exception"
            outcomes.append("lapsed"); time.sleep(0.1)
for turn in range(200):
    try:
        until_interrupted()
    except Interrupted:
        outcomes.append("interrupted")
in_daemon(lambda: lock.acquire(timeout=2).release()).join()
for outcome in outcomes: say(outcome)
"""


def test_interrupts_at_any_moment_leave_nothing_held_beyond_a_ttl(redis_url: str, locks: LockManager) -> None:
    """The answer may have come already, or the block may be just before its end."""
    with spawn("-c", HEAD + INTERRUPTS, redis_url) as worker:
        said = Counter(lines_of(worker))
    assert said.keys() <= {"interrupted", "lapsed"}
    assert said["interrupted"] == 200, said
    assert (locks.lock("a").waiters(), locks.lock("a").locked()) == ((), False)
    with redis_sync.Redis.from_url(redis_url) as operator:
        assert not [key for key in operator.scan_iter("*:{a}*") if b"fence" not in key and operator.ttl(key) < 0]


BEGINS = """
def work():
    for _ in range(3):
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 1e-3))
            while True: lock.locked()
        except Interrupted:
            pass
    lock.locked()
    return len([thread for thread in threading.enumerate() if thread.name == "aiolocks.sync"])
"""
HANDLERS = """
def call(number, frame):
    try:
        lock.locked()
    except RuntimeError:
        pass  # the thread waits in a call already
signal.signal(signal.SIGALRM, call)
def work():
    signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 5e-3))
    for _ in range(3): lock.locked()
    return 1
"""
CHILDREN = """
for _ in range(40):
    child = os.fork()
    if child == 0:
        random.seed()
        os._exit(work())
    say(status_of(child))
"""


@pytest.mark.parametrize("work", [BEGINS, HANDLERS], ids=["interrupts", "calls"])
def test_an_interrupt_while_the_loop_begins_is_what_is_raised_and_one_loop_begins(redis_url: str, work: str) -> None:
    """`threading.Event.wait` can raise RuntimeError in its place. A handler that makes a call stops no thread."""
    assert Counter(program(redis_url, work, CHILDREN).splitlines()) == {"1": 40}


# Loops around a lease.

FORKS = """
def lead(lease):
    child = os.fork()
    if child == 0:
        say("child:", lease.held, election.is_leader, election.term, election.resign())
        leader = election.leader()
        say("child:", leader.fencing_token == lease.fencing_token, locks.election("b").run(lambda lease: lease.held))
        return 1
    say("parent:", status_of(child), lease.renew(), election.is_leader)
    return 2
def function():
    child = os.fork()
    if child == 0:
        say("child:", len(once.holders()), once.outcome(), locks.once("b", keep=1).run(os.getpid) == os.getpid())
        return 1
    say("parent:", status_of(child))
    return 2
def tried(run, *args):
    try:
        say(run(*args))
    except RuntimeError as error:
        say("child:", error)
        sys.exit(7)
tried(election.run, lead)
tried(once.run, function)
say(election.leader(), once.outcome().value, once.holders())
"""


def test_a_fork_in_a_function_leaves_the_lease_and_the_outcome_to_the_parent(redis_url: str) -> None:
    refused = "child: this process is a fork: only its parent gets the answer to this call"
    assert program(redis_url, FORKS).splitlines() == [
        *("child: False False None False", "child: True True", refused, "parent: 7 True True", "2"),
        *("child: 1 None True", refused, "parent: 7", "2", "None 2 ()"),
    ]


STOPS = """
def works(*_):
    say("works"); time.sleep(60)
{call}
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("call", ["election.run(works)", "once.run(works)"])
def test_after_the_end_of_its_process_the_next_one_leads_or_runs(
    redis_url: str, locks: LockManager, call: str, number: signal.Signals
) -> None:
    election, once = locks.election("a"), locks.once("a", keep=60)
    asked, text = (election, once)["once" in call], HEAD + STOPS.format(call=call)
    with spawn("-c", text, redis_url) as first:
        assert first.line() == "works"
        with spawn("-c", text, redis_url) as second:
            while not asked.waiters():
                time.sleep(0.01)
            begun = time.monotonic()
            first.signal(number)
            assert second.line() == "works"
            assert_within(time.monotonic() - begun, SLACK * 0.5 + (TTL if number == signal.SIGKILL else 0.1))
            second.signal(signal.SIGINT)
            assert lines_of(second)[-1] == "KeyboardInterrupt"
    assert (election.leader(), once.holders(), asked.waiters()) == (None, (), ())


BEFORE = """
import atexit, threading, time
ended, pauses = threading.Event(), (0, 0.1)
atexit.register(lambda: (time.sleep(pauses[0]), ended.set(), time.sleep(pauses[1])))  # the last one, after the loop's
"""
ENDS = """
began = threading.Semaphore(0)
def works(*_):
    began.release(); ended.wait()
in_daemon(lambda: election.run(works))
in_daemon(lambda: locks.election("b").run(lambda lease: began.release() or lease.wait_lost()))
in_daemon(lambda: once.run(works))
for _ in range(3): began.acquire()
in_daemon(lambda: once.run(works))
in_daemon(lambda: locks.election("a").run(works))
in_daemon(lambda: [began.release() for _ in locks.election("c").changes()])
until(election.waiters)
began.acquire()
{resigns}
say("exits")
"""


@pytest.mark.parametrize("resigns", ["", "in_daemon(election.resign); time.sleep(0.1)"])
def test_an_exit_as_threads_lead_run_or_wait_is_quiet(redis_url: str, locks: LockManager, resigns: str) -> None:
    with spawn("-X", "dev", "-W", "error", "-c", BEFORE + HEAD + ENDS.format(resigns=resigns), redis_url) as worker:
        assert worker.line() == "exits"
        begun = time.monotonic()
        assert lines_of(worker) == []
        assert worker.wait(10) == 0
        assert_within(time.monotonic() - begun, SLACK * 0.5)
    assert (locks.election("a").waiters(), locks.election("a").run(lambda lease: lease.held)) == ((), True)
    assert locks.once("a", keep=0).run(int) == 0


SLOW_EXIT = """
began, pauses = threading.Semaphore(0), (2.5, 1)  # the first is longer than a TTL
def works(what):
    began.release(); ended.wait()
    print(f"{what} {time.monotonic()}\\n", end="", flush=True)  # one piece: two threads print
in_daemon(lambda: election.run(lambda lease: works("election")))
in_daemon(lambda: once.run(lambda: works("once")))
began.acquire(); began.acquire()
say("exits")
"""


def test_while_a_process_exits_no_other_leads_or_runs_before_its_function_has_ended(
    redis_url: str, locks: LockManager
) -> None:
    """A daemon thread works until the process has ended. That can take longer than a TTL."""
    election, once = locks.election("a"), locks.once("a", keep=60)
    with spawn("-c", BEFORE + HEAD + SLOW_EXIT, redis_url) as worker, ThreadPoolExecutor(2) as threads:
        assert worker.line() == "exits"
        leads = threads.submit(election.run, lambda lease: time.monotonic())
        runs = threads.submit(once.run, time.monotonic)
        ended = dict(line.split() for line in lines_of(worker))
        for what, begun in (("election", leads), ("once", runs)):
            assert begun.result(10) > float(ended[what])
            assert_within(begun.result() - float(ended[what]), SLACK * 0.2)


RUNNERS = """
once, election = locks.once("a", keep=0, ttl=0.5), locks.election("a", ttl=0.5)
others = locks.election("a", ttl=0.5)
done, errors = threading.Event(), []
def calls():
    while not done.is_set():
        try:
            once.run(lambda: time.sleep(0.001))
            others.run(lambda lease: time.sleep(0.001)) if threading.current_thread().name == "leads" else None
        except Exception as error:
            errors.append(error)
threads = [in_daemon(calls), in_daemon(calls), in_daemon(calls, "leads")]
for turn in range(100):
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-4, 1e-2))
        end = time.monotonic() + 1  # a destructor may have swallowed the interruption
        while time.monotonic() < end:
            if turn % 2:
                once.run(lambda: time.sleep(0.001))
            else:
                election.run(lambda lease: time.sleep(0.001))
    except Interrupted:
        pass
done.set()
for thread in threads: thread.join()
once.run(int, timeout=2); election.run(repr)
say(errors)
"""


def test_interrupts_at_any_moment_end_the_interrupted_call_and_no_other(redis_url: str, locks: LockManager) -> None:
    assert program(redis_url, RUNNERS).splitlines()[-1] == "[]"
    once, election = locks.once("a", keep=0), locks.election("a")
    assert (once.waiters(), election.waiters(), election.leader()) == ((), (), None)
