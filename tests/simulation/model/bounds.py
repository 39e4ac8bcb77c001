"""The sizes at which the model is checked: small enough for every run of CI, larger for the night, and for defects.

Each looks at one part of the protocol in depth: all at once would be too many states. So two faults come together only
where the larger sizes say so, and three sessions have no late messages.
"""

from dataclasses import replace

from .checker import Bounds

LINK = ("withdraw", "break")
AUDIENCE = ("crash", "unsubscribe", "subscribed elsewhere")
MISHAPS = ("break", "crash", "lose notice", "unsubscribe", "forget")

RIGHT: dict[str, Bounds] = {
    "late messages": Bounds((1, 2), (2, 2), delays=2, least=5_000),
    "broken links": Bounds((1, 2), (1, 1), LINK, faults=1, least=7_000),
    "broken links, late messages": Bounds((1, 2), (1, 1), ("break",), faults=1, delays=1, least=26_000),
    "sent twice": Bounds((1, 2), (1, 1), ("break", "duplicate"), faults=2, least=16_000),
    "renewals": Bounds((1, 2), (3, 2), ("renew", "renew for longer"), delays=1, least=13_000),
    "one session's waiters": Bounds((1, 2, 2), (1, 1, 1), ("withdraw",), least=20_000),
    "subscriptions": Bounds((1, 2), (1, 1), ("subscribe", "withdraw", *AUDIENCE), faults=1, least=4_600),
    "unreachable waiters": Bounds((1, 2, 1), (1, 1, 1), ("unsubscribe",), faults=1, least=34_000),
    "data loss": Bounds((1, 2), (1, 1), ("wipe",), faults=1, delays=1, least=6_000),
    "nobody forgotten": Bounds((1, 2), (1, 1), MISHAPS, faults=1, holds=("NobodyForgotten",), least=3_700),
}
"""For CI: about a minute on one core."""

LARGE: dict[str, Bounds] = {
    "late messages": Bounds((1, 2), (3, 3), ("withdraw",), delays=4),
    "broken links": Bounds((1, 2), (2, 2), LINK, faults=1, delays=2),
    "broken links, twice": Bounds((1, 2), (1, 1), (*LINK, "lose notice", "forget"), faults=2),
    "sent twice": Bounds((1, 2), (1, 1), ("withdraw", "break", "duplicate"), faults=2, delays=1),
    "renewals": Bounds((1, 2), (3, 3), ("renew", "renew for longer", "break"), faults=1, delays=1),
    "one session's waiters": Bounds((1, 2, 2), (1, 1, 1), ("withdraw",), delays=1),
    "three sessions": Bounds((1, 2, 3), (1, 1, 1), delays=1),
    "subscriptions": Bounds((1, 2, 3), (1, 1, 1), ("subscribe", "withdraw")),
    "unreachable waiters": Bounds((1, 2, 3), (1, 1, 1), AUDIENCE, faults=2),
    "data loss": Bounds((1, 2, 3), (1, 1, 1), ("wipe",), faults=1),
    "nobody forgotten": Bounds((1, 2), (1, 1), (*MISHAPS, "withdraw"), faults=2, holds=("NobodyForgotten",)),
    "nobody of one session forgotten": Bounds((1, 2, 2), (1, 1, 1), MISHAPS, faults=1, holds=("NobodyForgotten",)),
}
"""For the night."""

_DEFECTS: dict[str, tuple[str, Bounds]] = {
    "validity from the reply": ("Mutex", Bounds((1, 2), (1, 1), delays=1)),
    "renewal from the reply": ("Mutex", Bounds((1, 2), (3, 3), ("renew",), delays=1)),
    "no local deadline": ("Mutex", Bounds((1, 2), (1, 1))),
    "counted from arrival": ("Mutex", Bounds((1, 2, 3), (1, 1, 1), delays=1)),
    "counted from another's re-check": ("Mutex", Bounds((1, 2, 3), (2, 2, 2), delays=1)),
    "no tombstone": ("NoOrphan", Bounds((1, 2), (1, 1), LINK, faults=1)),
    "release without compare": ("Mutex", Bounds((1, 2, 3), (1, 1, 1))),
    "renewal re-creates": ("NoOrphan", Bounds((1,), (2,), ("renew", "break"), faults=1)),
    "renewal shortens": ("Mutex", Bounds((1, 2), (2, 2), ("renew", "renew for longer"))),
    "fence by INCR": ("Fences", Bounds((1, 2), (1, 1), ("wipe",), faults=1)),
    "no re-check after subscribing": ("Prompt", Bounds((1, 2), (1, 1), ("subscribe",))),
    "no re-check": ("NobodyForgotten", Bounds((1, 2), (1, 1), ("lose notice",), faults=1)),
    "unknown is ignored": ("NobodyForgotten", Bounds((1, 2), (1, 1), ("forget",), faults=1)),
    "PUBLISH count": ("Mutex", Bounds((1, 2, 3), (1, 1, 1), ("subscribed elsewhere",), faults=1)),
    "releaser's ttl": ("Mutex", Bounds((1, 2, 3), (1, 2, 2))),
    "stale notices believed": ("Mutex", Bounds((1, 2, 3), (1, 1, 1), delays=1)),
    "re-check creates": ("NoOrphan", Bounds((1, 2), (1, 1), LINK, faults=1)),
    "barging": ("Fifo", Bounds((1, 2, 3), (1, 1, 1))),
}

DEFECTS = {name: replace(bounds, holds=(breaks,)) for name, (breaks, bounds) in _DEFECTS.items()}
"""By the name that Scripts.tla and Client.tla ask `Broken` about: the bounds within which one property is broken."""
