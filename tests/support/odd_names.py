"""Names as no one should choose them: braces, escapes and separators in any order, beside letters of all sorts."""

import random

_PIECES = (
    "{", "}", "{}", "}{", "%", "%7B", "%7D", "%25", ":", "/", " ", "\n", "\0", "a", "Ab", "42", "q:", "wake:", "ü",
    "日本",
)  # fmt: skip


def odd_names(count: int, *, seed: int = 1) -> list[str]:
    """Return so many, no two alike: first all of one or two pieces, then such as are drawn."""
    names = dict.fromkeys([*_PIECES, *(one + other for one in _PIECES for other in _PIECES)])
    draw = random.Random(seed)
    while len(names) < count:
        names["".join(draw.choices(_PIECES, k=draw.randint(3, 10)))] = None
    return list(names)[:count]
