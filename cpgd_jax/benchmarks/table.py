"""The benchmarks by name."""

from cpgd_jax.benchmarks import (
    aime,
    gsm8k,
    math500,
    mathverse,
    mathvision,
    mathvista,
    mmk12,
    olympiadbench,
    wemath,
)
from cpgd_jax.benchmarks.records import Benchmark
from cpgd_jax.errors import UserError, nearest

BENCHMARKS: dict[str, Benchmark] = {
    "mathvista": mathvista.BENCHMARK,
    "mathverse": mathverse.BENCHMARK,
    "mathvision": mathvision.BENCHMARK,
    "olympiadbench": olympiadbench.BENCHMARK,
    "wemath": wemath.BENCHMARK,
    "mmk12": mmk12.BENCHMARK,
    "gsm8k": gsm8k.BENCHMARK,
    "math500": math500.BENCHMARK,
    "aime": aime.BENCHMARK,
}


def named(name: str) -> Benchmark:
    """UserError: there is none of that name."""
    if name not in BENCHMARKS:
        known = ", ".join(BENCHMARKS)
        raise UserError(f"no benchmark {name!r}{nearest(name, BENCHMARKS)}: give some of {known}")
    return BENCHMARKS[name]
