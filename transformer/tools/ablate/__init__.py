"""Ablations: rows of a table with several seeds, each run a process of its own."""
