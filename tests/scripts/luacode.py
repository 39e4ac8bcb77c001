"""Reads Lua just well enough to compare scripts token by token and to find the names they do not declare."""

import re

_TOKEN = re.compile(
    r"""
      (?P<comment> --\[\[.*?\]\] | --[^\n]* )
    | (?P<string> '(?:\\.|[^'\\\n])*' | "(?:\\.|[^"\\\n])*" | \[\[.*?\]\] )
    | (?P<name> [A-Za-z_]\w* )
    | (?P<number> \d+(?:\.\d+)? )
    | (?P<sign> \.\.\.? | [=~<>]= | [^\s\w] )
    """,
    re.VERBOSE | re.DOTALL,
)
_KEYWORDS = {
    "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in", "local", "nil", "not",
    "or", "repeat", "return", "then", "true", "until", "while",
}  # fmt: skip


def tokens(code: str) -> list[str]:
    """Return the tokens of *code* without its comments."""
    return [match[0] for match in _TOKEN.finditer(code) if match.lastgroup != "comment"]


def names_free_in(code: str) -> set[str]:
    """Return the names that *code* uses but never declares: as a local, a parameter or a loop variable.

    Scopes are not told apart.
    """
    found = tokens(code)
    declared: set[str] = set()
    used: set[str] = set()
    for at, token in enumerate(found):
        before = found[at - 1] if at else ""
        if token == "local" and found[at + 1] != "function":
            declared |= _names(found, at + 1, {"="})
        elif token == "for":
            declared |= _names(found, at + 1, {"=", "in"})
        elif token == "function":
            if found[at + 1] != "(":
                declared.add(found[at + 1])
            declared |= _names(found, found.index("(", at), {")"})
        if _is_name(token) and before not in {".", ":"}:
            used.add(token)
    return used - declared


def _names(found: list[str], start: int, ends: set[str]) -> set[str]:
    """Return the names of a list that ends at one of *ends*, or where no comma follows a name."""
    names: set[str] = set()
    at = start
    while found[at] not in ends:
        if _is_name(found[at]):
            if names and found[at - 1] != ",":
                break  # `local x` without a value
            names.add(found[at])
        at += 1
    return names


def _is_name(token: str) -> bool:
    return token not in _KEYWORDS and (token[0].isalpha() or token[0] == "_")
