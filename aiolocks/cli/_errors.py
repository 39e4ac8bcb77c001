"""What a command raises when it cannot begin or go on."""


class Unusable(Exception):
    """The arguments or the server cannot be used. The text is one line that says what to do, without credentials."""
