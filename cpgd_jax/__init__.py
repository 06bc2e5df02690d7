"""Stable rule-based reinforcement learning of language models in JAX (CPGD, arXiv 2505.12504)."""

__version__ = "0.1.0"
