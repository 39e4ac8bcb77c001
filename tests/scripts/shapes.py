"""How everything is called and how long it lasts: names, tokens and lengths of every shape, simple ones first."""

from hypothesis import strategies as st

LIFE = 60_000
"""ms: far longer than any history runs, so that sessions die only when one says so."""

LONGEST_LIFE = 2 * LIFE

ASKERS = 8

DEAD = "\t"
"""What the names of sessions that died before all others begin with: no other session has blanks in its name."""

_text = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30)
NAMES = st.sampled_from(["orders:42", "{", "}", "{}", "a{b}c", "%7B", "a b", "q:home", "queue", "\n", "\0"]) | _text
PREFIXES = st.sampled_from(["aiolocks:", "", "my app:", "%s:", "é:"]) | _text.filter(lambda text: not {*"{}"} & {*text})
WORDS = st.sampled_from(["", "poll", "poll7", "poll-7-", "xpoll7-", "^%S+$", "%", "limit", "q:", "\0", "ü"]) | st.text(
    st.characters(codec="utf-8", exclude_characters=" \t\n\v\f\r"), max_size=30
)
"""What tokens and sessions may begin with as far as the scripts care: no blanks, which end them in an entry."""
TTLS = st.sampled_from([30_000, 30_000, 45_000, 120_000, 10 * 86_400_000, 10**12])
