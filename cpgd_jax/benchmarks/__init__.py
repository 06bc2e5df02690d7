"""Public benchmarks: their official files, prompts and rules. Nothing here imports jax."""

from cpgd_jax.benchmarks.paper import overall

__all__ = ["overall"]
