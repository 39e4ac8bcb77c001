"""Defects of single kinds: of modes, of several names or levels at once, of voting, of rates."""

from aiolocks import _rate_limiter
from aiolocks._grantors.min_hold import MinHold

from .planting import Defect, always, both, instead, marked, never


def _beside(*modes: str) -> str:
    return "local BESIDE = { " + ", ".join(f"'{each}'" for each in modes) + " }"


_RW, _TREE = ("rwlock",), ("hierarchy",)
_SEVERAL, _VOTED = ("multilock",), ("redlock",)

OF_KINDS: dict[str, Defect] = {
    "reader-beside-writer":
        Defect(instead("modes-beside", _beside("12345", "12", "1356", "1", "13", "", "5")), ("C1", "C3"), _RW),
    "reader-passes-writer": Defect(
        instead("modes-queue", "local existing = redis.call('EXISTS', tombstone, holders, holders, holders, holders)"),
        ("FIFO",), _RW,
    ),
    "one-reader-released-for-all": Defect(instead(
        "modes-released", "redis.call('HSET', meta, 'held',"
        " witness .. ' ' .. ends .. before .. (mode == '3' and 0 or count - 1) .. after)",
    ), ("C1", "C3"), _RW),
    "upgrade-beside-readers":
        Defect(instead("modes-beside", _beside("12345", "12", "135", "1", "13", "", "35")), ("C1", "C3"), _RW),
    "downgrade-releases": Defect(
        instead("modes-downgrade", "local freed = { 1 }\ndrop(token)\nhand_over(freed)\ndo return freed end"),
        ("P1",), _RW,
    ),
    "intentions-keep-nobody-out":
        Defect(instead("modes-beside", _beside("123456", "126", "135", "1", "13", "12", "5")), ("C1", "C3"), _TREE),
    "no-intentions-above":
        Defect(instead("levels-above", 'return [Keys(prefix, kind, "/".join(names), path=True)]'), ("C1", "C2"), _TREE),
    "levels-not-sealed": Defect(instead("modes-sealed", "for level, meta in ipairs({}) do"), ("P8", "C2", "C3"), _TREE),
    "names-in-any-order": Defect(
        instead("parts-order", "self.grantors = __import__('random').sample(list(grantors), len(grantors))"),
        ("P13", "C4"), _SEVERAL,
    ),
    "parts-kept-after-failing": Defect(both(
        instead("P7-granted-parts", "taken: list[Part] = []"),
        instead("P7-parts", "if part.ended is None and part is parts[-1]:"),
    ), ("P7",), _SEVERAL),
    "inner-block-releases-all": Defect(never("P5-shares"), ("P1", "P5"), ("rlock",)),
    "quorum-of-half": Defect(instead("P8-quorum", "return size // 2"), ("P1", "C1"), _VOTED),
    "late-grant-not-released":
        Defect(instead("P7-votes", "part.request.unanswered or end(part)"), ("P7", "P13", "C4"), _VOTED),
    "voted-validity-from-the-reply":
        Defect(instead("P1-votes", "return Granted(fence, self.context.clock())"), ("P1", "C1"), _VOTED),
    "start-counts-from-its-grant":
        marked(lambda garden: garden.put(_rate_limiter, "MinHold", lambda ms: MinHold(-ms)), "W28", kind="rate"),
    "start-released-before-it-begins":
        marked(instead("W28-release", "return await _release(lease)"), "W28", kind="rate"),
    "cancelled-call-uses-a-start": marked(always("W28-held"), "P7", kind="rate"),
    "start-has-no-time-to-be-late": marked(lambda garden: garden.put(_rate_limiter, "_LATE", 0.0), "W28", kind="rate"),
}  # fmt: skip
