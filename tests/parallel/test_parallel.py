"""Devices and memory: what is set before the first computation."""

import subprocess
import sys

import pytest

from transformer.config import UserError
from transformer.parallel import hosts

# What precedes a computation: nothing of ours, or the start of programs, of commands.
_STARTS = {
    "nothing": "",
    "a program": """
from transformer import parallel
parallel.start("cpu")
""",
    "a command": """
from transformer.cli import main
with contextlib.suppress(SystemExit):
    sys.argv = ["transformer", "--version"]
    main.run()  # leaves its threads behind
from transformer import parallel
parallel.start("cpu")
""",
}
_STEPS = """
import contextlib, resource, sys, threading
{start}
import jax, jax.numpy as jnp
step = jax.jit(lambda x: ((x @ x.T) @ x).sum())
x = jnp.ones((4096, 8))
def measure():
    for _ in range(60):  # a newer XLA takes new memory for several of the first steps
        step(x).block_until_ready()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        step(x).block_until_ready()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
thread = threading.Thread(target=measure)  # where XLA runs large programs, too
thread.start()
thread.join()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="page faults as Linux counts them")
def test_a_step_does_not_fault_its_temporaries_in_again() -> None:
    faults = {}
    for name, start in _STARTS.items():
        run = subprocess.run(
            [sys.executable, "-c", _STEPS.format(start=start)],
            capture_output=True,
            text=True,
            check=True,
        )
        faults[name] = int(run.stdout.splitlines()[-1])
    # The product of 64 MiB alone has 16,384 pages of 4 KiB in each of the 20 steps.
    assert faults["nothing"] > 100_000
    assert faults["a program"] < faults["nothing"] / 20
    assert faults["a command"] < faults["nothing"] / 20


@pytest.mark.parametrize(
    "place", ["localhost", "here:port", "a b:80", "here:0", "here:65536", ":80", "[x"]
)
def test_processes_without_a_place_to_meet(place):
    with pytest.raises(UserError, match="--coordinator: expected HOST:PORT of proc"):
        hosts.join(place, 1, 0)
    assert all(
        map(hosts._is_address, ["here:1", "10.0.0.1:65535", "[fe80::1%eth0]:80"])
    )
