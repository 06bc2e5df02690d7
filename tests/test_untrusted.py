"""Files of unknown origin are data: whatever they hold, nothing in them is run, and no path in them
leads out of their folder.

A child process reads them under an audit hook of the interpreter; it would see a pickle that asks
for a class, a command, an import of what lies beside the files, or a look at a file elsewhere. And
every payload, were it run, would make the file `ran`.
"""

import ast
import base64
import io
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
RUNS_CODE = {
    "pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "code", "runpy",
}  # fmt: skip
QWEN2 = {
    "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "vocab_size": 64,
    "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1,
    "num_key_value_heads": 1, "max_position_embeddings": 8, "rms_norm_eps": 1e-6,
    "rope_theta": 1e4, "tie_word_embeddings": True,
}  # fmt: skip
CALLS = {"eval", "exec", "compile", "__import__", "sympify", "parse_expr"}


def test_the_code_has_nothing_that_would_run_a_file():
    for file in [*(ROOT / "cpgd_jax").rglob("*.py"), *(ROOT / "experiments").glob("*.py")]:
        for node in ast.walk(ast.parse(file.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            assert not {n.split(".")[0] for n in names if n} & RUNS_CODE, (file, names)
            if isinstance(node, ast.Call):
                assert getattr(node.func, "id", "") not in CALLS, (file, node.lineno)
                for given in node.keywords:
                    unsafe = given.arg in ("allow_pickle", "trust_remote_code")
                    assert not unsafe or given.value.value is False, (file, node.lineno)


class Payload:
    def __init__(self, ran: Path):
        self.ran = ran

    def __reduce__(self):
        return os.system, (f"touch {self.ran}",)


def python(ran: Path) -> str:
    return f"__import__('os').system('touch {ran}')"


def template(ran: Path) -> str:
    """Jinja that gets at `os` unless it is kept in a sandbox."""
    return "{{ cycler.__init__.__globals__.os.system('touch " + str(ran) + "') }}"


def pickled(ran: Path) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **{"0": np.array([Payload(ran)], object)}, allow_pickle=True)
    return stream.getvalue()


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A folder of files that would like to be more than data; `secret` lies outside of it."""
    base = tmp_path_factory.mktemp("untrusted")
    folder, ran = base / "in", base / "ran"
    folder.mkdir()
    (base / "secret").mkdir()
    (base / "secret" / "image.png").write_bytes(b"secret")
    (base / "secret" / "model.safetensors").write_bytes(b"secret")
    evil = f"open({str(ran)!r}, 'w')\ndef reward(*_): return 1.0\nclass Evil: pass\n"
    for name in ("evil.py", "tokenization_evil.py", "modeling_evil.py"):
        (folder / name).write_text(evil)
    _rows(folder, base, ran)
    _model(folder / "model", ran)
    _run(folder / "run", ran)
    return base


def _rows(folder, base, ran):
    elsewhere = (f"file://{base}/secret/image.png", "../secret/image.png", "link.png")
    (folder / "link.png").symlink_to(base / "secret" / "image.png")
    rows = [{"question": python(ran), "answer": python(ran)}]
    rows += [{"question": template(ran), "answer": "\\boxed{" + python(ran) + "}"}]
    images = [{"question": "q", "answer": "1", "images": [name]} for name in elsewhere]
    for name, content in (("rows", rows), ("images", images)):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, content)))


def _model(folder, ran):
    folder.mkdir()
    auto = {"AutoModelForCausalLM": "modeling_evil.Evil", "AutoConfig": "modeling_evil.Evil"}
    (folder / "config.json").write_text(json.dumps(QWEN2 | {"auto_map": auto}))
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Payload(ran)))
    from cpgd_jax.data import tokenizer

    tokenizer.load().save_pretrained(folder)
    file = folder / "tokenizer_config.json"
    auto = {"AutoTokenizer": ["tokenization_evil.Evil", "tokenization_evil.Evil"]}
    settings = {"auto_map": auto, "tokenizer_class": "Evil", "chat_template": template(ran)}
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    (folder / "chat_template.jinja").write_text(template(ran))
    for name in ("tokenization_evil.py", "modeling_evil.py"):
        (folder / name).write_text((folder.parent / name).read_text())
    outside = folder.parent / "outside"
    outside.mkdir()
    (outside / "config.json").write_text(json.dumps(QWEN2))
    names = {"model.norm.weight": "../../secret/model.safetensors"}
    (outside / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))


def _run(folder, ran):
    """A run's folder whose checkpoint and config name functions and hold pickles."""
    import tiny

    from cpgd_jax import config

    folder.mkdir()
    values = config.to_dict(tiny.config(model__vocab_size=64, reward__functions=("evil:reward",)))
    values["algorithm"] = python(ran)
    (folder / "config.json").write_text(json.dumps(values))
    (folder / "work.json").write_text(
        json.dumps(
            {
                "pickle": {"shape": 0, "arrays": base64.b64encode(pickled(ran)).decode()},
                "class": {
                    "shape": {"record": "Popen", "fields": {"args": {"value": f"touch {ran}"}}},
                    "arrays": base64.b64encode(_npz()).decode(),
                },
            }
        )
    )


def _npz() -> bytes:
    stream = io.BytesIO()
    np.savez(stream)
    return stream.getvalue()


def test_nothing_is_run_and_nothing_elsewhere_is_read(hostile):
    argv = [sys.executable, __file__, str(hostile)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["events"] == []
    assert not (hostile / "ran").exists()
    assert found["read"] == {
        "rows": "2 rows",
        "verdict": "0",
        "images": "3 outside",
        "model": "UserError: holds a pickle checkpoint only",
        "tokenizer": "UserError: the tokenizer's chat template fails",
        "index": "UserError: it may only name safetensors files beside it",
        "config": "UserError: holds no checkpoints",
        "pickle": "ValueError: Object arrays cannot be loaded",
        "class": "ValueError: 'Popen' is no record of a batch",
    }


def test_the_hook_sees_a_payload_that_is_run(hostile):
    """As the child would if anything above were as careless as this."""
    argv = [sys.executable, __file__, str(hostile), "careless"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    found = json.loads(done.stdout.splitlines()[-1])
    assert {"pickle.find_class", "os.system", "open"} <= {e.split()[0] for e in found["events"]}
    assert (hostile / "ran").exists()
    (hostile / "ran").unlink()


# ---- the child


def watch(base: Path) -> list[str]:
    """From now on all that must not happen is added to the list."""
    seen, secret = [], str(base / "secret")

    def hook(event, args):
        what = str(args[0]) if args else ""
        if (
            event in ("pickle.find_class", "os.system", "subprocess.Popen", "os.exec")
            or (event == "import" and "evil" in what)
            or (event == "open" and what.startswith(secret))
        ):
            seen.append(f"{event} {what}")

    sys.addaudithook(hook)
    return seen


def attempt(read, *messages: str) -> str:
    """What reading gave, or how it was refused."""
    try:
        return read()
    except Exception as error:
        told = [m for m in messages if m in str(error)]
        return ": ".join([type(error).__name__, *(told or ([str(error)] if messages else []))])


def read_all(folder: Path) -> dict:
    from cpgd_jax import checkpoint, models, work
    from cpgd_jax.data import image_files, rows, sources, tokenizer
    from cpgd_jax.rewards import score

    run, held = folder / "run", json.loads((folder / "run" / "work.json").read_text())

    def images():
        lines = (folder / "images.jsonl").read_text().splitlines()
        names = [json.loads(line)["images"][0] for line in lines]
        kinds = []
        for name in names:
            try:
                kinds.append(image_files.read(name, folder))
            except rows.Broken as fault:
                kinds.append(fault.kind)
        return f"{kinds.count('image outside root')} outside"

    def verdict():
        found = sources.read_jsonl(str(folder / "rows.jsonl"), "rows")
        return f"{sum(score(e.prompt, '1').total + score('1', e.gold).total for e in found):g}"

    def decoded(kind):
        value = {"batch": held[kind], "shared": {}, "samples": [], "position": 0, "examples": []}
        return str(work.decode(value | {"seen": ()}))

    def template():
        return str(tokenizer.load(folder / "model").encode_prompt("1+1=?"))

    return {
        "rows": f"{len(sources.read_jsonl(str(folder / 'rows.jsonl'), 'rows'))} rows",
        "verdict": verdict(),
        "images": images(),
        "model": attempt(
            lambda: str(models.from_pretrained(folder / "model")),
            "holds a pickle checkpoint only",
        ),
        "tokenizer": attempt(template, "the tokenizer's chat template fails"),
        "index": attempt(
            lambda: str(models.from_pretrained(folder / "outside")),
            "it may only name safetensors files beside it",
        ),
        "config": attempt(lambda: str(checkpoint.load_model(run)), "holds no checkpoints"),
        "pickle": attempt(lambda: decoded("pickle"), "Object arrays cannot be loaded"),
        "class": attempt(lambda: decoded("class"), "'Popen' is no record of a batch"),
    }


def careless(folder: Path) -> dict:
    pickle.loads((folder / "model" / "pytorch_model.bin").read_bytes())
    (folder.parent / "secret" / "image.png").read_bytes()
    return {}


def main(base: Path, how: str = "") -> None:
    sys.path[:0] = [str(base / "in"), str(ROOT)]  # what is beside the files could be imported
    import jax

    jax.devices()
    from cpgd_jax.rewards import score

    score("1", "1")  # its worker process is started
    events = watch(base)
    found = (careless if how else read_all)(base / "in")
    print(json.dumps({"events": events, "read": found}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
