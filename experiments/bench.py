"""Benchmarks; a JSON line each, with ratios to what is timed beside it.

python -m experiments.bench loss --algorithm=grpo       policy_loss with gradient
python -m experiments.bench reward                      verifier workers
python -m experiments.bench rollout --workload=fixed    or ragged, long
python -m experiments.bench logprob                     fused log-probabilities, V = 151,936

Peers run beside `rollout` from scripts and environments of your own:
--compare=tunix,hf --peers=DIR --peer_python=tunix=PYTHON,hf=PYTHON
"""

import dataclasses
import json

from absl import flags

from cpgd_jax import cli
from cpgd_jax.bench import logprob, loss, peers, reward, rollout, workloads
from cpgd_jax.errors import UserError

WORKLOAD = flags.DEFINE_string("workload", "", "rollout: fixed, ragged or long; default: the first")
DTYPE = flags.DEFINE_enum("dtype", "float32", ["float32", "bfloat16"], "of the computation")
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
    name, work = _chosen(workloads.SAMPLING)
    name = f"rollout/{name}"
    return rollout.run(name, work, _model(), REPEATS.value or 3, _peers(name))


def _logprob():
    return logprob.run(TOKENS.value, REPEATS.value or 3, DTYPE.value)


BENCHMARKS = {"loss": _loss, "reward": _reward, "rollout": _rollout, "logprob": _logprob}


def _chosen(choices: dict):
    """(name, workload) of --workload."""
    name = WORKLOAD.value or next(iter(choices))
    if name not in choices:
        raise UserError(f"--workload is {name!r}: choose one of {', '.join(choices)}")
    return name, choices[name]


def _model():
    return dataclasses.replace(workloads.MODEL, dtype=DTYPE.value)


def _peers(benchmark: str) -> dict:
    pythons = dict(pair.partition("=")[::2] for pair in PEER_PYTHON.value)
    return peers.programs(benchmark, COMPARE.value, PEERS.value, pythons)


def main(name: str) -> None:
    for row in BENCHMARKS[name]():
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    cli.run(main, choices=tuple(BENCHMARKS))
