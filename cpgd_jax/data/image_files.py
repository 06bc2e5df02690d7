"""Images that rows name by path: read as bytes, never from outside their root folder."""

import os
from pathlib import Path
from urllib.parse import unquote

from cpgd_jax.data import images
from cpgd_jax.data.rows import Broken


def read(reference: str, root: Path) -> bytes:
    """The encoded bytes of the image at a path or file:// address, once Pillow has decoded it.

    root: a resolved folder; relative paths start there. Raises Broken: outside it (an absolute
    path, "..", a link), missing, or no sound image.
    """
    data = fetch(reference, root)
    images.decode(data, reference)
    return data


def fetch(reference: str, root: Path) -> bytes:
    """As `read`, not decoded."""
    path = _locate(reference, root)
    try:
        return path.read_bytes()
    except OSError as error:
        raise Broken("image missing", f"image {reference!r}: {error.strerror}") from error


def _locate(reference: str, root: Path) -> Path:
    name = reference.removeprefix("file://")
    try:
        paths = [Path(os.path.realpath(root / n)) for n in (name, unquote(name))]
        inside = [path for path in paths if path.is_relative_to(root)]
        found = next((path for path in inside if path.is_file()), None)
    except (OSError, ValueError) as error:  # too long, a NUL character
        raise Broken("image missing", f"image {reference[:60]!r}: {error}") from error
    if not inside:
        raise Broken("image outside root", f"image {reference!r} is not below {str(root)!r}")
    if found is None:
        raise Broken("image missing", f"image {reference!r}: no such file below {str(root)!r}")
    return found
