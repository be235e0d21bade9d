"""``python -m transformer`` is the console script ``transformer``."""

from transformer.cli import run

if __name__ == "__main__":
    run()
