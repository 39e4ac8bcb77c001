"""Leases that never end although their process is gone (W23). Each blocks its name until it is freed by hand."""

from contextlib import aclosing

from redis.exceptions import RedisError

from .. import _names
from .._arguments import Unusable, shown
from .._ls import ENDLESS
from .._nodes import primaries
from ._finding import Finding, Verdict

_MAX_STEPS = 200
"""Maximum number of SCAN steps. At a thousand keys each, they take a second or two on a big server."""

_MAX_LISTED = 5


async def endless(url: str, prefix: str) -> list[Finding]:
    """Return a finding if such leases are among the first keys of the server, and this user may read them."""
    found = list[_names.Name]()
    try:
        async with primaries(url) as there, aclosing(_names.scan(there, prefix, steps=1)) as pages:
            steps = 0
            async for page in pages:
                await _names.read(there, page, prefix)
                found += [name for name in page if any(one.state == _names.ORPHANED for one in name.holders)]
                steps += 1
                if steps == _MAX_STEPS:
                    break
    except (RedisError, OSError, Unusable):
        return []
    if not found:
        return []
    names = ", ".join(shown(name.name) for name in found[:_MAX_LISTED])
    more = f" and {len(found) - _MAX_LISTED} more" if len(found) > _MAX_LISTED else ""
    return [
        Finding(
            "holders",
            Verdict.WARNING,
            f"{names}{more}: {ENDLESS}",
            "free each with aiolocks release NAME --force, and find out which client removes the expiry (PERSIST?)",
            {"endless": [name.name for name in found]},
        )
    ]
