"""A folder that appears whole or not at all, whatever fails or is killed while it is made."""

import contextlib
import glob
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from cpgd_jax.errors import UserError


@contextlib.contextmanager
def folder(target: str | Path) -> Iterator[Path]:
    """Yields an empty folder; when the block ends well it takes the place of `target`.

    It is made beside `target`, in .NAME.making-*/. After an error or a kill `target` is as it was;
    what a kill leaves of the other folder is removed by the next call. UserError for any OSError.
    """
    target = Path(target).resolve()
    scratch = target.with_name(f".{target.name}.making-{uuid.uuid4().hex[:8]}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _clear(target)
        scratch.mkdir()
        (scratch / "new").mkdir()
        with _lock(scratch):
            yield scratch / "new"
            _replace(target, scratch)
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        reason = f"{error.strerror or error}{where}"
        raise UserError(f"{target} can't be written: {reason}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _replace(target: Path, scratch: Path) -> None:
    if not target.exists():
        (scratch / "new").rename(target)
        return
    target.rename(scratch / "old")
    try:
        (scratch / "new").rename(target)
    except OSError:
        (scratch / "old").rename(target)
        raise


def _clear(target: Path) -> None:
    """Removes what killed processes left; one killed between the two renames has its old folder put
    back."""
    for left in target.parent.glob(f".{glob.escape(target.name)}.making-*"):
        with _lock(left) as owner_is_dead:
            if not owner_is_dead:
                continue
            if (left / "old").exists() and not target.exists():
                (left / "old").rename(target)
            shutil.rmtree(left)


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[bool]:
    """False: another living process holds it, or locks are not to be had here."""
    handle = None
    try:
        import fcntl

        handle = os.open(path, os.O_RDONLY)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        locked = True
    except (ImportError, OSError):
        locked = False
    try:
        yield locked
    finally:
        if handle is not None:
            os.close(handle)
