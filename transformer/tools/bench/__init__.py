"""Speed of a configuration on this machine, and the memory of its training step."""
