"""Runs an absl main: bad flags and bad input end in one line on stderr and exit status 2."""

import re
import sys
from collections.abc import Callable

from absl import app, flags, logging

from cpgd_jax import config as config_lib
from cpgd_jax.errors import UserError


def run(
    main: Callable, choices: tuple[str, ...] = (), after_interrupt: str = "", many: bool = False
) -> None:
    """Parses flags, then calls `main()`; of a `UserError` only `error: ...` is printed.

    choices: the main takes one argument beside its flags, one of these: `main(argument)`.
    many: it takes any number of any arguments: `main(*arguments)`.
    after_interrupt: what a user who pressed Ctrl-C can do now.
    """
    app.run(
        lambda argv: _guarded(main, choices, after_interrupt, argv[1:], many), flags_parser=_parse
    )


def load_config(flag: flags.FlagHolder) -> config_lib.Config:
    """The checked config of a `config_flags.DEFINE_config_file` flag."""
    try:
        return config_lib.from_config_dict(flag.value)
    except OSError as error:  # the flag keeps the failure to itself until it is read
        raise UserError(f"--{flag.name} cannot be read: {_reason(error)}") from error


def _guarded(main, choices, after_interrupt, arguments, many=False):
    try:
        if choices and (len(arguments) != 1 or arguments[0] not in choices):
            given = " ".join(arguments) or "nothing"
            raise UserError(f"got {given!r}: name one of {', '.join(choices)}")
        if arguments and not (choices or many):
            raise UserError(
                f"unexpected argument {arguments[0]!r}: flags start with --; see --help"
            )
        if not flags.FLAGS["verbosity"].present:
            logging.set_verbosity(logging.ERROR)  # Orbax reports every step of a save
        main(*arguments)
    except UserError as error:
        _exit(error)
    except KeyboardInterrupt:
        _exit(f"interrupted; {after_interrupt}" if after_interrupt else "interrupted")


def _parse(argv):
    if {"--help", "-h", "-help"} & set(argv[1:]):
        app.usage(writeto_stdout=True, exitcode=0)
    try:
        return flags.FLAGS(argv)
    except (flags.Error, UserError) as error:
        _exit(error)
    except OSError as error:
        _exit(f"--config cannot be read: {_reason(error)}")
    except (AttributeError, KeyError, TypeError, ValueError, SyntaxError, ImportError) as error:
        _exit(_plain(error))


def _reason(error: OSError) -> str:
    """The last line of a message of ml_collections: file and reason."""
    return error.strerror or str(error).strip().splitlines()[-1].strip()


def _plain(error: Exception) -> str:
    """ml_collections wraps a KeyError, which shows its argument quoted, in an AttributeError."""
    while error.args and isinstance(error.args[0], Exception):
        error = error.args[0]
    if isinstance(error, KeyError):
        return f"unknown config key {error.args[0]}; see configs/base.py"
    return f"bad --config value: {error}"


def _exit(error):
    message = " ".join(str(error).split()).removeprefix("FATAL Flags parsing error: ")
    message = re.sub(r"^flag (--\w+)=None: .*", r"\1 is missing: see --help", message)
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)
