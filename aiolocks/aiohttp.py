"""A decorator for aiohttp handlers that holds a lock around them and answers "busy" in terms of HTTP.

The one rule: the response is sent after the release, so a request whose lease was lost never gets a success.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from functools import wraps
from typing import Any, TypeVar, TypeVarTuple, Unpack, final

from . import Lease, LockManager
from ._core.options import Duration, TrackedOptions
from ._web import LOST, RESTART, Answers, Plan, Status, check_callables, check_known, fields_of, name_from, retry_header
from ._web_background import Leads, check_background, in_background

try:
    from aiohttp import web
    from aiohttp.http import WebSocketReader
except ImportError as missing:
    raise ImportError("aiolocks.aiohttp needs the extra 'aiohttp' of aiolocks") from missing

__all__ = ["LOCKS", "HTTPLocked", "cleanup_ctx", "locked"]

LOCKS = web.AppKey("LOCKS", LockManager)
"""Key of the manager in an application: ``app[LOCKS]``. Nested applications find it too."""

Target = TypeVarTuple("Target")
Response = TypeVar("Response", bound=web.StreamResponse)


def cleanup_ctx(
    url: str, *, background: Leads | None = None, holder: str | None = None, **options: Unpack[TrackedOptions]
) -> Callable[[web.Application], AsyncIterator[None]]:
    """Return a cleanup context that keeps a manager in ``app[LOCKS]`` while the application runs::

        app.cleanup_ctx.append(aiolocks.aiohttp.cleanup_ctx("redis://localhost", ttl=10))

    Args:
        url, holder, options: The same as for `LockManager.from_url`.
        background: Coroutine functions that one worker of the fleet runs at a time, each under the name of an
            `Election`: ``{"scheduler": lead}``. A function whose worker ends, or that raises, is run by the next one.

    Raises:
        TypeError: *background* is not a mapping of names to functions.
        ValueError: A wrong name in *background*. When the application starts: an unknown kind of URL, or an option out
            of range.

    An exception of a function in *background* is one ERROR in the log. Its worker stands again after 1 s, and after up
    to a TTL if it fails again and again. If it returns, its worker stands no more. At shutdown it is cancelled and its
    lease released, as by `Election.resign`. The shutdown waits a TTL at most for a function that does not end.

    The application starts without asking Redis. While Redis is down, its requests are answered with 503. Contexts that
    are appended later find the manager, and end before it is closed.
    """

    leads = check_background(background)

    async def keep(app: web.Application) -> AsyncIterator[None]:
        async with LockManager.from_url(url, holder=holder, **options) as app[LOCKS]:
            async with in_background(app[LOCKS], leads):
                yield

    return keep


class HTTPLocked(web.HTTPClientError):
    """423 Locked, which aiohttp has no class for."""

    status_code = 423


_REFUSALS: dict[int, type[web.HTTPError]] = {
    409: web.HTTPConflict,
    423: HTTPLocked,
    429: web.HTTPTooManyRequests,
    503: web.HTTPServiceUnavailable,
}


def _app_locks(request: web.Request) -> LockManager:
    try:
        return request.config_dict[LOCKS]
    except KeyError:
        raise RuntimeError(
            "app[LOCKS] is missing: put a LockManager there, as `aiolocks.aiohttp.cleanup_ctx` does, or pass locks= to "
            "locked()"
        ) from None


def locked(
    name: str | Callable[[web.Request], str],
    *,
    limit: int | None = None,
    timeout: Duration | None = 0.0,
    status: Status = 423,
    retry_after: Duration | None = None,
    detail: str | None = None,
    locks: Callable[[web.Request], LockManager] = _app_locks,
    **options: Unpack[TrackedOptions],
) -> Callable[[Callable[[*Target, Lease], Awaitable[Response]]], Callable[[*Target], Coroutine[Any, Any, Response]]]:
    """Return a decorator that holds a lock while the handler runs, and passes the lease as its last argument.

    ::

        @routes.post("/carts/{cart_id}/checkout")
        @locked("carts:{cart_id}", timeout=2)
        async def checkout(request: web.Request, lease: Lease) -> web.Response: ...

    Handlers may be functions, methods that take the request, and methods of a `web.View`. They may open a WebSocket.
    Several decorators acquire from the outermost to the innermost, and pass the leases in this order.

    Args:
        name: What to lock. Either a function of the request that returns the name, or a template over ``match_info``,
            whose values are the texts of the URL. If ``7`` and ``007`` are one cart, let the route accept only one
            form (``{cart_id:[1-9][0-9]*}``). Quote texts that may contain the separator, as in ``{a!r}:{b!r}``.
            Without quotes, two resources can share a name. A template puts texts into Unicode's form NFC, since a
            client may send one text in another form. A name that a function returns is used as it is.
        limit: Hold one permit of a semaphore with this limit, instead of a lock.
        timeout: Seconds to wait before the answer is "busy". 0 asks once. None waits for ever. With
            ``max_waiting=20`` among the options, a request that finds 20 waiting gets this answer at once.
        status: Status of the answer "busy": 409, 423, 429 or 503.
        retry_after: Seconds after which the client may ask again, sent as ``Retry-After`` in whole seconds. None sends
            the error's own `retry_after`, at least 1: the time until the current lease ends if its holder has died. If
            that is unknown, no header is sent.
        detail: Body of the answer "busy". None means the default text of the status.
        locks: A function of the request that returns the manager, whose defaults apply.
        options: Options of the lease, which override the manager's. See `Lock`. With ``on_lost="flag"`` the handler's
            answer is sent even after a loss.

    Raises:
        TypeError: A wrong type, or an unknown option.
        ValueError: A value out of range, or a template whose fields are not plain names.
        RuntimeError: At the first request: ``app[LOCKS]`` is missing, or the route lacks a field of the template.

    A request fails with *status* (`HTTPLocked` for 423) when the lock is busy, with 503 when Redis could not be asked
    or the handler or its lock raised `LeaseLostError`, and with 400 when its values make a name that is empty or longer
    than 1,024 bytes.

    After a loss, an answer below 400 becomes 503, whether the handler returns or raises it (`web.HTTPSeeOther`). Any
    other exception of the handler, except `LeaseLostError`, is raised as it is. Do not let a middleware turn it into a
    success.

    When the lease is lost, the handler is cancelled at its next await. If its response has begun, it is cut off and the
    handler raises `LeaseLostError`. A WebSocket is closed with 1012. If the client disconnects, aiohttp cancels the
    handler, which frees the lock, only with ``handler_cancellation=True``. Otherwise the lock is held until the handler
    ends.
    """
    check_callables(name, locks, "a function of the request")
    fields = fields_of(name) if isinstance(name, str) else []
    plan = Plan(
        "app[LOCKS]",
        limit=limit,
        timeout=timeout,
        status=status,
        retry_after=retry_after,
        detail=detail,
        options=options,
    )

    def name_of(request: web.Request) -> str:
        if not isinstance(name, str):
            return name(request)
        check_known(name, fields, request.match_info, request.path, "a function of the request")
        return name_from(name, request.match_info)

    def decorate(
        handler: Callable[[*Target, Lease], Awaitable[Response]],
    ) -> Callable[[*Target], Coroutine[Any, Any, Response]]:
        @wraps(handler)
        async def holding(*target: *Target) -> Response:
            request = _request(target)
            async with plan.hold(locks(request), name_of(request), _Answers(request)) as lease:
                return await handler(*target, lease)

        return holding

    return decorate


def _request(target: tuple[Any, ...]) -> web.Request:
    """Return the request among the arguments of a handler: `self` may precede it, and other locks' leases follow it."""
    for argument in target:
        if isinstance(argument, web.Request):
            return argument
        if isinstance(argument, web.View):
            return argument.request
    raise TypeError("locked() is for handlers: functions and methods that take the request, and methods of a web.View")


@final
class _Answers(Answers):
    def __init__(self, request: web.Request) -> None:
        self._request = request
        self._sent = request.writer.output_size  # "100 Continue", with aiohttp 3.10

    def refusal(self, status: int, retry_after: int | None, detail: str | None) -> Exception:
        return _REFUSALS[status](headers=retry_header(retry_after), text=detail)

    def invalid(self, name: str, why: str) -> Exception:
        return web.HTTPBadRequest(text=why)

    def loss(self, retry_after: int | None) -> Exception | None:
        writer = self._request.writer
        # aiohttp 3.14 sends the head of a plain response late. But once it is prepared as chunked, our answer would be
        # chunked too.
        if writer.output_size == self._sent and not getattr(writer, "chunked", False):
            return self.refusal(503, retry_after, None)
        transport = self._request.transport
        if transport is not None and not transport.is_closing():
            # The handler, which owns the response object, has ended, so the close frame is written to the transport.
            if isinstance(getattr(self._request.protocol, "_payload_parser", None), WebSocketReader):
                transport.write(_CLOSE_FRAME)
            transport.close()  # so that a middleware that handles the error cannot send more
        return None

    def is_success(self, error: Exception) -> bool:
        return isinstance(error, web.HTTPException) and error.status < 400


_reason = RESTART.to_bytes(2, "big") + LOST.encode()
_CLOSE_FRAME = bytes([0x88, len(_reason)]) + _reason
"""Final, opcode 8, not masked: the form of RFC 6455 for a server."""
