"""The one kind of error that is the user's to mend: printed as a single line, exit status 2."""

import difflib


class UserError(Exception):
    """Bad input. The message is one line: the thing, its value, the remedy."""


def nearest(name: str, known) -> str:
    """` (did you mean 'x'?)` or an empty string, for error messages."""
    close = difflib.get_close_matches(str(name), [str(k) for k in known], n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""
