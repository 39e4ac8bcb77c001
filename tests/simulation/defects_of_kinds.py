"""Defects of what is not shared by all: of modes, of several names or levels at once, of voting, of versions."""

from .planting import Defect, both, instead, never


def _beside(*modes: str) -> str:
    return "local BESIDE = { " + ", ".join(f"'{each}'" for each in modes) + " }"


OF_MODES: dict[str, Defect] = {
    "reader-beside-writer": Defect(
        instead("modes-beside", _beside("12345", "12", "1356", "1", "13", "", "5")), ("C1", "C3"), ("rwlock",)
    ),
    "reader-passes-writer": Defect(
        instead(
            "modes-queue",
            "local existing = redis.call('EXISTS', tombstone, holders, holders, holders, holders)",
        ),
        ("FIFO",),
        ("rwlock",),
    ),
    "one-reader-released-for-all": Defect(
        instead(
            "modes-released",
            "redis.call('HSET', meta, 'held',"
            " witness .. ' ' .. ends .. before .. (mode == '3' and 0 or count - 1) .. after)",
        ),
        ("C1", "C3"),
        ("rwlock",),
    ),
    "upgrade-beside-readers": Defect(
        instead("modes-beside", _beside("12345", "12", "135", "1", "13", "", "35")), ("C1", "C3"), ("rwlock",)
    ),
    "downgrade-releases": Defect(
        instead("modes-downgrade", "local freed = { 1 }\ndrop(token)\nhand_over(freed)\ndo return freed end"),
        ("P1",),
        ("rwlock",),
    ),
    "intentions-keep-nobody-out": Defect(
        instead("modes-beside", _beside("123456", "126", "135", "1", "13", "12", "5")), ("C1", "C3"), ("hierarchy",)
    ),
}  # fmt: skip
"""Of RWLock and HierarchicalLock."""

OF_PARTS: dict[str, Defect] = {
    "no-intentions-above": Defect(
        instead("levels-above", 'return [Keys(prefix, kind, "/".join(names), path=True)]'),
        ("C1", "C2"),
        ("hierarchy",),
    ),
    "levels-not-sealed": Defect(
        instead("modes-sealed", "for level, meta in ipairs({}) do"), ("P8", "C2", "C3"), ("hierarchy",)
    ),
    "names-in-any-order": Defect(
        instead("parts-order", "self.grantors = __import__('random').sample(list(grantors), len(grantors))"),
        ("P13", "C4"),
        ("multilock",),
    ),
    "parts-kept-after-failing": Defect(
        both(
            instead("P7-granted-parts", "taken: list[Part] = []"),
            instead("P7-parts", "if part.ended is None and part is parts[-1]:"),
        ),
        ("P7",),
        ("multilock",),
    ),
    "inner-block-releases-all": Defect(never("P5-shares"), ("P1", "P5"), ("rlock",)),
}  # fmt: skip
"""Of MultiLock, HierarchicalLock and RLock, whose leases are several in one or one in several."""

OF_VOTING: dict[str, Defect] = {
    "quorum-of-half": Defect(instead("P8-quorum", "return size // 2"), ("P1", "C1"), ("redlock",)),
    "late-grant-not-released": Defect(
        instead("P7-votes", "part.request.unanswered or end(part)"), ("P7", "P13", "C4"), ("redlock",)
    ),
    "voted-validity-from-the-reply": Defect(
        instead("P1-votes", "return Granted(fence, self.context.clock())"), ("P1", "C1"), ("redlock",)
    ),
}  # fmt: skip
"""Of Redlock."""

OF_KINDS = OF_MODES | OF_PARTS | OF_VOTING
