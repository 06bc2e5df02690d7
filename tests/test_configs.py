"""Every file in configs/ loads, names a model that can be built, shows a command that parses."""

import dataclasses
import importlib
import math
import re
import shlex

import jax
import pytest
from absl import flags
from flax import nnx
from ml_collections import config_flags

from cpgd_jax import checkpoint, initial, models, train
from cpgd_jax import config as config_lib
from cpgd_jax.data import batching, sources, tokenizer
from cpgd_jax.errors import UserError

FILES = [
    "base",
    "quickstart_warmstart",
    "quickstart",
    "smollm2_arithmetic",
    "smollm2_gsm8k",
    "cpgd_qwen25_7b_gsm8k",
    "cpgd_qwen25_math_7b",
    "cpgd_qwen25_7b",
    "cpgd_qwen25_32b",
    "cpgd_qwen25_72b",
    "cpgd_qwen25_vl_7b_mmk12",
    "quickstart_vl_warmstart",
    "quickstart_vl",
]
PAGES = [name for name in FILES if name != "base"]  # base.py explains the fields, it is no run


def module(name):
    return importlib.import_module(f"configs.{name}")


def load(name) -> config_lib.Config:
    return config_lib.from_config_dict(module(name).get_config())


def load_random(values) -> config_lib.Config:
    """Not from an earlier run."""
    c = config_lib.from_config_dict(values)
    return dataclasses.replace(c, model=dataclasses.replace(c.model, init_from=""))


def test_no_file_is_left_out(repo):
    assert sorted(FILES) == sorted(p.stem for p in (repo / "configs").glob("*.py"))


@pytest.mark.parametrize("name", FILES)
def test_it_loads_and_its_algorithm_resolves(name):
    c = load(name)
    assert c.total_steps > 0
    assert not [w for w in train.algorithm_row(c)[1] if "dead code" in w]


@pytest.mark.parametrize("name", PAGES)
def test_its_model_can_be_built(name):
    values = module(name).get_config()
    if values.model.vocab_size is None:
        values.model.vocab_size = initial.tokenizer(load_random(values)).vocab_size
    sizes = checkpoint.model_config(config_lib.from_config_dict(values).model)
    shapes = nnx.state(nnx.eval_shape(lambda: models.make(sizes, nnx.Rngs(0))))
    assert all(x.dtype == "float32" for x in jax.tree.leaves(shapes))


@pytest.mark.parametrize("name", PAGES)
def test_its_page_has_a_command_hardware_and_result(repo, name):
    page = module(name).__doc__
    command = next(p for p in page.split("\n\n") if p.startswith("    python -m "))
    main, *arguments = shlex.split(command.replace("\\\n", " "))[2:]
    assert (repo / (main.replace(".", "/") + ".py")).is_file()
    given = flags.FlagValues()
    chosen = config_flags.DEFINE_config_file("config", None, "", flag_values=given)
    workdir = flags.DEFINE_string("workdir", None, "", flag_values=given)
    assert given([main, *arguments]) == [main]  # nothing is left over
    config_lib.from_config_dict(chosen.value)
    assert f"--config=configs/{name}.py" in arguments and workdir.value.startswith("runs/")
    assert "Hardware: " in page and re.search(r"[Rr]esult: ", page)


@pytest.mark.parametrize("name", PAGES)
def test_its_paths_are_relative(name):
    c = load(name)
    for path in (c.model.init_from, c.data.path, c.data.held_out_path, c.data.tokenizer):
        assert not path.startswith(("/", "~")) and ".." not in path


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("smollm2_arithmetic", "smollm2_tokenizer"),
        ("smollm2_gsm8k", "smollm2_tokenizer"),
        ("cpgd_qwen25_7b_gsm8k", "qwen2_5_tokenizer"),
    ],
)
def test_its_prompts_fit(shared, name, folder):
    """The longest hundred, in ChatML, which the models' templates are when given a system turn."""
    c = load(name)
    data = dataclasses.replace(
        c.data,
        path=str(shared / "data/gsm8k/train.jsonl"),
        held_out_path=str(shared / "data/gsm8k/test.jsonl"),
    )
    source = sources.load(data, c.seed)
    examples = [*source.longest(), *source.held_out(c.eval.problems)]
    examples = sorted(examples, key=lambda example: len(example.prompt))[-100:]
    tok = tokenizer.load(shared / "data" / folder)
    assert c.data.system_prompt != "none"
    batching.prompt_batch(examples, tok, c.data.system_prompt, c.rollout.max_prompt_len)


def test_the_pods_take_the_batch_of_the_paper():
    paper = load("base")
    for name in [name for name in PAGES if name.startswith("cpgd_")]:
        c, same = load(name), paper.train.microbatch_size
        train = dataclasses.replace(c.train, microbatch_size=same)
        assert (c.optim, train, c.loss, c.reward) == (
            paper.optim,
            paper.train,
            paper.loss,
            paper.reward,
        )
        assert (c.steps_per_rollout, c.rollout.prompts, c.rollout.samples_per_prompt) == (8, 128, 8)
        assert "not yet run" in module(name).__doc__


@pytest.mark.parametrize("name", [name for name in PAGES if hasattr(module(name), "LAYOUTS")])
def test_layouts_are_those_of_their_slices(name):
    """Chips that the mesh names, batches that they divide; another slice is refused."""
    for slice_name in module(name).LAYOUTS:
        c = config_lib.from_config_dict(module(name).get_config(slice_name))
        sides = slice_name.partition(":")[2].split("x")
        chips, ways = math.prod(map(int, sides)), c.mesh.data * c.mesh.fsdp
        assert ways * c.mesh.tensor == chips and c.train.microbatch_size % ways == 0
        assert f"--topology={slice_name}" in module(name).__doc__
    with pytest.raises(UserError, match="no layout for slice 'v4:2x2x2'"):
        module(name).get_config("v4:2x2x2")
