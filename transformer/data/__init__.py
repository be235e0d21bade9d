"""Text pairs to batches: sources, tokenizers, batches. Data flows one way."""
