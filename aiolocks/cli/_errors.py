"""The error of a command that cannot start or continue."""


class Unusable(Exception):
    """The arguments or the server cannot be used. The text is one line that says how to fix it, without credentials."""
