"""The parts of ``on_accelerator.py``: what it measures, where, and what it reports."""
