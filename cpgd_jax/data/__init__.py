"""Problems in: tokenizers, prompts, sources, batches."""
