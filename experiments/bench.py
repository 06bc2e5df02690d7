"""Benchmarks; a JSON line each, with ratios to what is timed beside it.

python -m experiments.bench loss --algorithm=grpo          policy_loss with gradient
python -m experiments.bench reward                         verifier workers
python -m experiments.bench rollout --workload=fixed       or ragged, long
python -m experiments.bench logprob                        fused log-probabilities, V = 151,936
python -m experiments.bench train_step --workload=shared   or prefix, ragged, compile
python -m experiments.bench iteration                      rollout, reward and update

--config.model.dtype=bfloat16 and the like change what cpgd_jax/bench/workloads.py has chosen.
Peers run beside `rollout`, `train_step` and `iteration` from scripts and environments of your own:
--compare=tunix,hf --peers=DIR --peer_python=tunix=PYTHON,hf=PYTHON
"""

import json

import jax
from absl import flags
from ml_collections import config_flags

from configs import base
from cpgd_jax import checkpoint, cli
from cpgd_jax.bench import iteration, logprob, loss, peers, reward, rollout, train_step, workloads
from cpgd_jax.errors import UserError

DEFAULTS = base.get_config()
DEFAULTS.update_from_flattened_dict(workloads.CONFIG)
CONFIG = config_flags.DEFINE_config_dict("config", DEFAULTS, "A field: --config.a.b=value")
WORKLOAD = flags.DEFINE_string("workload", "", "rollout, train_step: which; default: the first")
REPEATS = flags.DEFINE_integer("repeats", None, "rounds, the median counts", lower_bound=1)
TOKENS = flags.DEFINE_integer("tokens", 1024, "logprob: tokens that are timed", lower_bound=1)
ALGORITHM = flags.DEFINE_string("algorithm", "cpgd", "loss: a row of ALGORITHMS")
BATCH = flags.DEFINE_integer("batch", 1024, "loss: responses (B)", lower_bound=1)
LENGTH = flags.DEFINE_integer("length", 4096, "loss: tokens of a response (T)", lower_bound=1)
COMPARE = flags.DEFINE_list("compare", [], "peers to run beside it")
PEERS = flags.DEFINE_string("peers", "", "folder of the peers' scripts")
PEER_PYTHON = flags.DEFINE_list("peer_python", [], "PEER=PYTHON, the interpreter of each peer")


def _loss():
    return loss.run(ALGORITHM.value, BATCH.value, LENGTH.value, REPEATS.value or 15)


def _reward():
    return reward.run()


def _rollout():
    name = _chosen(workloads.SAMPLING)
    sizes = checkpoint.model_config(_config().model)
    work, name = workloads.SAMPLING[name], f"rollout/{name}"
    return rollout.run(name, work, sizes, REPEATS.value or 3, _peers(name))


def _logprob():
    return logprob.run(TOKENS.value, REPEATS.value or 3, _config().model.dtype)


def _train_step():
    name = _chosen([*workloads.TRAINING, "compile"])
    if name == "compile":
        return train_step.compile_time(_config(), REPEATS.value or 3)
    work, name = workloads.TRAINING[name], f"train_step/{name}"
    return train_step.run(name, work, _config(), REPEATS.value or 3, _peers(name))


def _iteration():
    return iteration.run(_config(), REPEATS.value or 3, _peers("iteration"))


BENCHMARKS = {
    "loss": _loss,
    "reward": _reward,
    "rollout": _rollout,
    "logprob": _logprob,
    "train_step": _train_step,
    "iteration": _iteration,
}


def _config():
    return cli.load_config(CONFIG)


def _chosen(choices) -> str:
    """--workload, or the first of these."""
    name = WORKLOAD.value or next(iter(choices))
    if name not in choices:
        raise UserError(f"--workload is {name!r}: choose one of {', '.join(choices)}")
    return name


def _peers(benchmark: str) -> dict:
    pythons = dict(pair.partition("=")[::2] for pair in PEER_PYTHON.value)
    return peers.programs(benchmark, COMPARE.value, PEERS.value, pythons)


def main(name: str) -> None:
    jax.config.update("jax_enable_compilation_cache", False)  # compiling is timed too
    for row in BENCHMARKS[name]():
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    cli.run(main, choices=tuple(BENCHMARKS))
