"""The generated pictures: what is drawn is what is counted, and held-out ones are never trained."""

import io
import re

import numpy as np
import pytest
from PIL import Image

from cpgd_jax.config import Pictures
from cpgd_jax.data import batching, images, pictures, rows, tokenizer
from cpgd_jax.data.pictures import PictureSource
from cpgd_jax.errors import UserError

SOURCE = PictureSource(Pictures(held_out_frac=0.2, slip_frac=0.5, bad_format_frac=0.2), seed=0)


def shown(recipe):
    return np.asarray(Image.open(io.BytesIO(pictures.draw(recipe))))


def test_a_picture_is_a_function_of_its_recipe():
    recipe = SOURCE.train(0).images[0]
    np.testing.assert_array_equal(shown(recipe), shown(recipe))
    assert (shown(recipe) != shown(recipe + "1")).any()


@pytest.mark.parametrize("kind", ["o", "s", "x"])
def test_each_shape_stays_in_its_place(kind):
    """The tower's patches are the places: a shape marks its own and no other."""
    for place in range(16):
        for seed in range(5):
            cells = "".join(kind if i == place else "." for i in range(16))
            dark = (shown(f"{cells}:{seed}") < 255).any(axis=2)
            marked = dark.reshape(4, 14, 4, 14).any(axis=(1, 3)).reshape(-1)
            assert np.flatnonzero(marked).tolist() == [place]


def test_kinds_differ():
    one = {kind: (shown(f"{kind}{'.' * 15}:3") < 255).sum() for kind in "osx"}
    assert len(set(one.values())) == 3


def test_the_answer_counts_the_shapes_by_quarters():
    for position in range(50):
        example = SOURCE.train(position)
        cells, kind = example.images[0].partition(":")[0], example.id[0]
        assert example.prompt == f"{pictures.NAMES[kind]}=?" and example.gold == str(
            cells.count(kind)
        )
        if found := re.search("<think>(.*)</think>", example.target):
            top, bottom = cells[:8], cells[8:]
            quarters = [
                half[i : i + 2] + half[i + 4 : i + 6] for half in (top, bottom) for i in (0, 2)
            ]
            assert [quarter.count(kind) for quarter in quarters] == list(
                map(int, found[1].split("+"))
            )


def test_demonstrations_slip_as_often_as_asked():
    examples = [SOURCE.train(i) for i in range(1000)]
    answers = [int(re.findall(r"\d+", e.target)[-1]) - int(e.gold) for e in examples]
    tagged = [("<think>" in e.target) and ("boxed" in e.target) for e in examples]
    assert set(answers) == {0, 1} and 0.45 < np.mean(answers) < 0.55
    assert 0.76 < np.mean(tagged) < 0.84


def test_held_out_pictures_are_never_trained_on():
    held = {e.images[0].partition(":")[0] for e in SOURCE.held_out(200)}
    trained = {SOURCE.train(i).images[0].partition(":")[0] for i in range(2000)}
    assert not held & trained
    other = PictureSource(SOURCE.config, seed=7)
    assert other.held_out(20) == SOURCE.held_out(20)
    assert other.train(0) != SOURCE.train(0)


def test_no_problems_left():
    nothing = PictureSource(Pictures(0.0, 0.5, 0.2), seed=0)
    with pytest.raises(UserError, match=r"held_out_frac 0\.0 leaves no held_out problems"):
        nothing.held_out(1)


@pytest.mark.parametrize("reference", ["", "oooo", "../x.png", "o" * 16 + ":", "q" * 16 + ":1"])
def test_no_recipe_is_a_broken_row(reference):
    with pytest.raises(rows.Broken, match="no picture of the task"):
        SOURCE.fetch(reference)


def test_a_prompt_holds_the_picture_before_the_question():
    tok = tokenizer.pictures()
    reader = images.Reader(SOURCE.fetch, images.Settings())
    example = SOURCE.train(0)
    ids, (patches,) = batching.prompt(example, tok, "none", reader)
    assert patches.grid == (1, 4, 4)
    words = tok.fast.convert_ids_to_tokens(ids)
    at = words.index("<|vision_start|>")
    assert words[at : at + 6] == ["<|vision_start|>", *["<|image_pad|>"] * 4, "<|vision_end|>"]
    assert words[at + 6 : at + 9] == [example.prompt[:-2], "=", "?"]
    assert set(ids[at : at + 6]) <= set(tok.forbidden_ids)
    assert batching.length(example, tok, "none", reader) == len(ids)
