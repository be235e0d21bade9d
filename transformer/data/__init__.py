"""Text pairs to batches: sources, tokenizers, corpora. Data flows one way."""
