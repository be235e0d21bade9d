"""Devices and memory: what is set before the first computation."""

import subprocess
import sys

import pytest

_STEPS = """
import resource
from transformer import parallel
if {keep}:
    parallel.start("cpu")
import jax, jax.numpy as jnp
step = jax.jit(lambda x: jnp.sort(x * 2)[::-1].reshape(-1, 64).cumsum(0).sum())
x = jnp.arange(4_000_000, dtype=jnp.float32)
for _ in range(3):
    step(x).block_until_ready()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    step(x).block_until_ready()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="page faults as Linux counts them")
def test_a_step_does_not_fault_its_temporaries_in_again() -> None:
    faults = {}
    for keep in (True, False):
        run = subprocess.run(
            [sys.executable, "-c", _STEPS.format(keep=keep)],
            capture_output=True,
            text=True,
            check=True,
        )
        faults[keep] = int(run.stdout.splitlines()[-1])
    # Five steps whose temporaries are at least 16 MB: 4,000 pages of 4 KiB each time.
    assert faults[False] > 4_000
    assert faults[True] < faults[False] / 20
