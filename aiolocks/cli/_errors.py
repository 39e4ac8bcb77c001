"""What a command raises when it cannot begin or go on."""


class Unusable(Exception):
    """The arguments or the server are of no use. The text is one line that says what to do, without credentials."""
