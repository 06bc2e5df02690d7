"""Who may import whom: stages do not know each other, and importing costs nothing on a device.

A module may import the foundation and the modules of its own folder; only the wiring joins stages.
An exception is listed with its reason, and leaves the list when it is no longer used.
"""

import ast
import functools
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "cpgd_jax"

FOUNDATION = {
    "types",
    "config",
    "config_checks",
    "sizes",
    "ops",
    "sharding",
    "distributed",
    "errors",
    "vision",
}
TOOLS = {  # small helpers below every stage; they may import the foundation only
    "gguf_file": "metadata and tensors of a GGUF file",
    "checksums": "what the files of a folder should be",
    "watch": "what tells of a collapse, in a run or in its report",
    "atomic": "a folder that is written whole or not at all",
    "jsonl": "lines of JSON, read and written",
    "packing": "a batch of responses laid out in full rows",
    "progress": "what is shown on the terminal",
    "workdir": "the run's folder and its config.json",
}
WIRING = {
    "train": "the loop",
    "evaluate": "joins data, rollout and rewards",
    "plan": "compiles every program of a run",
    "dry_run": "looks at a run without a step of it",
    "cli": "what the mains share",
    "run": "the parts of a run, for train and supervised",
    "initial": "the first parameters of a run, from a checkpoint or a model folder",
    "loop": "the loop of optimiser steps that train and supervised share",
    "experience": "the rollout half of train",
    "groups": "sampling and rewarding for experience",
    "supervised": "the loop of the supervised stage",
    "bench": "times the pieces",
    "answering": "a model answers the items of benchmarks",
    "asking": "the items of benchmarks as its prompts",
    "sweep": "runs of one config with fields changed, and their table",
    "stability": "many tiny policies, trained by every algorithm",
    "convert": "models from one format to another",
}
EXCEPTIONS = {  # (module, what it imports): why
    ("losses", "algorithms"): "policy_loss takes an algorithm by its name",
    ("advantages", "algorithms"): "advantages takes an algorithm by its name",
    (
        "advantages",
        "losses.kl",
    ): "a KL term in the reward is the estimator of the KL term in the loss",
    ("train_step", "optim"): "the step asks which parameters are trained",
    ("checkpoint", "data.tokenizer"): "a checkpoint holds its tokenizer",
    ("checkpoint", "models"): "a checkpoint is read back as a model",
    ("rollout", "models.decoder"): "the rollout decodes with the model's blocks",
    ("rollout", "models.kv_cache"): "and keeps their cache",
    ("rollout", "models.seeing"): "and asks what it sees of the images of prompts",
    ("report", "metrics"): "the report reads the names that metrics writes",
    ("benchmarks", "rewards"): "items are judged by the verifier",
    ("benchmarks", "data.rows"): "a broken row is the same everywhere, and so is GSM8K's gold",
    ("benchmarks", "data.image_files"): "images are read as those of training",
    ("data.rows", "rewards.answers"): "a gold's box is opened as the verifier opens it",
    ("data.prepare", "rewards.golds"): "golds that cannot be compared are reported with the rows",
}


@functools.cache
def modules() -> dict[str, Path]:
    """Module name below the package, with dots -> file."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def resolve(dotted: str) -> str:
    """The longest prefix that is a module; "" is the package itself."""
    parts = dotted.split(".")
    while parts and ".".join(parts) not in modules():
        parts.pop()
    return ".".join(parts)


def imports(source: str) -> set[str]:
    """The package's modules that a file imports, at its top or inside a function."""
    dotted = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            dotted |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import of {node.module}"
            dotted |= {f"{node.module}.{alias.name}" for alias in node.names}
    ours = {name.split(".", 1)[1] for name in dotted if name.startswith("cpgd_jax.")}
    return {resolve(name) for name in ours} - {""}


@functools.cache
def edges() -> tuple[tuple[str, str], ...]:
    return tuple(
        (name, target)
        for name, path in sorted(modules().items())
        for target in sorted(imports(path.read_text()))
        if target != name
    )


def folder(name: str) -> str:
    return name.split(".")[0]


def exception_of(name: str, target: str):
    """The row of EXCEPTIONS that an import falls under; a row speaks for what lies below it."""
    for row in EXCEPTIONS:
        if all((n + ".").startswith(r + ".") for n, r in zip((name, target), row, strict=True)):
            return row
    return None


def allowed(name: str, target: str) -> bool:
    below = FOUNDATION if folder(name) in TOOLS else FOUNDATION | set(TOOLS)
    if folder(name) in FOUNDATION:
        return folder(target) in FOUNDATION
    if folder(target) in below or folder(name) == folder(target):
        return True
    return folder(name) in WIRING or exception_of(name, target) is not None


def test_stages_do_not_import_each_other():
    assert len(edges()) > 30
    broken = [f"{name} imports {target}" for name, target in edges() if not allowed(name, target)]
    assert not broken, "\n".join(broken)


def test_nothing_below_imports_the_wiring():
    broken = [
        f"{name} imports {target}"
        for name, target in edges()
        if folder(target) in WIRING and folder(name) not in WIRING
    ]
    assert not broken, "\n".join(broken)


def test_every_exception_is_still_needed():
    used = {exception_of(name, target) for name, target in edges()}
    assert set(EXCEPTIONS) <= used, f"no longer needed: {set(EXCEPTIONS) - used}"


def test_no_module_imports_a_later_one_of_its_folder():
    """Each folder has an order in which every module comes after what it imports."""
    graph = {}
    for name, target in edges():
        graph.setdefault(name, set()).add(target)
    graphlib.TopologicalSorter(graph).prepare()  # CycleError names the cycle


@pytest.mark.parametrize(
    ("line", "targets"),
    [
        ("import cpgd_jax.rewards.rules", {"rewards.rules"}),
        ("from cpgd_jax import models, types", {"models", "types"}),
        ("from cpgd_jax.ops.masked import masked_mean", {"ops.masked"}),
        ("from cpgd_jax.rollout import engine, generate", {"rollout.engine", "rollout"}),
        ("def f():\n    from cpgd_jax import train", {"train"}),
        ("import jax, cpgd_jax_other.train", set()),
    ],
)
def test_the_walk_sees(line, targets):
    assert imports(line) == targets


@pytest.mark.parametrize(
    ("name", "target", "expected"),
    [
        ("losses.policy", "losses.kl", True),
        ("losses.policy", "ops.masked", True),
        ("losses.policy", "rewards", False),
        ("losses.policy", "algorithms", True),
        ("rollout.engine", "models.qwen2", False),
        ("data.batching", "train", False),
        ("train", "rewards", True),
        ("ops.masked", "jsonl", False),
        ("types", "models", False),
        ("jsonl", "metrics", False),
    ],
)
def test_the_rule(name, target, expected):
    assert allowed(name, target) is expected


def run(code: str):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def import_lines(names) -> str:
    return "\n".join(f"import cpgd_jax.{name}" for name in sorted(names) if name)


def test_rewards_never_import_jax():
    names = [name for name in modules() if folder(name) == "rewards"]
    heavy = "{'jax', 'jaxlib', 'flax', 'optax', 'tensorflow', 'torch'}"
    code = f"import sys\n{import_lines(names)}\nassert not {heavy} & set(sys.modules)"
    run(code)


def test_importing_queries_no_device():
    backends = "from jax._src import xla_bridge\nassert not xla_bridge.backends_are_initialized()"
    run(f"{import_lines(modules())}\n{backends}")
