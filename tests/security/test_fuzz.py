"""Whatever a reply, a notice, a URL, a template or a text says: it is read rightly, or refused as documented.

Each run draws others, by `AIOLOCKS_SEED`; `AIOLOCKS_EXAMPLES=5000 pytest tests/security/test_fuzz.py` tries that many
of each. What once failed is tried first.
"""

import asyncio
import json
import os
import re
import time
import traceback
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from fakeredis import FakeRedis
from hypothesis import HealthCheck, example, given, seed, settings
from hypothesis import strategies as st
from redis.exceptions import NoScriptError, ReadOnlyError, RedisError, ResponseError

from aiolocks import Lease, Lock, LockError, LockManager, Semaphore, Versioned
from aiolocks._web import fields_of, name_from
from tests.simulation.requests import scripts
from tests.support.answering import Answering, Asked
from tests.support.jumping import jumping
from tests.support.primitives import ROWS, Row, as_a_stranger
from tests.support.seeds import seed_of_run

EXAMPLES = int(os.environ.get("AIOLOCKS_EXAMPLES", "0"))
pytestmark = pytest.mark.timeout(0 if EXAMPLES else 60)
DOCUMENTED = (RedisError, LockError)
LOCK, SEMAPHORE = ROWS[0], ROWS[4]
VERBS = sorted({"HMGET", *(script.name.partition("/")[2] for script in scripts().values())})
CUT, TOKEN = b"CUT", b"TOKEN"
"""In place of a value: that its list ends before it, and the token of a waiter."""
HUGE, TOO_MANY = TOKEN + b" %b 1 x" % (b"9" * 5000), b"*3\r\n:1\r\n:1\r\n-ERR x\r\n"
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.binary(max_size=9) | st.text(max_size=9)
    | st.sampled_from([CUT, 0, 1, -1, -1.0, 10**18, 10**400, 1e308, b"granted", b"R", b"12", TOO_MANY])
    | st.sampled_from([ResponseError("ERR odd"), ReadOnlyError("odd"), NoScriptError("odd")]),
    lambda parts: st.lists(parts) | st.dictionaries(st.integers() | st.text(), parts, max_size=3), max_leaves=9,
)  # fmt: skip
words = st.binary() | st.integers().map(b"%d".__mod__) | st.sampled_from(
    [TOKEN, b"7", b"%d" % (time.time_ns() // 1000 + 10**9), b"9" * 5000, b"-1", b"-2", b"-3"]
)  # fmt: skip
memory: Any = FakeRedis(version=(7,))


def fuzz(*drawn: Any, failed: Any = ()) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    def decorate(test: Callable[..., Any]) -> Callable[..., None]:
        tried: Any = given(case=st.tuples(*drawn))(lambda case: jumping(test)(*case))
        for one in failed:
            tried = example(case=one)(tried)
        limits = settings(max_examples=EXAMPLES or 30, database=None, suppress_health_check=list(HealthCheck))
        decorated: Callable[..., None] = limits(seed(f"{seed_of_run()} {test.__name__}")(tried))
        return decorated

    return decorate


def edited(said: Any, place: int, value: Any) -> Any:
    """Return *said* with *value* in one place of its lists, or behind one; in place 0 it replaces the whole."""
    if not place or not isinstance(said, list):
        return value
    within, at = divmod(place - 1, len(said) + 1)
    inner = edited(said[at], within, value) if at < len(said) else value
    return said[:at] if value == CUT else [*said[:at], inner, *said[at + 1 :]]


def serving(verb: str = "", *edit: Any) -> tuple[Answering, list[Any]]:
    """Return an empty server that edits its first reply to a *verb*, and a list of all its replies."""
    edits, said, subscriber = [edit] if verb else [], list[Any](), memory.pubsub()

    def answer(asked: Asked) -> Any:
        if asked.what.endswith("SUBSCRIBE"):
            subscriber.execute_command(*asked.words)
            return [asked.words[0].lower(), *asked.words[1:], 1]
        reply = memory.execute_command(*asked.words)
        if edits and verb in (asked.what, asked.what.partition("_")[2]):
            reply = edited(reply, *edits.pop())
        said.append(reply)
        return reply

    memory.flushall()
    return Answering(answer), said


async def use(row: Row, server: Answering, leases: list[Lease], notice: bytes) -> None:
    """Run all scripts of a *row* while another caller waits, which gets a *notice*, and the lease at the end."""
    client = server.client()
    lock, other = (row.make(client, name, ttl=20) for name in ("fuzz", "other"))
    leases += [await lock.acquire(timeout=9), await other.acquire(timeout=9)]
    waiting = as_a_stranger(lock.acquire(timeout=60))
    try:
        await asyncio.sleep(5)
        token = [asked.arguments[0] for asked in server.asked if asked.what.endswith("grant")][-1]
        server.connections[-1].replies.put_nowait([b"message", b"wake", notice.replace(TOKEN, token)])
        await asyncio.sleep(5)  # until both are renewed together, and the waiter re-checks
        for ask in (lock.locked, lock.statistics, lock.holders, lock.waiters, leases[0].renew):
            await ask()
        await Versioned(client, "value").update(lambda _: "1", attempts=2)
        if isinstance(lock, Semaphore):
            for change in (lambda: lock.resize(1), lambda: lock.pause(0.01), lock.resume):
                await change()
        if row.guards:
            await leases[0].guard(("SET", row.tag, "1"), ("GET", row.tag))
        await other.revoke(force=True, timeout=1)
        if row.kind.handed_on:
            text = await leases[0].hand_off()
            await lock.touch(text)
            leases.append(await lock.adopt(text))
        await (leases[-1].downgrade if row.id == "write lock" else leases[-1].release)()
        await leases[-1].release()
        leases.append(await waiting)
    finally:
        waiting.cancel()
        for ending in (waiting, *(lease.release() for lease in leases)):
            with suppress(asyncio.CancelledError, *DOCUMENTED):
                await ending


@fuzz(
    st.sampled_from(ROWS), st.lists(words, max_size=5).map(b" ".join), st.sampled_from(["", *VERBS]),
    st.integers(0, 30), values, failed=[(LOCK, HUGE, *edit) for edit in [
        ("", 0, 0), ("statistics", 7, CUT), ("holders", 3, 10**18), ("guard", 0, TOO_MANY),
        ("recheck", 5, {-(10**15): 1}), ("revoke", 5, 5), ("read", 2, b"\xff"), ("waiters", 19, b""),
        ("grant", 0, 10**400),
    ]] + [(SEMAPHORE, HUGE, "pause", 1, 10**400)],
)  # fmt: skip
async def test_a_reply_or_notice_is_read_rightly_or_an_error_of_redis_py(row: Row, notice: bytes, *edit: Any) -> None:
    server, said = serving(*edit)
    leases: list[Lease] = []
    with suppress(*DOCUMENTED):
        await use(row, server, leases, notice)
    assert edit[0] or len(server.connections) <= 2, "a link was closed"
    await server.aclose()
    said.append(notice)
    for each in said:  # lists grow it, and texts by the numbers in them
        said += map(int, re.findall(rb"\d{1,19}", each)) if isinstance(each, bytes) else ()
        said += each if isinstance(each, list) else ()
    found = {abs(each) for each in said if type(each) is int}
    for fence in (lease.fencing_token for lease in leases):
        assert 0 < fence < 2**53
        assert {fence, fence - 1} & found, "no reply has granted it"


@fuzz(st.sampled_from(["adopt", "touch", "drop"]), st.integers(0, 12), values, failed=[
    ("touch", 5, 1e308), ("drop", 5, 1e308), ("adopt", 5, 30), ("adopt", 3, True), ("adopt", 0, "[" * 200_000),
])  # fmt: skip
async def test_a_text_of_another_program_is_refused_and_asks_nothing(verb: str, place: int, value: Any) -> None:
    """Its checksum is right, so only what it says tells that `hand_off` cannot have made it."""
    server, _ = serving()
    lock = Lock(server.client(), "fuzz", ttl=20)
    said = json.loads(urlsafe_b64decode((await (await lock.acquire()).hand_off())[7:])[4:])
    new = json.dumps(edited(said, place, value), default=repr).encode()
    new = value.encode() if not place and isinstance(value, str) else new
    text = "lease1." + urlsafe_b64encode(zlib.crc32(new).to_bytes(4, "big") + new).decode()
    asked, given = len(server.asked), value if not place and isinstance(value, bytes) else text
    done: Any = (await asyncio.gather(getattr(lock, verb)(given), return_exceptions=True))[0]
    if isinstance(done, ValueError) and not isinstance(done, LockError):
        assert len(server.asked) == asked
        assert said[3] not in str(done)
    elif not isinstance(done, LockError):  # which says that nothing is offered under this secret
        assert not isinstance(done, BaseException)
        assert not done or json.loads(new)[3] == said[3]
    await server.aclose()


SCHEMES = ["redis", "rediss", "unix", "memory", "redis+sentinel", "redis+cluster", "rediss+cluster", "http"]
PIECES = """one two : :7 :x [::1] [ ] , / /0 locks %ff %zz @ ? & # ?db=1 &db=x &path=x ?retry=x &retry_on_error=x \u2100
?protocol=x ?event_dispatcher=x ?maint_notifications_config=x ?max_connections=-1"""


@fuzz(st.text().filter(lambda url: "s3cret" not in url.lower()) | st.tuples(
    st.sampled_from(SCHEMES), st.sampled_from(["://", "://me:s3cret@"]), *[st.sampled_from(["", *PIECES.split()])] * 4
).map("".join), failed=[
    ["redis+cluster://me:s3cret@one?db=1"], ["redis+cluster://me:s3cret@one?retry=x&retry_on_error=x"],
    ["redis://:s3cret\u2100@one"], ["redis://:s3cret@[one"],
])  # fmt: skip
async def test_a_url_gives_a_client_or_an_error_without_its_password(url: str) -> None:
    try:
        shown = repr(LockManager.from_url(url))
    except (ValueError, RedisError) as error:
        shown = "".join(traceback.format_exception(error))
    assert "s3cret" not in shown


@fuzz(st.text("{}!:.[]0ab-rsx", max_size=20), *[st.text("':\\\"a\udc80")] * 4, failed=[("{a!x}", *"    ")])
async def test_a_template_makes_names_or_is_refused_where_it_is_declared(template: str, *texts: str) -> None:
    fields: list[str] = []
    with suppress(ValueError):
        fields = fields_of(template)
    if fields and ":" not in template:  # or a format may suit another type
        name_from(template, dict.fromkeys(fields, texts[0]))
    one, other = (name_from("{a!r}:{b!r}", dict(zip("ab", each, strict=True))) for each in (texts[:2], texts[2:]))
    assert (one == other) == (texts[:2] == texts[2:])
