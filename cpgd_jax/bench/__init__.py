"""Benchmarks: one file each, functions that return rows for `python -m experiments.bench`.

A row is {name, one of tokens_per_s, seconds or bytes, ratio: {peer: x}, ...}; a ratio is that field
of ours over the peer's, both measured in turn in one run. Of tokens_per_s more is better, of
seconds and bytes less.
"""
