"""Benchmarks, one JSON line: loss (policy_loss with gradient), reward (verifier workers).

python -m experiments.bench loss --algorithm=grpo
python -m experiments.bench reward
"""

import json

from absl import flags

from cpgd_jax import bench, cli

ALGORITHM = flags.DEFINE_string("algorithm", "cpgd", "loss: a row of ALGORITHMS")
BATCH = flags.DEFINE_integer("batch", 1024, "loss: responses (B)", lower_bound=1)
LENGTH = flags.DEFINE_integer("length", 4096, "loss: tokens of a response (T)", lower_bound=1)
REPEATS = flags.DEFINE_integer("repeats", 15, "loss: timed calls, the median counts", lower_bound=1)

BENCHMARKS = {
    "loss": lambda: bench.loss(ALGORITHM.value, BATCH.value, LENGTH.value, REPEATS.value),
    "reward": bench.reward,
}


def main(name: str) -> None:
    print(json.dumps(BENCHMARKS[name]()))


if __name__ == "__main__":
    cli.run(main, choices=tuple(BENCHMARKS))
