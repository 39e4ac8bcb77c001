"""Reads Lua just well enough to compare scripts token by token and to find the names they do not declare in time."""

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
    """Return the names that *code* uses where no local, parameter or loop variable of that name is in scope yet."""
    found = tokens(code)
    scopes: list[set[str]] = [set()]
    free: set[str] = set()
    loops = 0  # whose `do` is still to come, and opens no scope of its own
    for at, token in enumerate(found):
        before = found[at - 1] if at else ""
        if token == "local" and found[at + 1] != "function":
            scopes[-1] |= _names(found, at + 1, {"="})
        elif token == "for":
            scopes.append(_names(found, at + 1, {"=", "in"}))
            loops += 1
        elif token == "function":
            if before == "local":
                scopes[-1].add(found[at + 1])
            scopes.append(_names(found, found.index("(", at), {")"}))
        elif token == "do" and loops:
            loops -= 1
        elif token in {"then", "do", "repeat", "else"}:
            if token == "else":
                scopes.pop()
            scopes.append(set())
        elif token in {"end", "until", "elseif"}:
            scopes.pop()
        elif _is_name(token) and before not in {".", ":"} and not any(token in scope for scope in scopes):
            free.add(token)
    return free


def functions_unused_in(code: str) -> set[str]:
    """Return the names of local functions that are called or passed nowhere."""
    found = tokens(code)
    defined = [found[at + 1] for at, token in enumerate(found) if token == "function" and found[at - 1] == "local"]
    return {name for name in defined if found.count(name) == defined.count(name)}


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
