"""Rows with images, from a file to the prompts of a run: as they are, or counted and left out."""

import dataclasses
import io
import json

import numpy as np
import pytest
import tiny
import vl
from PIL import Image

from cpgd_jax import run as run_lib
from cpgd_jax.data import batching, images, prepare, rows, sources, tokenizer
from cpgd_jax.errors import UserError

TOK = tokenizer.pictures()
VISION = dataclasses.replace(vl.SIZES, image_id=4, other_ids=(5, 6, 7))
READER = dict(settings=images.settings(VISION))


def png(width=56, height=56, seed=0):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    for n in range(4):
        (root / "sub" / f"{n}.png").write_bytes(png(56 + 28 * n, 56, n))
    (root / "cut.png").write_bytes(png()[:200])
    (tmp_path / "outside.png").write_bytes(png())
    return root


def write(path, content):
    path.write_text("".join(json.dumps(row) + "\n" for row in content))
    return str(path)


def eureka(root, n, name):
    """A row as MM-EUREKA publishes it."""
    parts = [{"type": "image", "image": f"file://{root}/{name}"}, {"type": "text", "text": "1+1=?"}]
    turns = [{"role": "system", "content": "s"}, {"role": "user", "content": parts}]
    return {"id": f"e{n}", "message": json.dumps(turns), "answer": "2"}


def mmk12(n, name):
    return {"id": f"m{n}", "question": f"{n}+1=?", "answer": str(n + 1), "image": name}


def config(path, held_out, source="jsonl", **changes):
    named = dict(data__source=source, data__path=path, data__held_out_path=held_out)
    named |= dict(model__vocab_size=64, model__vision=dataclasses.asdict(VISION))
    named |= dict(data__images=True, data__max_broken=0.9, rollout__max_prompt_len=40)
    return tiny.config(**named | changes)


@pytest.fixture
def files(root):
    good = [eureka(root, 0, "sub/0.png"), mmk12(1, "sub/1.png"), mmk12(2, "sub/2.png")]
    return write(root / "train.jsonl", good), write(root / "held.jsonl", [mmk12(3, "sub/3.png")])


def test_jsonl_rows_show_their_images(root, files):
    source = sources.load(config(*files).data, 0)
    reader = images.Reader(source.fetch, **READER)
    found = {e.id: e for e in source.longest()}
    assert sorted(found) == ["e0", "m1", "m2"] and found["e0"].prompt == "1+1=?"
    batch = batching.prompt_batch(list(found.values()), TOK, "none", 40, reader)
    assert [[i.grid for i in of_q] for of_q in batch.images] == [
        [(1, 4, 4)],
        [(1, 4, 6)],
        [(1, 4, 8)],
    ]
    assert [(ids == 4).sum() for ids in batch.token_QS] == [4, 6, 8]


def test_array_records_show_the_same(root, files, tmp_path):
    data = config(*files).data
    for name, file in zip(("train", "held"), files, strict=True):
        prepare.build(
            prepare.Plan(file, str(tmp_path / name), "toy", str(root), 0, 0.0, rows.FIELDS)
        )
    stored = f"{tmp_path / 'train'}:train", f"{tmp_path / 'held'}:train"
    ours, theirs = (sources.load(d, 0) for d in (data, config(*stored, source="tfds").data))
    for get in (lambda s: s.longest(), lambda s: s.held_out(9), lambda s: [s.train(5)]):
        pairs = list(zip(get(ours), get(theirs), strict=True))
        assert pairs
        for a, b in pairs:
            assert a[:-1] == b[:-1]
            assert [ours.fetch(i) for i in a.images] == [theirs.fetch(i) for i in b.images]
    with pytest.raises(rows.Broken, match="no image 'path:0/7'|no image '0/7'"):
        theirs.fetch("path:0/7")


def test_broken_images_are_counted_and_left_out(root, files, capsys):
    bad = ["cut.png", "../outside.png", str(root.parent / "outside.png"), "none.png"]
    (root / "long.png").write_bytes(png(4000, 10))
    content = [mmk12(1, "sub/1.png"), *(mmk12(5 + i, n) for i, n in enumerate([*bad, "long.png"]))]
    path = write(root / "bad.jsonl", content)
    source = sources.load(config(path, files[1]).data, 0)
    assert [e.id for e in source.longest()] == ["m1"]
    told = capsys.readouterr().err
    assert "5 of 6 rows left out: 2 image outside root" in told
    assert all(f"1 {kind}" in told for kind in ("image corrupt", "image missing", "image too long"))
    with pytest.raises(UserError, match=r"bad\.jsonl:2: .*'cut\.png' is no sound"):
        sources.load(config(path, files[1], data__max_broken=0.5).data, 0)


def test_the_root_of_images_can_be_named(root, files, tmp_path):
    path = write(tmp_path / "elsewhere.jsonl", [mmk12(1, "1.png")])
    held = write(tmp_path / "held.jsonl", [mmk12(2, "2.png")])
    source = sources.load(config(path, held, data__image_root=str(root / "sub")).data, 0)
    assert source.fetch(source.longest()[0].images[0]) == png(84, 56, 1)


def test_rows_with_images_need_data_images(files):
    with pytest.raises(UserError, match="has an image, and only text is read here"):
        sources.load(config(*files, data__images=False).data, 0)


def checked(monkeypatch, tmp_path, **changes):
    monkeypatch.setattr(run_lib.initial, "tokenizer", lambda config: TOK)
    return run_lib.check(config(**changes), tmp_path / "run")


def test_a_prompt_over_the_limit_is_dropped_and_counted(
    files, monkeypatch, tmp_path, capsys, one_device
):
    path = dict(path=files[0], held_out=files[0])
    whole = checked(monkeypatch, tmp_path, **path)
    tokens = {e.id: batching.length(e, TOK, "none", whole.reader) for e in whole.held_out}
    base = tokens["e0"] - 4
    assert tokens == {"e0": base + 4, "m1": base + 6, "m2": base + 8}
    found = checked(monkeypatch, tmp_path, **path, rollout__max_prompt_len=base + 6)
    assert [e.id for e in found.source.longest()] == ["e0", "m1"]
    told = capsys.readouterr().err
    assert (
        f"1 of 3 prompts dropped, with their images over config.rollout.max_prompt_len {base + 6}"
        in told
    )
    assert "'m2'" in told
    with pytest.raises(UserError, match="every prompt is over"):
        checked(monkeypatch, tmp_path, **path, rollout__max_prompt_len=base)


def test_a_run_on_images_needs_a_model_that_sees(files, monkeypatch, tmp_path, one_device):
    path = dict(path=files[0], held_out=files[1])
    with pytest.raises(UserError, match="the model is a text model"):
        checked(monkeypatch, tmp_path, **path, model__vision=None)
    other = dataclasses.asdict(vl.SIZES)
    with pytest.raises(UserError, match="id 4 in the tokenizer and 90 in the model"):
        checked(monkeypatch, tmp_path, **path, model__vision=other, model__vocab_size=96)
    with pytest.raises(UserError, match="blank_images is True, and the data has no images"):
        run_lib.check(tiny.config(eval__blank_images=True), tmp_path / "run")
