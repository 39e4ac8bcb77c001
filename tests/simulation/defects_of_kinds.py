"""Defects of what is not shared by all: of modes, of several names or levels at once, of voting, of versions."""

from aiolocks._grantors import all_of as _all_of
from aiolocks._grantors import composite as _composite
from aiolocks._grantors import quorum as _quorum
from aiolocks._grantors import votes as _votes
from aiolocks._primitives import hierarchy as _hierarchy
from aiolocks._primitives import reentry as _reentry
from tests.support.garden import Garden

from .planting import Defect, lua, python, shared

_BESIDE = "{ '12345', '12', '135', '1', '13', '', '5' }"


def _parts_kept(garden: Garden) -> None:
    garden.source(
        _all_of.AllOf, "_ask_once", "if isinstance(answer, Granted):\n            until", "if False:\n            until"
    )
    garden.source(_composite, "undo_parts", "if part.ended is None:", "if part.ended is None and part is parts[-1]:")


OF_MODES: dict[str, Defect] = {
    "reader-beside-writer": Defect(
        shared(_BESIDE, "{ '12345', '12', '1356', '1', '13', '', '5' }"), ("C1", "C3"), ("rwlock",)
    ),
    "reader-passes-writer": Defect(
        lua("modes/grant", "redis.call('EXISTS', queue, waiters, tombstone, h", "redis.call('EXISTS', tombstone, h"),
        ("FIFO",),
        ("rwlock",),
    ),
    "one-reader-released-for-all": Defect(
        lua("modes/release", "before .. count - 1 ..", "before .. (mode == '3' and 0 or count - 1) .."),
        ("C1", "C3"),
        ("rwlock",),
    ),
    "upgrade-beside-readers": Defect(
        shared(_BESIDE, "{ '12345', '12', '135', '1', '13', '', '35' }"), ("C1", "C3"), ("rwlock",)
    ),
    "downgrade-releases": Defect(
        lua(
            "modes/downgrade",
            "held[before] = held[before] - 1\nheld[tonumber(mode)] = held[tonumber(mode)] + 1\n"
            "write(token, mode .. ' ' .. digits(number))\nnote()",
            "drop(token)",
        ),
        ("P1",),
        ("rwlock",),
    ),
    "intentions-keep-nobody-out": Defect(
        shared(_BESIDE, "{ '123456', '126', '135', '1', '13', '12', '5' }"), ("C1", "C3"), ("hierarchy",)
    ),
}  # fmt: skip
"""Of RWLock and HierarchicalLock."""

OF_PARTS: dict[str, Defect] = {
    "no-intentions-above": Defect(
        python(_hierarchy, "levels", "for depth in range(len(names))]", "for depth in range(len(names))][-1:]"),
        ("C1", "C2"),
        ("hierarchy",),
    ),
    "levels-not-sealed": Defect(
        lua("modes/fence", "ipairs(metas) do\n  redis.call('HSET'", "ipairs({}) do\n  redis.call('HSET'"),
        ("P8", "C2", "C3"),
        ("hierarchy",),
    ),
    "names-in-any-order": Defect(
        python(
            _all_of.AllOf,
            "__init__",
            "self._grantors = grantors",
            "self._grantors = __import__('random').sample(list(grantors), len(grantors))",
        ),
        ("P13", "C4"),
        ("multilock",),
    ),
    "parts-kept-after-failing": Defect(_parts_kept, ("P7",), ("multilock",)),
    "inner-block-releases-all": Defect(
        python(_reentry.SharedLease, "let_go", "if self._shares:\n", "if False:\n"),
        ("P1", "P5"),
        ("rlock",),
    ),
}  # fmt: skip
"""Of MultiLock, HierarchicalLock and RLock, whose leases are several in one or one in several."""

OF_VOTING: dict[str, Defect] = {
    "quorum-of-half": Defect(python(_votes, "quorum_of", "size // 2 + 1", "size // 2"), ("P1", "C1"), ("redlock",)),
    "late-grant-not-released": Defect(
        python(_quorum.Quorum, "_give_back", "end(part)", "part.request.unanswered or end(part)"),
        ("P7", "P13", "C4"),
        ("redlock",),
    ),
    "voted-validity-from-the-reply": Defect(
        python(_quorum.Quorum, "_attempt", "Granted(fence, began)", "Granted(fence, self._home.clock())"),
        ("P1", "C1"),
        ("redlock",),
    ),
}  # fmt: skip
"""Of Redlock."""

ON_SERVERS: dict[str, Defect] = {
    "fencing-token-accepted-twice": Defect(
        lua("redlock/raise", "(known == number and owner ~= token)", "false"), (), ()
    ),
    "versioned-write-without-compare": Defect(
        lua("versioned/write", "if actual ~= expected and not (", "if false and not ("), (), ()
    ),
    "versioned-write-without-its-answer": Defect(lua("versioned/write", "if before then", "if false then"), (), ()),
    "guard-without-compare": Defect(
        lua("lock/guard", "if owner ~= words[at] or mark ~= '' then", "if false then"), (), ()
    ),
}  # fmt: skip
"""Of Versioned and `Lease.guard`, which the simulated programs do not use, and what these seldom bring about."""

OF_MANY: dict[str, Defect] = {
    "number-not-made-anew": Defect(
        shared("local counted = witness and witness == known[2]", "local counted = true"), (), ()
    ),
    "holder-without-field-counts-as-one": Defect(
        shared("local unknown = heaviest > 0 and heaviest or limit_in_force", "local unknown = 1"), (), ()
    ),
    "handed-over-in-part-and-no-more": Defect(
        shared("grants[#grants + 1], grants[#grants + 2], grants[#grants + 3] = 'more', -2, 0", ""), (), ()
    ),
    "granted-past-a-queue-that-is-left": Defect(
        lua("lock/grant", "if not owner and not more and", "if not owner and"), ("FIFO",), ("lock",)
    ),
}  # fmt: skip
"""Of what is done in parts, and of the number of permits in use beside an older version of the scripts."""

OF_KINDS = OF_MODES | OF_PARTS | OF_VOTING | ON_SERVERS | OF_MANY
