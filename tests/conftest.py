"""What every test starts from."""

import gc
import importlib.metadata
import os
import signal

# Before jax is imported: the tests' tolerances are those of float32 on the CPU.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Most of a test's time is compilation, and a third of that optimises machine code that
# runs once. The operations of a program, and so all that is counted, are the same.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
# Fused loops become LLVM code directly, not through MLIR: half the time again. Scatters
# become loops; products, exponentials and memory stay the same. A later XLA does not
# know the flag and would end the process. And a program is compiled in one piece, not
# in 32 for as many cores: each core has its own tests to compile.
if importlib.metadata.version("jaxlib").startswith("0.10."):
    flags = "--xla_cpu_use_fusion_emitters=false"
    flags += " --xla_cpu_parallel_codegen_split_count=1"
    os.environ.setdefault("XLA_FLAGS", flags)

import hypothesis
import pytest

# Programs for a Python that has torch; looking for doctests would import it.
collect_ignore = [f"programs/torch_{of}.py" for of in ("values", "convs2s", "bytenet")]
collect_ignore += [
    f"programs/{of}.py"
    for of in ("deberta_values", "marian_values", "peer_translations")
]

# pytest puts the folder of this file on sys.path, so every test can import `support`,
# whose assertions should report as much as those of tests.
pytest.register_assert_rewrite("support")

# Processes in a shell's background ignore Ctrl-C, and those under nohup a hangup; some
# tests send these signals.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# What jax traced and compiled stays alive; searching all of it for garbage again and
# again, as Python does by default, took 7 % of the time of test_every_model.py.
gc.set_threshold(100_000, 20, 20)

hypothesis.settings.register_profile("default", deadline=None, print_blob=True)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "default")

# Tests of a minute or more, the longest first: started last, they would run alone.
LONGEST = ("test_eight_devices_make_no_difference[quick]",)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the longest tests first; the others keep their order."""
    rank = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.name, len(LONGEST)))


@pytest.fixture
def workdir_of(tmp_path, monkeypatch):
    """Let the commands find a given translator in a workdir, on the devices here.

    The function takes the module whose ``load`` they call, the settings and the
    translator, and returns the workdir.
    """
    from transformer import parallel
    from transformer.run.folder import write_settings

    def put(module, settings, translator):
        write_settings(tmp_path, settings)
        monkeypatch.setattr(parallel, "start", lambda device: f"devices: {device}")
        monkeypatch.setattr(module, "load", lambda workdir, step: translator)
        return tmp_path

    return put


@pytest.fixture
def started(monkeypatch):
    """Leave the devices of this process alone; record what was asked for."""
    from transformer import parallel

    devices = []

    def start(device):
        devices.append(device)
        return f"devices: {device}"

    monkeypatch.setattr(parallel, "start", start)
    return devices


@pytest.fixture
def own_cache(tmp_path):
    """Let a test start the devices without using the cache of the user's programs."""
    from support.runs import compiling_once

    with compiling_once(tmp_path / "programs"):
        yield


@pytest.fixture
def trained(tmp_path):
    """Return the folder of a run that holds only its configuration."""
    from support.configs import base

    from transformer.run.folder import write_settings

    write_settings(tmp_path, base())
    return tmp_path


@pytest.fixture
def patch(monkeypatch):
    """Replace what layers call: no trace from before or during this test is reused."""
    from transformer.models.transformer import _layer_of

    _layer_of.cache_clear()
    yield monkeypatch
    _layer_of.cache_clear()


@pytest.fixture
def hasty(monkeypatch):
    """Let an ablation poll its runs without pauses."""
    from transformer.tools.ablate.launchers import Local
    from transformer.tools.ablate.slurm import Slurm

    monkeypatch.setattr(Local, "pause", 0.01)
    monkeypatch.setattr(Slurm, "pause", 0.01)


@pytest.fixture
def unprepared(monkeypatch):
    """Let an ablation leave the data alone: its programs need none."""
    from transformer.tools.ablate import watch

    monkeypatch.setattr(watch, "_prepare", lambda runs, say: None)
