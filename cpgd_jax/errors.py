"""The one kind of error that is the user's to mend: printed as a single line, exit status 2."""


class UserError(Exception):
    """Bad input. The message is one line: the thing, its value, the remedy."""
