"""`experiments.sample` with images: of a prompt, and of the rows of a file."""

import dataclasses
import json
import subprocess
import sys

import pytest
import vl
from test_images import encoded, noise

from cpgd_jax import models
from cpgd_jax.data import tokenizer

TOK = tokenizer.pictures()
VISION = dataclasses.replace(vl.SIZES, image_id=TOK.image_id, other_ids=(5, 6, 7))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny Qwen2.5-VL with its tokenizer, and images beside it."""
    folder = tmp_path_factory.mktemp("model")
    config = dataclasses.replace(vl.CONFIG, vocab_size=TOK.vocab_size, vision=VISION)
    models.save_pretrained(vl.random_model(config), folder)
    TOK.save_pretrained(folder)
    for n in range(2):
        (folder / f"{n}.png").write_bytes(encoded(noise(56, 56, seed=n)))
    return folder


def call(repo, folder, *flags):
    command = [sys.executable, "-m", "experiments.sample", f"--model={folder}"]
    command += ["--samples=1", "--max_new_tokens=8", "--temperature=0", *flags]
    return subprocess.run(command, cwd=repo, capture_output=True, text=True)


def answers(done):
    assert done.returncode == 0, done.stderr
    return done.stdout.split("--")[1:]


@pytest.mark.slow
def test_images_of_a_prompt_and_of_rows(repo, folder):
    ask = "--prompt=circles=?"
    shown = [answers(call(repo, folder, ask, f"--image={folder}/{n}.png"))[0] for n in range(2)]
    blind = answers(call(repo, folder, ask))[0]
    assert len({*shown, blind}) == 3
    rows = [{"question": "circles=?", "image": f"{n}.png"} for n in range(2)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    of_rows = answers(call(repo, folder, f"--prompts={folder}/rows.jsonl"))
    assert [text.split("\n")[1] for text in of_rows] == [text.split("\n")[1] for text in shown]


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--prompt=a", "--image=none.png"], "--image=none.png cannot be read"),
        (["--prompt=a", "--image=setup.py"], "'setup.py' is no sound PNG"),
        (["--prompts=x.jsonl", "--image=a.png"], "--image goes with --prompt"),
    ],
)
def test_bad_images_are_one_line(repo, folder, flags, told):
    done = call(repo, folder, *flags)
    assert done.returncode == 2 and told in done.stderr and done.stderr.count("\n") == 1
