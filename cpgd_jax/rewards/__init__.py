"""Rule-based rewards: pure Python on strings; importing this never imports jax."""

from cpgd_jax.rewards.rules import Score
from cpgd_jax.rewards.verifier import Verifier, score, score_batch

__all__ = ["Score", "Verifier", "score", "score_batch"]
