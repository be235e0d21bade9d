"""Paths that hold whatever the current folder of a test is."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
EXPERIMENTS = ROOT / "experiments"
BENCH = EXPERIMENTS / "bench"
TESTS = ROOT / "tests"
PROGRAMS = TESTS / "programs"  # which tests start as separate processes
SHARED = ROOT.parent / "shared"  # reference data; tests that need it skip without it
