"""The server: fakeredis, as behind `memory://`, spoken to in bytes and living by a clock of its own.

The scripts and every command in them are run as fakeredis runs them; only compiling is done once per script, not once
per call, and replies leave as bytes.
"""

from collections.abc import Callable
from functools import lru_cache
from hashlib import sha1
from typing import TYPE_CHECKING, Any, Protocol, final

from fakeredis import FakeServer
from fakeredis._helpers import SimpleError
from fakeredis._socket import FakeSocket
from lupa import lua51
from redis.asyncio import Redis

from aiolocks._core.keys import channel_of, of_shard

from .world import EPOCH, World

if TYPE_CHECKING:
    from .cluster import Node

WAKE = b"aiolocks:wake:"
"""What channels begin with."""


class Outlet(Protocol):
    """Where a connection's replies go."""

    def reply(self, data: bytes) -> None: ...


class Watcher(Protocol):
    """Who looks over the server's shoulder."""

    def executed(self, session: "ServerSocket", fields: list[bytes], reply: Any) -> None: ...
    def published(self, channel: bytes, message: bytes, subscribers: int) -> None: ...
    def unsubscribed(self, channels: list[bytes]) -> None: ...


@final
class RawError(Exception):
    """An error reply as the server words it."""


class _Lua:
    """One interpreter for all servers: scripts leave no globals behind."""

    def __init__(self) -> None:
        self.runtime: Any = lua51.LuaRuntime(encoding=None, unpack_returned_tuples=True)
        self.caller: Any = None
        self.runtime.globals()[b"redis"] = self.runtime.table_from({b"call": self._call, b"pcall": self._pcall})
        self.compiled = lru_cache(maxsize=256)(
            lambda script: self.runtime.compile(b"local KEYS, ARGV = ...\n" + script)
        )

    def _call(self, op: bytes, *args: Any) -> Any:
        return self.caller.call_from_script(op, args)

    def _pcall(self, op: bytes, *args: Any) -> Any:
        try:
            return self.caller.call_from_script(op, args)
        except SimpleError as error:
            return self.runtime.table_from({b"err": error.value.encode()})


_lua = _Lua()

_CHANNEL_COMMANDS = frozenset(
    {"subscribe", "publish", "pubsub numsub", "psubscribe", "ssubscribe", "spublish", "pubsub shardnumsub"}
)

_READS = frozenset({
    "exists", "get", "hget", "hgetall", "hmget", "info", "pttl", "publish", "pubsub numsub", "pubsub shardnumsub",
    "spublish", "time", "type", "zcard", "zcount", "zrange", "zrangebyscore", "zrank", "zrevrange", "zscore",
})  # fmt: skip
"""Whatever else a script may do is a write, as far as the library's scripts are concerned."""


class ServerSocket(FakeSocket):
    """The server's end of one connection. Not a part of fakeredis's surface, hence Any here and there."""

    def __init__(self, server: "Server", number: int, outlet: Outlet | None, *, channels: bool) -> None:
        super().__init__(server.fake, 0, client_class=Redis, lua_modules=None)  # type: ignore[no-untyped-call,unused-ignore]
        self.number = number
        self.server = server
        self.outlet = outlet
        self.channels = channels
        self.gone = False
        self.asking = False  # whether the next request may be for a slot that is being moved here
        self.last: Any = None

    def put_response(self, msg: Any) -> None:
        self.last = msg
        if self.outlet is not None:
            self.server.dirty.setdefault(self.number, (self, []))[1].append(encoded(msg))

    def _decode_error(self, error: SimpleError) -> Any:
        return RawError(error.value)

    def _keyspace_notifications(self, *_: Any) -> None:
        pass  # off by default

    def _name_to_func(self, cmd_name: str) -> Any:
        if cmd_name in _CHANNEL_COMMANDS and not self.channels:
            raise SimpleError("NOPERM this user has no permissions to access one of the channels used as arguments")
        return super()._name_to_func(cmd_name)

    def eval(self, script: bytes, numkeys: int, *keys_and_args: bytes) -> Any:
        self._server.script_cache[self.server.digest(script)] = script
        table = _lua.runtime.table_from
        _lua.caller = self
        self._script_resp = 2
        try:
            result = _lua.compiled(script)(table(keys_and_args[:numkeys]), table(keys_and_args[numkeys:]))
        except lua51.LuaError as error:
            raise SimpleError(f"ERR {error}") from None
        finally:
            self._script_resp = None
        return self._convert_lua_result(result, nested=False)

    def call_from_script(self, op: bytes, args: tuple[Any, ...]) -> Any:
        command = op.decode().lower()
        if command == "pubsub":
            command, args = f"pubsub {args[0].decode().lower()}", args[1:]
        function, signature = self._name_to_func(command)
        values = [_argument(value) for value in args]
        if self.server.refusing and command not in _READS:
            raise SimpleError(self.server.refusing)
        if self.server.gate is not None:
            self.server.gate.check(self, command, values)
        result = self._run_command(function, signature, values, True)
        return self._convert_redis_result(_lua.runtime, result)

    def publish(self, channel: bytes, message: bytes) -> Any:
        self.server.watcher.published(channel, message, self.server.subscribers(channel))
        return super().publish(channel, message)

    def spublish(self, channel: bytes, message: bytes) -> Any:
        self.server.watcher.published(channel, message, self.server.subscribers(channel))
        return super().spublish(channel, message)

    def unsubscribe_from_shard(self, channel: bytes) -> None:
        """Tell, unasked, that the node does not have the channel's slot any more."""
        self._unsubscribe([channel], self._server.ssubscribers, b"sunsubscribe")


def _argument(value: Any) -> bytes:
    if type(value) is bytes:
        return value
    if type(value) in (int, float):
        return b"%.17g" % value
    raise SimpleError("ERR Lua redis lib command arguments must be strings or integers")


def encoded(value: Any) -> bytes:
    if type(value) is bytes:
        return b"$%d\r\n%b\r\n" % (len(value), value)
    if type(value) is int:
        return b":%d\r\n" % value
    if isinstance(value, (list, tuple)):
        return b"*%d\r\n%b" % (len(value), b"".join(map(encoded, value)))
    if value is None:
        return b"$-1\r\n"
    if isinstance(value, RawError):
        return b"-%b\r\n" % str(value).encode()
    raise TypeError(f"no reply: {value!r}")


@final
class Server:
    """Executes requests in the order in which they come, unless it is stopped or down."""

    def __init__(self, world: World, rate: float) -> None:
        self._world = world
        self._rate = rate
        self._offset = 0.0
        self.watcher: Watcher
        self.dirty: dict[int, tuple[ServerSocket, list[bytes]]] = {}
        self.down = False
        self.stopped = False
        self.refusing = ""  # the error that every write gets for now
        self.gate: Node | None = None
        self._backlog: list[Callable[[], None]] = []
        self._sockets: dict[int, ServerSocket] = {}
        self._numbers = 0
        self.digest = lru_cache(maxsize=256)(lambda script: sha1(script).hexdigest().encode())
        world.wall = self.clock
        self.fake = FakeServer(version=(7,))

    def clock(self) -> float:
        return EPOCH + self._offset + self._world.now * self._rate

    def true_time(self, wall: float) -> float:
        """Return when the server's clock will show *wall*, or did."""
        return (wall - EPOCH - self._offset) / self._rate

    def step(self, seconds: float) -> None:
        self._offset += seconds

    def accept(self, outlet: Outlet | None, *, channels: bool = True) -> ServerSocket:
        self._numbers += 1
        return self._sockets.setdefault(self._numbers, ServerSocket(self, self._numbers, outlet, channels=channels))

    def close(self, socket: ServerSocket) -> None:
        if socket.gone:
            return
        socket.gone = True
        del self._sockets[socket.number]
        lost = [channel for channel, others in self.fake.subscribers.items() if socket in others]
        for channel, others in self.fake.ssubscribers.items():
            if socket in others:
                others.discard(socket)
                lost.append(channel)
        socket._cleanup(self.fake)
        self.fake.sockets.remove(socket)
        self.watcher.unsubscribed(lost)

    def subscribers(self, channel: bytes) -> int:
        return len((self.fake.ssubscribers if of_shard(channel) else self.fake.subscribers).get(channel, ()))

    def listeners(self, base: bytes, session: bytes) -> int:
        """Return how many connections are told what is for *session* of the name of *base*."""
        return self.subscribers(channel_of(base, WAKE, session))

    def when_running(self, action: Callable[[], None]) -> None:
        """Do *action* now, or as soon as the server is not stopped any more; a server that is down forgets it."""
        if self.stopped:
            self._backlog.append(action)
        elif not self.down:
            action()

    def execute(self, socket: ServerSocket, fields: list[bytes]) -> None:
        """Run one request; the replies to it and what it publishes leave at once."""
        world = self._world
        earlier, world.wall = world.wall, self.clock
        socket.last = None
        try:
            answer = self.gate.answer(socket, fields) if self.gate is not None else None
            if answer is None:
                socket._process_command(fields)
            else:
                socket.put_response(answer)
        finally:
            world.wall = earlier
            socket.asking = fields[0] == b"ASKING"
        self.watcher.executed(socket, fields, socket.last)
        self.send_replies()

    def send_replies(self) -> None:
        dirty, self.dirty = self.dirty, {}
        for number in sorted(dirty):
            other, replies = dirty[number]
            if other.outlet is not None and not other.gone:
                other.outlet.reply(b"".join(replies))

    def resume(self) -> None:
        self.stopped = False
        backlog, self._backlog = self._backlog, []
        for action in backlog:
            self.when_running(action)

    def flush_scripts(self) -> None:
        self.fake.script_cache.clear()

    def flush_data(self) -> None:
        with self.fake.lock:
            for database in self.fake.dbs.values():
                database.clear()

    def sockets(self) -> list[ServerSocket]:
        return list(self._sockets.values())

    def database(self) -> Any:
        """Return the keys as they stand now by the server's clock."""
        database = self.fake.dbs[0]
        database.time = self.clock()
        return database

    def keys(self) -> dict[bytes, int]:
        """Return each key with the milliseconds it has left, -1 for one that has no end."""
        database = self.database()
        ends = {key: database[key].expireat for key in list(database)}
        return {key: -1 if end is None else round(1000 * (end - database.time)) for key, end in ends.items()}
