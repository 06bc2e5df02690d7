"""Masked reductions and token log-probabilities."""
