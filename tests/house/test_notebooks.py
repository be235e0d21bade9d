"""The notebooks: what readers find in them, and that they run from top to bottom."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import nbformat
import pytest
from support.configs import experiment
from support.paths import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def code(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def texts(notebook: Any) -> str:
    """Return all that the cells printed and showed as text."""
    outputs = [output for cell in code(notebook) for output in cell.outputs]
    found = [output.get("text", "") for output in outputs]
    for output in outputs:
        found += output.get("data", {}).values()
    return "\n".join(found)


def test_there_are_five_in_reading_order():
    assert [path.stem for path in NOTEBOOKS] == [
        "01_attention_step_by_step",
        "02_train_on_colab",
        "03_ablation_rows",
        "04_what_heads_learn",
        "05_parsing",
    ]


@every_notebook
def test_it_opens_in_colab_under_its_own_name(path):
    first = read(path).cells[0].source.splitlines()[0]
    assert first.startswith("[![Open in Colab](")
    assert first.endswith(f"/blob/main/notebooks/{path.name})")


def test_all_install_and_ask_for_devices_in_the_same_way():
    setups = {tuple(cell.source for cell in code(read(p))[1:3]) for p in NOTEBOOKS}
    ((install, devices),) = setups
    address = re.search(r"https://github\.com/[\w-]+/[\w-]+", install)
    assert address
    shown = {read(p).cells[0].source.split("/blob/")[0] for p in NOTEBOOKS}
    colab = "https://colab.research.google.com/github"
    assert all(
        s.endswith(address[0].replace("https://github.com", colab)) for s in shown
    )


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Give the cells a machine of one's own; the function says what is on it.

    It returns what was run there, as the cell that installs asked for it.
    """
    ran: list[list[str]] = []

    def of(listed="", files=(), installed=True):
        def run(command, **_):
            ran.append(command)
            return subprocess.CompletedProcess(command, 0, stdout=listed)

        def glob(folder, pattern):
            names = (file for file in files if Path(file).parent == folder)
            return [Path(file) for file in names if Path(file).match(pattern)]

        monkeypatch.delenv("JAX_PLATFORMS", raising=False)
        monkeypatch.setattr("shutil.which", lambda name: listed and name)
        monkeypatch.setattr("subprocess.run", run)
        monkeypatch.setattr(Path, "glob", glob)
        if not installed:
            monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        return ran

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return of


def install(**names):
    exec(code(read(NOTEBOOKS[0]))[1].source, names)
    return names


GPU = "GPU 0: Tesla T4 (UUID: GPU-1)"


@pytest.mark.parametrize(
    ("listed", "files", "has"),
    [
        ("", [], "cpu"),
        (GPU, [], "gpu"),
        ("No devices were found", [], "cpu"),
        ("", ["/dev/accel0", "/dev/accel1"], "tpu"),
        ("", ["/dev/vfio/0"], "tpu"),
        ("", ["/dev/accel", "/dev/vfio/vfio"], "cpu"),  # of a laptop, of any kernel
    ],
)
def test_the_accelerator_is_found_by_what_the_machine_has(
    machine, monkeypatch, listed, files, has
):
    machine(listed, files)
    assert install()["HAS"] == has
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert install()["HAS"] == "cpu"


@pytest.mark.parametrize(
    ("where", "extra"),
    [
        ({}, ""),
        ({"listed": GPU}, "[cuda12]"),  # Colab's driver is one of CUDA 12
        ({"files": ["/dev/vfio/0"]}, "[tpu]"),
    ],
)
def test_a_fresh_machine_gets_what_its_accelerator_needs(
    machine, monkeypatch, where, extra
):
    for name in ("numpy", "jax"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    ran = machine(installed=False, **where)
    install()
    clone, pip = (command for command in ran if command[0] != "nvidia-smi")
    assert clone[:2] == ["git", "clone"] and clone[-1] == "project"
    assert pip[1:4] == ["-m", "pip", "install"]
    assert pip[-3:] == [f"./project{extra}", "-c", "project/constraints.txt"]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert not extra or extra.strip("[]") in extras["optional-dependencies"]
    assert sys.path[0] == str(Path("project").resolve())


def test_what_was_loaded_before_the_installation_ends_the_kernel_on_colab(
    machine, monkeypatch, capsys
):
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr("os.kill", lambda *signal: killed.append(signal))
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    monkeypatch.delitem(sys.modules, "jax", raising=False)
    machine(installed=False)
    monkeypatch.setitem(sys.modules, "numpy", sys)
    with pytest.raises(RuntimeError, match="numpy was loaded.*: restart the kernel"):
        install()
    assert not killed
    monkeypatch.setitem(sys.modules, "google.colab", sys)
    install()
    assert killed == [(os.getpid(), signal.SIGKILL)]
    assert "numpy was loaded before its new version came" in capsys.readouterr().out
    monkeypatch.undo()
    install()  # the project is there: nothing is installed, nothing ends
    assert len(killed) == 1


def test_an_accelerator_that_jax_does_not_use_stops_a_notebook(monkeypatch, capsys):
    devices = code(read(NOTEBOOKS[0]))[2].source
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")  # which the cell sets
    names = install()
    exec(devices, names)
    assert capsys.readouterr().out.startswith("cpu [CpuDevice(id=0)")
    assert names["DEVICE"] == "cpu"
    with pytest.raises(RuntimeError, match="this machine has a tpu, JAX runs on cpu"):
        exec(devices, names | {"HAS": "tpu"})


def test_the_files_to_upload_are_those_that_multi30k_reads():
    config = experiment("multi30k")
    text = "".join(cell.source for cell in read(NOTEBOOKS[1]).cells)
    named = set(re.findall(r"`([\w]+\.(?:en|de))`", text))
    splits = ("train", config.data.validation, config.data.test)
    assert named == {
        f"{split}.{language}" for split in splits for language in "en de".split()
    }


def test_multi30k_is_read_from_the_folder_that_is_told(tmp_path, monkeypatch, capsys):
    where, job = (code(read(NOTEBOOKS[1]))[i].source for i in (3, 4))
    monkeypatch.chdir(tmp_path)
    names = {"DRIVE": False, "JOB": "multi30k", "FAST": False, "DEVICE": "cpu"}
    names |= {"os": os, "Path": Path, "shutil": shutil}
    exec(where, names)
    exec(job, names)
    told, command = capsys.readouterr().out.splitlines()
    folder = Path(told.removeprefix("data: "))
    assert folder.is_dir()
    asked = re.search(r"--config.data.dir=(\S+)", command)
    assert asked and Path(asked[1]).resolve() == folder


@every_notebook
def test_what_a_tpu_will_take_is_asked_of_plan(path):
    text = "".join(cell.source for cell in read(path).cells)
    assert re.search(r"`transformer plan[^`]*--target=v5e-1`", text)


@every_notebook
def test_outputs_are_those_of_one_run_in_the_fast_setting(path):
    notebook = read(path)
    cells = code(notebook)
    assert "FAST = True" in cells[0].source
    counts = [cell.execution_count for cell in cells]
    assert counts == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert not [o for o in outputs if o.output_type == "error"]
    assert any("image/png" in o.get("data", {}) for o in outputs)
    assert path.stat().st_size < 1_500_000


@every_notebook
def test_outputs_name_no_place_of_the_machine_that_made_them(path):
    assert not re.search(r"/(home|root|tmp|work|Users|usr)\b/?", texts(read(path)))


@pytest.mark.slow
@every_notebook
def test_it_runs_from_top_to_bottom(path, monkeypatch, tmp_path):
    if shutil.which("transformer") is None:
        pytest.skip("no command transformer here: install the project")
    from nbclient import NotebookClient

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.delenv("JAX_DISABLE_MOST_OPTIMIZATIONS")  # see conftest.py
    # Compiled programs of an earlier run must not help.
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
    notebook = read(path)
    for cell in code(notebook):
        cell.outputs, cell.execution_count = [], None
    began = time.monotonic()
    where = {"metadata": {"path": str(ROOT)}}
    NotebookClient(notebook, timeout=600, resources=where).execute()
    took = time.monotonic() - began
    print(f"{path.name}: {took:.0f} s on {os.cpu_count()} cores, meant to be 90 on 2")
    assert all(cell.execution_count for cell in code(notebook))
