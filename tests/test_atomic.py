"""A folder is replaced whole or not at all, also by a process that is killed."""

import errno
import signal
import subprocess
import sys

import pytest

from cpgd_jax import atomic
from cpgd_jax.errors import UserError


def write(target, text):
    with atomic.folder(target) as folder:
        (folder / "file").write_text(text)


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def test_new_and_replaced(tmp_path):
    target = tmp_path / "parent" / "[odd] name"
    for text in ("first", "second"):
        write(target, text)
        assert (target / "file").read_text() == text
    assert names(target.parent) == ["[odd] name"] and names(target) == ["file"]


def test_an_error_leaves_the_old_folder(tmp_path):
    write(tmp_path / "m", "old")
    with pytest.raises(UserError, match="m can't be written: No space left"):  # noqa: SIM117
        with atomic.folder(tmp_path / "m") as folder:
            (folder / "file").write_text("new")
            raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(KeyError), atomic.folder(tmp_path / "m"):  # whatever it is
        raise KeyError
    assert names(tmp_path) == ["m"] and (tmp_path / "m/file").read_text() == "old"


def test_where_nothing_can_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"can't be written: File exists \(.*file\)"):
        write(tmp_path / "file" / "below", "x")


KILLED = """
import os, pathlib, signal, sys
from cpgd_jax import atomic
kill = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
rename = pathlib.Path.rename
def rename_and_die(old, new):
    rename(old, new)
    kill()
if sys.argv[2] == "between":
    pathlib.Path.rename = rename_and_die
with atomic.folder(sys.argv[1]) as folder:
    (folder / "file").write_text("new")
    if sys.argv[2] == "within":
        kill()
"""


@pytest.mark.parametrize("when", ["within", "between"])
def test_what_a_kill_leaves_is_put_in_order_by_the_next_call(tmp_path, when):
    target = tmp_path / "m"
    write(target, "old")
    done = subprocess.run([sys.executable, "-c", KILLED, str(target), when])
    assert done.returncode == -signal.SIGKILL
    assert any(name.startswith(".m.making-") for name in names(tmp_path))
    assert target.exists() == (when == "within")
    with pytest.raises(KeyError), atomic.folder(target):
        raise KeyError
    assert names(tmp_path) == ["m"] and (target / "file").read_text() == "old"


def test_two_at_once(tmp_path):
    with atomic.folder(tmp_path / "m") as outer:
        (outer / "file").write_text("outer")
        write(tmp_path / "m", "inner")
        assert (tmp_path / "m/file").read_text() == "inner"
    assert (tmp_path / "m/file").read_text() == "outer" and names(tmp_path) == ["m"]
