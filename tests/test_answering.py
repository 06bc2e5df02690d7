"""A model answers items: what is asked, what is kept, what a kill and a broken image leave."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import jax
import numpy as np
import pytest
import vl
from flax import nnx
from PIL import Image

from cpgd_jax import answering, asking, models
from cpgd_jax.benchmarks import reading, results, table
from cpgd_jax.data import images
from cpgd_jax.data import tokenizer as tokenizer_lib
from cpgd_jax.errors import UserError
from cpgd_jax.rollout import generate

TOKENIZER = tokenizer_lib.pictures()
SEES = replace(vl.SIZES, image_id=TOKENIZER.image_id, other_ids=(5, 6, 7))
CONFIG = replace(vl.CONFIG, vocab_size=TOKENIZER.vocab_size, vision=SEES)
SAMPLING = answering.Sampling(
    max_new_tokens=6, system_prompt="none", chunk=3, min_pixels=56 * 56, max_pixels=112 * 112
)


def png(seed, size=(60, 40)):
    pixels = np.random.default_rng(seed).integers(0, 255, (*size[::-1], 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def vision_row(n, image="images/{}.png"):
    return {"id": str(n), "question": f"{n} + {n} ?\n<image1>", "options": [], "answer": str(2 * n),
            "level": n % 2, "subject": "sums", "image": image.format(n)}  # fmt: skip


@pytest.fixture
def data(tmp_path):
    """Eight items: 5 has a corrupt image, 6 one that is cut short, 7 none."""
    folder = tmp_path / "data" / "mathvision"
    (folder / "images").mkdir(parents=True)
    for n in range(7):
        whole = png(n)
        content = {5: b"no image", 6: whole[:-2000]}.get(n, whole)
        (folder / "images" / f"{n}.png").write_bytes(content)
    lines = "".join(json.dumps(vision_row(n)) + "\n" for n in range(8))
    (folder / "test.jsonl").write_text(lines)
    return folder.parent


@pytest.fixture(scope="module")
def answerer():
    return answering.Answerer(vl.random_model(CONFIG), TOKENIZER, SAMPLING, "random")


def load(data, name="mathvision"):
    return {name: reading.load(table.named(name), name, data)}


def evaluate(answerer, data, folder, name="mathvision"):
    """(summary of the benchmark, table.md)."""
    loaded, folder = load(data, name), results.make_folder(str(folder))
    summary = results.score(folder, loaded, answering.run(answerer, loaded, folder))
    results.publish(folder, "random", dict(summary), False)
    return summary[name], (folder / "table.md").read_text()


@pytest.mark.slow
def test_images_are_seen(answerer, data, tmp_path):
    """The response to an item is that to its tokens and the processor's patches, sampled alone."""
    evaluate(answerer, data, tmp_path / "out")
    rows = [json.loads(line) for line in (tmp_path / "out/mathvision.responses.jsonl").open()]
    given = {row["id"]: row["response"] for row in rows if "error" not in row}
    settings = images.Settings(56 * 56, 112 * 112)
    for n in (0, 3):
        patches = images.patches(images.decode(png(n)), settings)
        count = (np.prod(patches.grid) // 4).item()
        tokens = TOKENIZER.encode_prompt(f"{n} + {n} ?", "none", (count,))
        ((alone,),) = generate(
            answerer.model, [tokens], 1, 6, 0.0, stop_ids=TOKENIZER.stop_ids,
            forbidden_ids=TOKENIZER.forbidden_ids, images=[(patches,)],
        )  # fmt: skip
        assert given[str(n)] == TOKENIZER.decode(alone.tokens)
    assert len(given) == 5


def test_what_cannot_be_asked_is_counted(answerer, data, tmp_path):
    summary, page = evaluate(answerer, data, tmp_path / "out")
    counts = summary["responses"]
    assert counts["count"] == 5 and counts["image corrupt"] == 2 and counts["image missing"] == 1
    assert summary["n"] == 8 and summary["integrity"]["image missing"]["count"] == 1
    assert "2 image corrupt" in page and "image missing: 1 (7: images/7.png)" in page


def test_long_prompts_are_not_asked(answerer, data, tmp_path):
    short = answerer._replace(sampling=replace(SAMPLING, max_prompt_tokens=10))
    summary, _ = evaluate(short, data, tmp_path / "out")
    assert summary["responses"]["prompt too long"] == 5 and summary["responses"]["count"] == 0


@pytest.mark.parametrize("samples", [1, 2])
def test_an_evaluation_that_was_cut_off_goes_on(answerer, data, tmp_path, monkeypatch, samples):
    sampling = replace(SAMPLING, samples=samples, temperature=float(samples > 1))
    answerer = answerer._replace(sampling=sampling)
    whole = evaluate(answerer, data, tmp_path / "whole")
    calls = []

    def interrupted(*arguments, **named):
        calls.append(len(arguments[1]))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return generate(*arguments, **named)

    monkeypatch.setattr(answering, "generate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        evaluate(answerer, data, tmp_path / "cut")
    path = tmp_path / "cut/mathvision.responses.jsonl"
    torn = '{"id": ["x"], "sample": 0}\n{"id": "4", "sample": 0, "resp'
    path.write_text(path.read_text() + torn)
    assert evaluate(answerer, data, tmp_path / "cut") == whole
    assert calls == [3, 2, 2]  # the first chunk is not sampled again; 6 is cut short
    assert evaluate(answerer, data, tmp_path / "cut") == whole and len(calls) == 3
    names = ("mathvision.responses.jsonl", "mathvision.scored.jsonl")
    lines = [sorted((tmp_path / f / n).read_text().splitlines()) for n in names
             for f in ("whole", "cut")]  # fmt: skip
    assert lines[2] == lines[3] and set(lines[0]) <= set(lines[1])


def test_other_settings_are_refused(answerer, data, tmp_path):
    evaluate(answerer, data, tmp_path)
    other = answerer._replace(sampling=replace(SAMPLING, seed=1))
    with pytest.raises(UserError, match=r"other settings \(seed\)"):
        evaluate(other, data, tmp_path)


def test_a_model_that_sees_nothing(data, tmp_path):
    blind = answering.Answerer(
        vl.random_model(replace(CONFIG, vision=None)), TOKENIZER, SAMPLING, "random"
    )
    with pytest.raises(UserError, match="--without_images"):
        evaluate(blind, data, tmp_path)
    text_alone = blind._replace(sampling=replace(SAMPLING, without_images=True))
    summary, _ = evaluate(text_alone, data, tmp_path / "text")
    assert summary["responses"]["count"] == 8
    with pytest.raises(UserError, match="has the id 4 in the tokenizer and 9"):
        asking.check_sees(load(data), replace(SEES, image_id=9), TOKENIZER.image_id)


def test_of_a_folder(data, tmp_path):
    """Weights, tokenizer and image sizes are those of the folder."""
    models.save_pretrained(vl.random_model(CONFIG), tmp_path / "model", tokenizer=TOKENIZER)
    sizes = {"min_pixels": 3136, "max_pixels": 12544}
    (tmp_path / "model/preprocessor_config.json").write_text(json.dumps(sizes))
    sampling = replace(SAMPLING, min_pixels=0, max_pixels=0, system_prompt="")
    found = answering.load(str(tmp_path / "model"), None, sampling).sampling
    assert (found.min_pixels, found.max_pixels, found.system_prompt) == (3136, 12544, "reasoning")
    (tmp_path / "model/preprocessor_config.json").write_text("{")
    with pytest.raises(UserError, match="preprocessor_config.json"):
        asking.pixels(tmp_path / "model")
    assert asking.pixels(tmp_path) == (3136, 28 * 28 * 16384)


@pytest.mark.slow
def test_devices_change_no_response(answerer, data, tmp_path):
    models.save_pretrained(answerer.model, tmp_path / "model", tokenizer=TOKENIZER)
    spread = answering.load(str(tmp_path / "model"), None, SAMPLING)
    leaves = jax.tree.leaves(nnx.state(spread.model))
    assert {len(leaf.sharding.device_set) for leaf in leaves} == {4}
    ends = [evaluate(each, data, tmp_path / str(n)) for n, each in enumerate((answerer, spread))]
    files = [(tmp_path / str(n) / "mathvision.scored.jsonl").read_text() for n in range(2)]
    assert ends[0] == ends[1] and files[0] == files[1]


def start(repo, *flags):
    command = [sys.executable, "-m", "experiments.evaluate", *map(str, flags)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=repo, text=True, **pipes)


@pytest.mark.slow
def test_a_killed_process_goes_on(repo, data, tmp_path):
    models.save_pretrained(vl.random_model(CONFIG), tmp_path / "model", tokenizer=TOKENIZER)
    lines = [{"question": f"{n} + {n} = ?", "answer": f"#### {2 * n}"} for n in range(60)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    flags = (f"--model={tmp_path / 'model'}", "--benchmark=gsm8k", "--system_prompt=none",
             f"--data={tmp_path / 'sums.jsonl'}", "--max_new_tokens=40", "--chunk=2",
             "--samples=2")  # fmt: skip
    killed = start(repo, *flags, f"--output={tmp_path / 'killed'}")
    path = tmp_path / "killed/gsm8k.responses.jsonl"
    while killed.poll() is None and not (path.exists() and path.read_bytes().count(b"\n") > 8):
        time.sleep(0.02)
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL and 8 < len(path.read_text().splitlines()) < 120
    ends = []
    for name in ("killed", "whole"):
        process = start(repo, *flags, f"--output={tmp_path / name}")
        out, err = process.communicate(timeout=200)
        assert process.returncode == 0, err
        rows = sorted((tmp_path / name / "gsm8k.scored.jsonl").read_text().splitlines())
        ends.append(
            [
                rows,
                (tmp_path / name / "table.md").read_text(),
                out.replace(str(tmp_path / name), ""),
            ]
        )
    assert ends[0] == ends[1] and "maj@2" in ends[0][1] and len(ends[0][0]) == 120


@pytest.mark.slow
def test_mistakes_are_one_line(repo, data, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    (tmp_path / "rows.jsonl").write_text('{"question": "1", "answer": "2"}\n')
    (tmp_path / "damaged.jsonl").write_bytes(b'\x00\xff{"id": 1\n{"id": "0", "respon')
    (tmp_path / "answers.jsonl").write_text('{"id": "0", "response": "\\\\boxed{0}"}\n')
    good = {"benchmark": "mathvision", "data": data, "output": tmp_path / "out",
            "responses": tmp_path / "answers.jsonl"}  # fmt: skip
    cases = [
        ({"benchmark": "mathvison"}, "did you mean 'mathvision'"),
        ({"data": tmp_path / "nowhere"}, "no such file or folder"),
        ({"data": empty}, "holds no file of MATH-Vision test: needs mathvision/test.jsonl"),
        ({"data": tmp_path / "rows.jsonl"}, "broken row: 0: it has no field 'image'"),
        ({"model": "m"}, "give one of --model=DIR"),
        ({"responses": None, "model": "m", "checkpoint": "c"}, "give one of --model=DIR"),
        ({"responses": None, "model": tmp_path / "gone"}, "gone"),
        ({"responses": None, "checkpoint": tmp_path / "gone"}, "gone"),
        ({"responses": tmp_path / "damaged.jsonl"}, "answers no item of mathvision (2 broken row)"),
        ({"responses": tmp_path / "gone.jsonl"}, "no such file"),
        ({"baseline": "gpt-5"}, "the paper has no row 'gpt-5'"),
        ({"judge_url": "localhost"}, "give an http:// or https:// address"),
        ({"output": None}, "--output is missing"),
        ({"output": tmp_path / "rows.jsonl"}, "can't be made"),
    ]
    for at in range(0, len(cases), 4):
        running = []
        for changes, message in cases[at : at + 4]:
            flags = {k: v for k, v in (good | changes).items() if v is not None}
            running.append((start(repo, *(f"--{k}={v}" for k, v in flags.items())), message))
        for process, message in running:
            out, err = process.communicate(timeout=200)
            assert process.returncode == 2 and not out, (message, out, err)
            assert err.startswith("error: ") and err.count("\n") == 1 and message in err, err
    done = start(repo, *(f"--{k}={v}" for k, v in good.items()), "--paper")
    out, err = done.communicate(timeout=200)
    assert done.returncode == 0 and "CPGD std (paper)" in out and "12.5" in out, err


SAMPLES = {  # the real files: items, and the responses asked for
    "mathvista/sample.jsonl": (18, 18),
    "mathverse/visualizer_sample.jsonl": (60, 60),
    "mathvision/sample.jsonl": (64, 64),
    "wemath/sample.jsonl": (48, 48),
    "mmk12_k12_500/k12.jsonl": (500, 500),
    "olympiadbench/OE_MM_maths_en_COMP_3items_text_only.jsonl": (3, 3),
}


@pytest.fixture(scope="module")
def seeing():
    """A random Qwen2.5-VL, tiny but for its vocabulary, and what it is asked with."""
    from pathlib import Path

    folder = Path(__file__).resolve().parents[2] / "shared/data/qwen2_5_tokenizer"
    if not folder.is_dir():
        pytest.skip("needs the data folder ../shared, which is not here")
    tokenizer = tokenizer_lib.load(folder)
    sees = replace(vl.SIZES, image_id=151655, other_ids=(151652, 151653, 151656))
    config = replace(vl.CONFIG, vocab_size=151_665, vision=sees)
    sampling = replace(SAMPLING, max_pixels=28 * 28 * 16, chunk=16)
    return answering.Answerer(vl.random_model(config), tokenizer, sampling, "random")


@pytest.mark.slow
@pytest.mark.parametrize("file", SAMPLES)
def test_real_images(seeing, shared, tmp_path, file):
    """Every picture goes through the model; a response is scored by the benchmark's rule."""
    name = file.partition("/")[0].partition("_")[0]
    summary, page = evaluate(seeing, shared / "data" / file, tmp_path / "out", name)
    count, asked = SAMPLES[file]
    assert summary["n"] == count and summary["responses"].get("count", 0) == asked
    assert summary["responses"].get("image missing", 0) == count - asked
    assert summary["score"] == 0 or summary["breakdown"] or name == "mmk12"
    assert page.startswith("## Scores")
