"""Runs an absl main: bad flags and bad input end in one line on stderr and exit status 2."""

import sys
from collections.abc import Callable

from absl import app, flags

from cpgd_jax.errors import UserError


def run(main: Callable[[], None]) -> None:
    """Parses flags, then calls `main()`; a `UserError` is printed as `error: ...` without a traceback."""
    app.run(lambda argv: _guarded(main, argv), flags_parser=_parse)


def _guarded(main, argv):
    try:
        if len(argv) > 1:
            raise UserError(f"unexpected argument {argv[1]!r}: flags start with --; see --help")
        main()
    except UserError as error:
        _exit(error)
    except KeyboardInterrupt:
        _exit("interrupted; the same command resumes from the last checkpoint")


def _parse(argv):
    try:
        return flags.FLAGS(argv)
    except (flags.Error, UserError) as error:
        _exit(error)
    except FileNotFoundError as error:
        _exit(f"file not found: {error.filename or error}")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        _exit(f"bad --config value: {' '.join(str(error).split())}")


def _exit(error):
    message = " ".join(str(error).split()).removeprefix("FATAL Flags parsing error: ")
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)
