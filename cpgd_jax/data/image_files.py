"""Images that rows name by path: read as bytes, never from outside their root folder."""

import io
import os
from pathlib import Path
from urllib.parse import unquote

from cpgd_jax.data.rows import Broken

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")  # others may start programs or read other files


def read(reference: str, root: Path) -> bytes:
    """The encoded bytes of the image at a path or file:// address, once Pillow has decoded it.

    root: a resolved folder; relative paths start there. Raises Broken: outside it (an absolute
    path, "..", a link), missing, or no sound image.
    """
    path = _locate(reference, root)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise Broken("image missing", f"image {reference!r}: {error.strerror}") from error
    _check(data, reference)
    return data


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


def _check(data: bytes, reference: str) -> None:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            image.verify()  # checksums
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            if image.width * image.height > Image.MAX_IMAGE_PIXELS:
                raise ValueError(f"{image.width} x {image.height} pixels are too many")
            image.load()  # every pixel is there
    except Exception as error:  # Pillow raises what its decoders come upon
        detail = f"image {reference!r} is no sound {', '.join(FORMATS)} file ({error})"
        raise Broken("image corrupt", detail) from error
