"""`experiments.train --dry_run`: a run looked at without a step of it; finds most mistakes.

Config, data, tokenizer, workdir, mesh, shapes, memory and one reward. Nothing is written and no
parameter is made. What the compiled programs need beyond this, `experiments.plan` says.
"""

import math

import jax

from cpgd_jax import checkpoint, initial, optim, progress, train
from cpgd_jax import run as run_lib
from cpgd_jax.config import Config
from cpgd_jax.data import batching
from cpgd_jax.rewards import Verifier
from cpgd_jax.rollout import memory
from cpgd_jax.rollout.shapes import Requests

GIB = 2**30


def dry_run(config: Config, workdir: str) -> None:
    """Prints what the run would be. UserError: it would not start."""
    rl = config.stage == "rl"
    if rl:
        for warning in train.algorithm_row(config)[1]:
            progress.warn(warning)
    found = run_lib.check(config, workdir)
    rows = [*_run(found.config), *_data(found), *_model(found), *_memory(found)]
    if rl:
        rows.append(("reward of a right response", _reward(found)))
    progress.table("dry run: it can start", ["", ""], rows)


def _run(c: Config):
    r, t = c.rollout, c.train
    yield "stage", c.stage if c.stage == "supervised" else f"{c.stage}, {c.algorithm}"
    if c.stage == "rl":
        B = r.prompts * r.samples_per_prompt
        yield "a rollout", f"{r.prompts} prompts x {r.samples_per_prompt} samples = {B} responses"
        yield "rollouts", f"{c.num_rollouts}, each of {c.steps_per_rollout} optimiser steps"
        yield "an optimiser step", f"{t.minibatch_size} responses, {t.microbatch_size} at a time"
    yield "optimiser steps", f"{c.total_steps:,}"


def _data(found: run_lib.Checked):
    c, first = found.config, found.source.train(0)
    limit, system_prompt = c.rollout.max_prompt_len, c.data.system_prompt
    prompts = batching.prompt_batch([first], found.tokenizer, system_prompt, limit, found.reader)
    yield "first prompt", f"{first.prompt:.80} ({int(prompts.mask_QS.sum())} tokens)"
    yield "its reference answer", f"{first.gold:.80}"
    yield "held-out problems", f"{len(found.held_out):,}"
    yield "tokenizer", f"{found.tokenizer.vocab_size:,} ids, ends at {found.tokenizer.stop_ids}"


def _model(found: run_lib.Checked):
    state, mesh = _shapes(found), found.mesh
    sizes = (f"{name} {size}" for name, size in mesh.shape.items())
    yield "parameters", f"{sum(x.size for x in jax.tree.leaves(state.params)):,}"
    yield "mesh", f"{', '.join(sizes)} of {mesh.size} x {mesh.devices.flat[0].device_kind}"


def _memory(found: run_lib.Checked):
    """Bytes on each device."""
    c, state = found.config, _shapes(found)
    trained, _ = optim.split(state.params)
    parts = {
        "parameters": _bytes(state.params),
        "optimiser": _bytes(state.opt_state),
        "gradients": _bytes(trained, 4),
    }
    if c.stage == "rl":
        if train.algorithm_row(c)[0].kl_coef > 0:
            parts["reference"] = parts["parameters"]
        sizes = checkpoint.model_config(c.model)
        dtype = c.rollout.decode_dtype or c.model.dtype
        parts["decoding weights"] = _bytes(state.params, jax.numpy.dtype(dtype).itemsize)
        r = c.rollout
        asked = Requests(r.prompts, r.samples_per_prompt, r.max_prompt_len, r.max_response_len)
        plan = memory.plan(sizes, found.mesh, asked, r.slots or None, r.cache_dtype or dtype)
        parts[f"rollout of {plan.slots} slots"] = plan.bytes
    for name, size in parts.items():
        yield f"memory: {name}", f"{size / GIB:.3f} GiB a device"
    total, there = sum(parts.values()), memory.available(found.mesh)
    known = "not known" if there is None else f"{there / GIB:.3f} GiB"
    yield "memory: all, without activations", f"{total / GIB:.3f} GiB; there is {known}"
    if there is not None and total > there:
        progress.warn("this does not fit: more devices, a smaller batch, or fewer rollout.slots")


def _shapes(found: run_lib.Checked):
    """The `TrainState` without its values."""
    config = found.config
    optimizer = optim.make_optimizer(config.optim, config.total_steps, config.seed)
    return initial.shapes(config, found.mesh, optimizer)[1]


def _bytes(tree, itemsize: int | None = None) -> int:
    """On each device; itemsize: of every number, None = as they are."""
    shards = ((x.sharding.shard_shape(x.shape), x.dtype) for x in jax.tree.leaves(tree))
    return sum(math.prod(shape) * (itemsize or dtype.itemsize) for shape, dtype in shards)


def _reward(found: run_lib.Checked) -> str:
    """What the verifier makes of the first problem's own reference answer."""
    c, gold = found.config.reward, found.source.train(0).gold
    response = rf"<think>It is known.</think><answer>\boxed{{{gold}}}</answer>"
    with Verifier(1, c.timeout_s, c.functions) as verifier:
        verifier.warm_up()
        (score,) = verifier.score_batch(
            [response],
            [gold],
            accuracy_weight=c.accuracy_weight,
            format_weight=c.format_weight,
            repetition_penalty=c.repetition_penalty,
        )
    if not score.accuracy:
        progress.warn(f"the reference answer {gold!r} is not accepted as an answer: {score.reason}")
    return f"{score.total:g} (accuracy {score.accuracy:g}, format {score.format:g})"
