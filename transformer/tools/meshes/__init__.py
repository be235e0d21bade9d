"""A step on many devices: memory, communication and operations of each."""
