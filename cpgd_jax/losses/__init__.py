"""Losses: per-token objectives and KL terms, their aggregation, and the composed policy loss."""
