"""How much memory there is, and what is held and needed of it."""

import dataclasses
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

from transformer.config import UserError
from transformer.parallel import memory

KB = 1024


def machine(folder: Path, groups: str = "0::/\n", limits=()) -> tuple[Path, Path]:
    """Write the tables of a machine: 9 MB available, 5 pages of this process."""
    proc, cgroups = folder / "proc", folder / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 20000 kB\nMemAvailable:    9000 kB\n")
    (proc / "self/statm").write_text("90 8 3 1 0 30 0\n")
    (proc / "self/cgroup").write_text(groups)
    for path, text in limits:
        (cgroups / path).parent.mkdir(parents=True, exist_ok=True)
        (cgroups / path).write_text(text)
    return proc, cgroups


V1 = "memory.limit_in_bytes"
THERE = 9000 * KB + 5 * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    "groups, limits, expected",
    [
        ("0::/\n", [], THERE),
        ("0::/\n", [("memory.max", "max\n")], THERE),
        ("0::/a/b\n", [("a/b/memory.max", "70000\n")], 70_000),
        # The least of all that it is in, also where the innermost is not to be seen.
        ("0::/a/b\n", [("a/b/memory.max", "70000"), ("a/memory.max", "600")], 600),
        ("0::/a/b\n", [("memory.max", "600")], 600),
        # Not of another group.
        ("0::/a\n", [("b/memory.max", "600")], THERE),
        ("7:cpu:/\n4:memory:/x\n0::/\n", [("memory/x/" + V1, "500\n")], 500),
        ("4:memory:/x\n", [("memory/" + V1, str(2**63 - 4096))], THERE),
        ("7:cpu:/x\n", [("memory/x/" + V1, "500")], THERE),
    ],
)
def test_the_memory_of_a_host(tmp_path, groups, limits, expected):
    assert memory.host(*machine(tmp_path, groups, limits)) == expected


def test_without_linux_s_tables_it_is_that_of_the_machine(tmp_path):
    pages, size = (os.sysconf(f"SC_{x}") for x in ("PHYS_PAGES", "PAGE_SIZE"))
    assert memory.host(tmp_path, tmp_path) == pages * size


def test_what_a_process_holds_stays_its_own():
    before = memory.host()
    block = np.ones(300_000_000, np.uint8)
    # Other processes come and go meanwhile.
    assert memory.host() > before - 150_000_000
    del block


@dataclasses.dataclass
class Card:
    stats: dict[str, int] | None
    platform: str = "cuda"

    def memory_stats(self):
        if self.stats is None:
            raise jax.errors.JaxRuntimeError("UNIMPLEMENTED: no statistics")
        return self.stats


def test_the_memory_of_devices(monkeypatch):
    def with_cards(*cards):
        monkeypatch.setattr(jax, "local_devices", lambda: list(cards))
        return memory.here()

    large, small = Card({"bytes_limit": 900}), Card({"bytes_limit": 300})
    assert with_cards(large) == 900
    assert with_cards(large, small) == 300
    assert with_cards(large, Card(None)) == with_cards(Card({})) == 0
    monkeypatch.setattr(memory, "host", lambda: 1000)
    cpu = Card({}, "cpu")
    assert with_cards(cpu) == 1000
    assert with_cards(*[cpu] * 8) == 125


def test_what_is_held_by_one_device():
    tree = {"a": jnp.zeros((3, 5)), "b": jax.ShapeDtypeStruct((7,), jnp.int8)}
    assert memory.held(tree) == 4 * 15 + 7
    mesh = AbstractMesh((4, 2), ("x", "y"))
    for spec, bytes_of_8 in ((P(), 32), (P("x"), 8), (P("x", "y"), 4)):
        place = NamedSharding(mesh, spec)
        placed = jax.ShapeDtypeStruct((4, 2), jnp.float32, sharding=place)
        assert memory.held([placed]) == bytes_of_8


def test_what_a_program_needs_covers_what_it_reads_and_writes():
    def compiled(function, *shapes, **options):
        arguments = (jax.ShapeDtypeStruct(x, jnp.float32) for x in shapes)
        return memory.needed(jax.jit(function, **options).lower(*arguments).compile())

    assert compiled(lambda x: x + 1, (1000,)) >= 4000
    assert compiled(lambda x: x[0] * jnp.arange(1000), (1,)) >= 4000
    assert compiled(lambda x: x[0], (1000,)) >= 4000
    # What is donated is not held twice.
    assert compiled(lambda x: x + 1, (1000,), donate_argnums=0) < 8000
    # What is sorted is neither an argument nor a result.
    assert compiled(lambda x: jnp.sort(x @ x.T)[0, 0], (300, 9)) > 4 * 300**2


def test_memory_that_runs_out_is_one_line():
    with (
        pytest.raises(UserError) as caught,
        memory.enough("beam: expected a search", "lower it"),
    ):
        jax.jit(lambda: jnp.zeros((10**13,)))().block_until_ready()
    said = str(caught.value)
    assert said.startswith(
        "beam: expected a search that fits into memory, got: RESOURC"
    )
    assert said.endswith("; lower it") and "\n" not in said


def test_other_errors_of_a_device_keep_their_names():
    with (
        pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"),
        memory.enough("beam: expected a search", "lower it"),
    ):
        raise jax.errors.JaxRuntimeError("INTERNAL: broken")
