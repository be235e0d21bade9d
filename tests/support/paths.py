"""Where things lie, whatever the folder of the test that asks."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
EXPERIMENTS = ROOT / "experiments"
BENCH = EXPERIMENTS / "bench"
TESTS = ROOT / "tests"
PROGRAMS = TESTS / "programs"  # that tests start as processes of their own
SHARED = ROOT.parent / "shared"  # reference data; tests that need it skip without it
