"""A server in the test's own hands, in virtual time: it answers what the test says, and notes what it was asked when.

For parts of the engine that speak with Redis themselves; what is above them has `ScriptedGrantor`.
"""

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import hiredis
from redis._parsers import Encoder
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError

from aiolocks import Lease
from aiolocks._core.keys import Keys
from aiolocks._core.options import Options
from aiolocks._engine.acquire import Acquisition
from aiolocks._engine.lease import Hold
from aiolocks._engine.request import Request
from aiolocks._grantors.one_server import RedisGrantor
from aiolocks._grantors.session import Session
from aiolocks._redis.scripts import load
from tests.support.odd_answers import name_of
from tests.support.virtual import clock


@final
@dataclass(frozen=True, slots=True)
class Later:
    """A reply that comes so many seconds after its request, and holds up those behind it."""

    seconds: float
    reply: object


SILENCE = Later(math.inf, None)


class Asked(NamedTuple):
    """A request that came: what for (see `name_of`), when, and all its words."""

    what: str
    at: float
    words: list[bytes]

    @property
    def keys(self) -> list[bytes]:
        return self.words[3 : 3 + int(self.words[2])]

    @property
    def arguments(self) -> list[bytes]:
        return self.words[3 + int(self.words[2]) :]

    @property
    def asker(self) -> list[bytes]:
        """The session that asks, the ms that it lives without a re-check, and the prefix of its channels."""
        return self.arguments[load(self.what.replace("_", "/", 1)).args.index("address")].split(b" ", 2)


_A_POOL: Any = object


class Answering(_A_POOL):  # type: ignore[misc]  # so that it is passed for a pool
    """Leads to the server like a connection pool; *answer* gets what is asked, and returns or raises the reply.

    A connection takes *slow* seconds. It *refuses* to be made for a *trouble*, or *hangs*; the caller that makes it is
    *deaf* if it goes on although that is cancelled, as `wait_for` may before Python 3.12. What sessions say of
    themselves is in *introductions*, and the server answers *introduced*.
    """

    def __init__(self, answer: Callable[[Asked], object]) -> None:
        self.answer = answer
        self.refuses = self.hangs = self.deaf = False
        self.slow = 0.0
        self.trouble: Exception = RedisConnectionError("refused")
        self.asked: list[Asked] = []
        self.introductions: list[Asked] = []
        self.introduced: object = 1
        self.tried: list[float] = []
        """When a connection was tried."""
        self.connections: list[_Connection] = []
        self.connection_kwargs: dict[str, Any] = {"retry": Retry(NoBackoff(), 3)}

    def times(self, what: str) -> list[float]:
        return [asked.at for asked in self.asked if asked.what == what]

    def grantor(self, kind: str = "lock", name: str = "orders") -> RedisGrantor:
        """Return what asks for a name here, on the session of the running loop."""
        return Session.of(self).grantor(Keys("aiolocks:", kind, name))

    def asking(self, *, timeout: float | None = None, **options: Any) -> Acquisition:
        """Return what acquires the lock "orders" here."""
        grantor, terms = self.grantor(), Options(**{"ttl": 30.0, "acquire_timeout": timeout, **options})
        return Acquisition(grantor.context, grantor, b"orders", Request(terms.ttl, 1, wait=True), terms, timeout)

    def hold(self, **options: Any) -> Hold:
        return Hold(lambda: self.asking(**options).acquire(Lease), self)

    def client(self) -> Redis:
        """Return a client of this server, for a primitive; nothing can be asked through it directly."""
        pool: Any = self
        return Redis(connection_pool=pool)

    def runs(self, script: str) -> list[Asked]:
        return [asked for asked in self.asked if asked.what == script]

    async def aclose(self) -> None:
        """End the session of the running loop, and what it keeps going."""
        Session.of(self).close()
        await asyncio.sleep(0)

    close = aclose

    def cut(self) -> None:
        for connection in self.connections:
            connection.replies.put_nowait(RedisConnectionError("cut"))

    def make_connection(self) -> "_Connection":
        return _Connection(self)

    def get_encoder(self) -> Any:
        return _make_encoder("utf-8", "strict", False)


def ended(session: Session) -> bool:
    return session.context.closed


@contextlib.asynccontextmanager
async def session_of(server: Answering) -> AsyncIterator[Session]:
    """The session of the running loop with that server, which goes on until the end of the block."""
    session = Session.of(server)
    try:
        with session.context.in_use():
            yield session
    finally:
        session.close()
        await asyncio.sleep(0)


class _Connection:
    """What `open_connection` needs of redis-py's, without a stream."""

    retry: object
    health_check_interval: int
    socket_timeout: float | None

    def __init__(self, server: Answering) -> None:
        self._server = server
        self._reader: Any = self
        self._writer: Any = self
        self._parser: Any = hiredis.Reader()  # its stub knows neither what it takes nor what it returns
        self._busy_until = 0.0
        self._coming: deque[object] = deque()
        self.replies: asyncio.Queue[object] = asyncio.Queue()

    async def connect(self) -> None:
        self._server.tried.append(clock())
        with contextlib.suppress(*[asyncio.CancelledError] if self._server.deaf else []):
            await asyncio.sleep(math.inf if self._server.hangs else self._server.slow)
        if self._server.refuses:
            raise self._server.trouble
        self._server.connections.append(self)

    async def disconnect(self, nowait: bool = False) -> None:
        pass

    def writelines(self, packed: Iterable[bytes]) -> None:
        for data in packed:
            self._parser.feed(data)
        while words := self._parser.gets():
            asked = Asked(name_of(words), clock(), words)
            introduces = asked.what == "session_introduce"
            (self._server.introductions if introduces else self._server.asked).append(asked)
            try:
                reply = self._server.introduced if introduces else self._server.answer(asked)
            except Exception as error:
                reply = error
            if not isinstance(reply, Later):
                reply = Later(0.0, reply)
            self._busy_until = max(self._busy_until, clock() + reply.seconds)
            if self._busy_until < math.inf:
                self._coming.append(reply.reply)  # timers of one instant fire in any order
                asyncio.get_running_loop().call_at(self._busy_until, self._come)

    async def send_packed_command(self, packed: bytes) -> None:
        self.writelines([packed])

    def _come(self) -> None:
        self.replies.put_nowait(self._coming.popleft())

    async def read_response(self, **_: object) -> object:
        reply = await self.replies.get()
        if isinstance(reply, Exception):
            raise reply
        return reply


_make_encoder: Any = Encoder  # redis-py gives it no types


async def insist(grantor: RedisGrantor, *, until: float) -> Any:
    """Ask *grantor* for its statistics as what must be answered is asked for: again and again, ever more patiently."""
    return await grantor.ask_until(until, "statistics", (0,))
