"""An optimiser step: tokens a second beside peers, padded rows and matrix products alone."""

import dataclasses
import statistics

from cpgd_jax import flops, matmul_rate
from cpgd_jax.bench import peers as peers_lib
from cpgd_jax.bench import timing, workloads
from cpgd_jax.bench.trainer import Trainer
from cpgd_jax.config import Config

DEEP, FLAT = 28, 2  # layers, for the time to compile


def run(
    name: str, work: workloads.Training, config: Config, repeats: int, peers: dict
) -> list[dict]:
    """One row. tokens_per_s counts a response's prompt with each response, as the peers do.

    mfu: the step's model FLOPs a second over the best rate of matrix products of the model's
    shapes, measured in turn. name: for the row. peers: see `peers.programs`.
    """
    config = _with_microbatches(config, work.prompts * work.samples)
    trainer, batch = Trainer(config), workloads.batch(work, config.model.vocab_size)
    programs = {"ours": lambda: trainer.step(trainer.run.pack(batch))}
    if work.beside:
        programs[work.beside] = lambda: trainer.step(trainer.padded(batch))
    for program in programs.values():
        program()  # compiles
    tokens = int(batch.prompt_mask_BS.sum() + batch.mask_BT.sum())
    seconds, rates = {name: [] for name in programs}, []

    def measure():
        rates.append(matmul_rate.flops_per_s(config.model, config.model.dtype))
        for name, program in programs.items():
            seconds[name].append(timing.once(program))
        return tokens / seconds["ours"][-1]

    own, others, ratio = peers_lib.in_turn(measure, peers, repeats)
    if work.beside:
        ratio[work.beside] = timing.ratio(seconds[work.beside], seconds["ours"])
    counted = flops.work(batch.prompt_mask_BS, batch.mask_BT, batch.group_B)
    step_flops = flops.train_step(config.model, counted)
    return [
        {
            "name": name,
            "tokens_per_s": statistics.median(own),
            "ratio": ratio,
            "peers_tokens_per_s": others,
            "mfu": timing.ratio([step_flops / s for s in seconds["ours"]], rates),
            "step_seconds": statistics.median(seconds["ours"]),
            "matmul_flops_per_s": statistics.median(rates),
            "dtype": config.model.dtype,
        }
    ]


def compile_time(config: Config, repeats: int) -> list[dict]:
    """One row: seconds from Python to a compiled step of a deep model, over those of a flat one."""
    work = workloads.Training(1, 2, 16, 16)
    config = _with_microbatches(config, 2)
    seconds = {DEEP: [], FLAT: []}
    for _ in range(repeats):
        for layers, found in seconds.items():
            model = dataclasses.replace(config.model, num_layers=layers)
            trainer = Trainer(dataclasses.replace(config, model=model))
            micro = trainer.run.pack(workloads.batch(work, model.vocab_size))
            first = timing.once(lambda t=trainer, m=micro: t.step(m))
            found.append(first - timing.once(lambda t=trainer, m=micro: t.step(m)))
    return [
        {
            "name": "train_step/compile",
            "seconds": statistics.median(seconds[DEEP]),
            "ratio": {f"{FLAT}_layers": timing.ratio(seconds[DEEP], seconds[FLAT])},
            "layers": DEEP,
        }
    ]


def _with_microbatches(config: Config, responses: int) -> Config:
    size = min(config.train.microbatch_size, responses)
    return dataclasses.replace(
        config, train=dataclasses.replace(config.train, microbatch_size=size)
    )
