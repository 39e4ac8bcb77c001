"""Checks the user's rights: tries each command that locks use, on a key and a channel of the prefix.

The key is deleted at the end. Without the right to DEL it expires within a second.
"""

import asyncio
import re
from collections.abc import Sequence
from typing import Any

from redis.exceptions import NoPermissionError, RedisError, ResponseError

from ..._core.keys import Keys, channel_of
from .._connect import PATIENCE
from ._finding import Finding, Verdict

_LIFE_MS = 1000
_NOTHING = "return 1"
_NOWHERE = "0" * 40

_FORBIDS_KEY = re.compile(r"access .*\bkeys?\b")
_FORBIDS_CHANNEL = re.compile(r"access .*\bchannels?\b")

BROADCASTS = {"+subscribe", "+unsubscribe", "+publish", "+pubsub|numsub"}
_SHARDED = {"+ssubscribe", "+sunsubscribe", "+spublish", "+pubsub|shardnumsub"}

WAKE_UPS = frozenset({*BROADCASTS, *_SHARDED, "&"})
"""Rights for wake-ups. Without them waiters poll. Without any other right locks do not work."""

Attempt = tuple[str, tuple[Any, ...]]


def attempts(key: bytes, channel: bytes, *, of_node: bool = False, sharded: bool = False) -> list[Attempt]:
    """Return the commands that locks use, each with its right, in an order that deletes the key in the end.

    *of_node* adds the commands for a node of a Cluster. *sharded* tries sharded channels, which wake the waiters there.

    The key holds a string all the time. So a command for a hash or a sorted set fails with WRONGTYPE if its right is
    given, and with NOPERM if it is missing.
    """
    wake_ups: list[Attempt] = [
        ("+pubsub|numsub", ("PUBSUB", "NUMSUB", channel)),
        ("+publish", ("PUBLISH", channel, "")),
    ]
    if sharded:
        wake_ups = [
            ("+pubsub|shardnumsub", ("PUBSUB", "SHARDNUMSUB", channel)),
            ("+spublish", ("SPUBLISH", channel, "")),
        ]
    more: list[Attempt] = [
        ("+cluster|slots", ("CLUSTER", "SLOTS")),
        ("+command", ("COMMAND", "INFO", "GET")),
        ("+asking", ("ASKING",)),
    ]
    return [
        ("+set", ("SET", key, "1", "PX", _LIFE_MS)),
        ("+pexpire", ("PEXPIRE", key, _LIFE_MS)),
        ("+get", ("GET", key)),
        ("+exists", ("EXISTS", key)),
        ("+pttl", ("PTTL", key)),
        ("+time", ("TIME",)),
        ("+hmget", ("HMGET", key, "field")),
        ("+hset", ("HSET", key, "field", "1")),
        ("+hdel", ("HDEL", key, "field")),
        ("+zadd", ("ZADD", key, 1, "member")),
        ("+zcard", ("ZCARD", key)),
        ("+zcount", ("ZCOUNT", key, "-inf", "+inf")),
        ("+zrange", ("ZRANGE", key, 0, 0)),
        ("+zrangebyscore", ("ZRANGEBYSCORE", key, "-inf", "+inf")),
        ("+zrank", ("ZRANK", key, "member")),
        ("+zscore", ("ZSCORE", key, "member")),
        ("+zrem", ("ZREM", key, "member")),
        ("+eval", ("EVAL", _NOTHING, 1, key)),
        ("+evalsha", ("EVALSHA", _NOWHERE, 1, key)),
        *wake_ups,
        *(more if of_node else ()),
        ("+pexpire", ("PEXPIRE", key, _LIFE_MS)),
        ("+del", ("DEL", key)),
    ]


_CREATES_A_KEY = {"+hset", "+zadd"}
"""Without +set, these commands create the key."""


async def missing_rights(
    client: Any, prefix: str, name: str, *, of_node: bool = False, sharded: bool = False
) -> tuple[list[str], str]:
    """Try all commands. Return the missing rights, and the error if the server refuses writes for another reason.

    `~` means the keys of the prefix, `&` its channels.
    """
    keys = Keys(prefix, "lock", name)
    missing: dict[str, None] = {}
    refusal = ""
    # The brace puts a sharded channel into the slot of the name, on the same node.
    channel = channel_of(keys.base, keys.channels + (b"{" if sharded else b""), name.encode())
    for right, command in attempts(keys.base, channel, of_node=of_node, sharded=sharded):
        if right in _CREATES_A_KEY and {"+set", "+pexpire"} <= missing.keys():
            continue
        try:
            await client.execute_command(*command)
        except NoPermissionError as error:
            missing[_right_in(error, right)] = None
        except ResponseError as error:
            text = str(error)
            if "unknown command" in text:  # renamed, as on hosted servers
                missing[right] = None
            elif right == "+set":
                refusal = text
    for right in await _missing_to_listen(client, channel, "s" if sharded else ""):
        missing[right] = None
    return list(missing), refusal


async def _missing_to_listen(client: Any, channel: bytes, shard: str) -> list[str]:
    """Subscribe and unsubscribe on a separate connection, as waiters do, and return the missing rights."""
    listener = client.pubsub()
    missing: list[str] = []
    try:
        for verb in (f"{shard}subscribe", f"{shard}unsubscribe"):
            right = f"+{verb}"
            try:
                await getattr(listener, verb)(channel)
                async with asyncio.timeout(PATIENCE):
                    while await listener.get_message(timeout=PATIENCE) is None:
                        pass
            except NoPermissionError as error:
                missing.append(_right_in(error, right))
                if not verb.endswith("unsubscribe"):
                    break
    finally:
        try:
            await listener.aclose()
        except RedisError:
            pass
    return missing


def _right_in(error: NoPermissionError, right: str) -> str:
    text = str(error)
    return "~" if _FORBIDS_KEY.search(text) else "&" if _FORBIDS_CHANNEL.search(text) else right


def rights(missing: Sequence[str], prefix: str) -> Finding:
    """May this user run the commands of locks?"""
    lacks = [right for right in missing if right not in WAKE_UPS]
    return _judge(
        "rights", lacks, prefix, "this user has all rights that locks need", Verdict.DANGER, "locks do not work"
    )


def wake_ups(missing: Sequence[str], prefix: str) -> Finding:
    """May this user send and receive wake-ups?"""
    lacks = [right for right in missing if right in WAKE_UPS]
    effect = "waiters have to poll, and are granted up to a second late"
    return _judge("wake-ups", lacks, prefix, "waiters are woken by messages", Verdict.WARNING, effect)


def _judge(check: str, lacks: Sequence[str], prefix: str, good: str, verdict: Verdict, effect: str) -> Finding:
    if not lacks:
        return Finding(check, Verdict.OK, good)
    found, figures = _named(lacks, prefix), {"missing": [_named([right], prefix) for right in lacks]}
    return Finding(check, verdict, f"this user lacks {found}: {effect}", f"ACL SETUSER USER {found}", figures)


def _named(missing: Sequence[str], prefix: str) -> str:
    return " ".join(f"{right}{prefix}*" if right in "~&" else right for right in missing)
