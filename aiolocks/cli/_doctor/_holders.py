"""Leases that never end although their process is gone: each keeps its name until it is freed by hand."""

from contextlib import aclosing

from redis.exceptions import RedisError

from .. import _names
from .._errors import Unusable
from .._ls import ENDLESS, printable
from .._nodes import primaries
from ._finding import Finding, Verdict

_MOST_LOOKED_AT = 200
"""Maximum number of SCAN steps: at a thousand keys each, they take a second or two on a big server."""

_MOST_TOLD = 5


async def endless(url: str, prefix: str) -> list[Finding]:
    """Return a finding if the first keys of the server show any such lease; nothing if this user may not look."""
    found = list[_names.Name]()
    try:
        async with primaries(url) as there, aclosing(_names.scan(there, prefix, steps=1)) as pages:
            looked = 0
            async for page in pages:
                await _names.look(there, page, prefix)
                found += [name for name in page if any(one.state == _names.ORPHANED for one in name.holders)]
                looked += 1
                if looked == _MOST_LOOKED_AT:
                    break
    except (RedisError, OSError, Unusable):
        return []
    if not found:
        return []
    names = ", ".join(printable(name.name) for name in found[:_MOST_TOLD])
    more = f" and {len(found) - _MOST_TOLD} more" if len(found) > _MOST_TOLD else ""
    return [
        Finding(
            "holders",
            Verdict.WARNING,
            f"{names}{more}: {ENDLESS}",
            "free each with aiolocks release NAME --force, and find out what takes the expiry away (PERSIST?)",
            {"endless": [name.name for name in found]},
        )
    ]
