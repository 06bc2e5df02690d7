"""Images by path: sound ones come as they are, and none comes from outside the root."""

import io
import os

import pytest
from PIL import Image

from cpgd_jax.data import image_files, rows


def encoded(form="PNG", size=(40, 30)):
    noise = Image.frombytes("RGB", size, os.urandom(3 * size[0] * size[1]))
    file = io.BytesIO()
    noise.save(file, form)
    return file.getvalue()


@pytest.fixture
def root(tmp_path):
    root = (tmp_path / "root").resolve()
    (root / "sub dir").mkdir(parents=True)
    return root


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP"])
def test_a_sound_image_comes_byte_for_byte(root, form):
    data = encoded(form)
    (root / "sub dir" / "a#1").write_bytes(data)
    for name in ("sub dir/a#1", "sub%20dir/a%231", str(root / "sub dir/a#1"), "./sub dir/a#1"):
        assert image_files.read(name, root) == data
        assert image_files.read(f"file://{name}", root) == data


def kind(reference, root):
    with pytest.raises(rows.Broken) as error:
        image_files.read(reference, root)
    assert "\n" not in str(error.value)
    return error.value.kind


def test_outside_the_root(root):
    outside = root.parent / "secret.png"
    outside.write_bytes(encoded())
    (root / "link.png").symlink_to(outside)
    (root / "up").symlink_to(root.parent)
    sibling = root.parent / "root2"
    sibling.mkdir()
    (sibling / "a.png").write_bytes(encoded())
    names = ["../secret.png", str(outside), f"file://{outside}", "link.png", "up/secret.png"]
    names += ["%2e%2e/secret.png", "sub dir/../../secret.png", str(sibling / "a.png")]
    for name in names:
        assert kind(name, root) == ("image missing" if "%" in name else "image outside root")
    assert kind("/etc/passwd", root) == "image outside root"


def test_missing(root):
    os.mkfifo(root / "pipe")
    for name in ("none.png", "sub dir", "pipe", "a\0b", "x" * 5000, "https://example.org/a.png"):
        assert kind(name, root) == "image missing"


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_corrupt(root, monkeypatch):
    png, jpeg = encoded("PNG"), encoded("JPEG")
    flipped = bytearray(png)
    flipped[len(png) // 2] ^= 255
    postscript = io.BytesIO()
    Image.new("RGB", (4, 4)).save(postscript, "EPS")
    broken = [png[: len(png) // 2], jpeg[: len(jpeg) // 2], bytes(flipped), b"", b"<svg/>"]
    for data in [*broken, postscript.getvalue()]:
        (root / "a.png").write_bytes(data)
        assert kind("a.png", root) == "image corrupt"
    (root / "a.png").write_bytes(png)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1199)
    assert kind("a.png", root) == "image corrupt"
