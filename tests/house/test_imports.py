"""The plan of the house, read from the imports."""

import ast
import functools
import graphlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from support.paths import ROOT, TESTS

PACKAGE = ROOT / "transformer"
FILES = sorted(PACKAGE.rglob("*.py"))
EXPERIMENTS = sorted((ROOT / "experiments").glob("*.py"))  # configurations
BENCH_ROOM = ROOT / "experiments" / "bench"
BENCH = sorted(BENCH_ROOM.rglob("*.py"))  # programs

# Folders are floors; between models and pictures lies the life of a run, flat.
FLOORS = [
    {"__init__", "allocator", "config", "ids", "search"},
    {"nn", "files", "trees"},
    {"decode", "data", "parallel", "metrics"},
    {"run", "models"},
    {
        "prepare",
        "fitting",
        "objective",
        "batch_search",
        "demands",
        "step",
        "programs",
        "validation",
        "train",
        "trained",
        "evaluate",
        "translate",
        "ensemble",
        "stream",
        "warm_start",
    },
    {"formats"},
    {"pictures"},
    {"tools"},
    {"paper"},
    {"cli", "__main__"},
]

# Each foreign thing is known by these files only.
KNOWN_BY = {
    "absl": {"cli/"},
    "flax": {"models/"},
    "grain": {"data/batches.py"},
    "matplotlib": {"pictures/plots/"},
    "ml_collections": {"cli/"},
    "num2words": {"data/sources/number_words.py"},
    "optax": {"nn/optimizer.py", "step.py"},
    "orbax": {"run/checkpoints.py"},
    "pyarrow": {"data/sources/parquet.py"},
    "rich": {"run/records.py"},
    "sacrebleu": {
        *(f"metrics/{name}.py" for name in ("bleu", "chrf_ter", "significance")),
        "data/sources/sacrebleu_sets.py",
    },
    "safetensors": {"formats/huggingface.py"},
    "sacremoses": {"metrics/bleu.py"},
    "scipy": {"paper/statistics.py"},
    "sentencepiece": {"data/tokenizers/sentence_piece.py"},
    "sklearn": {"pictures/curves.py", "tools/strips.py"},
    "submitit": {"tools/ablate/slurm.py"},
    "tensorboardX": {"run/records.py"},
    "tensorflow_datasets": {"data/sources/tfds.py"},
    "yaml": {"formats/marian.py"},
}
# The same for the side-by-side programs: a peer's Python has what that peer needs.
BENCH_KNOWN_BY = {
    "accelerator": {"accelerator/", "on_accelerator.py"},
    "ctranslate2": {"peer_ctranslate2.py"},
    "export": {"ours.py"},
    "flax": {"ours_composed.py"},
    "jax": {"on_device.py", "ours.py", "ours_composed.py", "windows.py"},
    "ours": {"operands.py", "ours_composed.py"},
    "peer_torch": {"peer_torch_composed.py", "peer_transformers.py"},
    "side_by_side": {"accelerator/"},
    "torch": {
        *("peer_torch.py", "peer_torch_composed.py", "peer_transformers.py"),
        *("torch_conv.py", "torch_rnn.py", "torch_search.py"),
    },
    "torch_conv": {"peer_torch_composed.py", "torch_search.py"},
    "torch_rnn": {"peer_torch_composed.py", "torch_conv.py", "torch_search.py"},
    "torch_search": {"peer_torch_composed.py"},
    "transformer": {
        *("export.py", "on_device.py", "operands.py", "ours.py", "ours_composed.py"),
        "windows.py",
    },
    "transformers": {"peer_transformers.py"},
}
WITHOUT_JAX = {"__init__.py", "__main__.py", "search.py"}
WITHOUT_JAX |= {str(path.relative_to(PACKAGE)) for path in PACKAGE.glob("cli/**/*.py")}
WITHOUT_JAX |= {f"run/{x}.py" for x in ("folder", "history", "provenance", "records")}
WITHOUT_JAX |= {"pictures/tables.py"}
WITHOUT_JAX |= {f"paper/{name}.py" for name in ("rows", "runs", "statistics")}
WITHOUT_JAX |= {"tools/targets.py"}
for folder in ("config", "files", "paper/report", "pictures/plots", "tools/ablate"):
    WITHOUT_JAX |= {str(p.relative_to(PACKAGE)) for p in PACKAGE.glob(f"{folder}/*.py")}
DISTRIBUTIONS = {"absl": "absl-py", "orbax": "orbax-checkpoint"}
DISTRIBUTIONS |= {"sklearn": "scikit-learn", "yaml": "PyYAML"}


@functools.cache
def imports(path: Path, top_level_only: bool = False) -> set[str]:
    """Return the dotted names of what a file imports, ``transformer.x`` resolved."""
    tree = ast.parse(path.read_text())
    names = set()
    for node in tree.body if top_level_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write imports in full"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def roots(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports(path)} - set(sys.stdlib_module_names)


def room(path: Path) -> str:
    """Return what FLOORS calls a file: its name, or that of its folder."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def floor(name: str) -> int:
    found = [number for number, rooms in enumerate(FLOORS) if name in rooms]
    assert len(found) == 1, f"transformer/{name} needs one floor: add it to FLOORS"
    return found[0]


def rooms_imported(path: Path) -> set[str]:
    found = set()
    for name in imports(path):
        first, *rest = name.split(".")
        if first == "transformer":
            known = bool(rest) and any(rest[0] in rooms for rooms in FLOORS)
            found.add(rest[0] if known else "__init__")
    return found - {room(path)}


def by_name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", FILES, ids=by_name)
def test_imports_point_downward(path):
    for name in rooms_imported(path):
        assert floor(name) <= floor(room(path)), f"{path} imports {name} from above"


def test_rooms_do_not_import_each_other_in_a_circle():
    needs: dict[str, set[str]] = {room(path): set() for path in FILES}
    for path in FILES:
        needs[room(path)] |= rooms_imported(path)
    graphlib.TopologicalSorter(needs).prepare()  # raises CycleError


def test_files_do_not_import_each_other_in_a_circle():
    names = {dotted(path): path for path in FILES}
    needs = {}
    for name, path in names.items():
        found = imports(path)
        # ``from transformer.nn import layers`` needs the file, or the room's __init__.
        named = {x if x in names else x.rpartition(".")[0] for x in found}
        needs[name] = (named & set(names)) - {name}
    graphlib.TopologicalSorter(needs).prepare()  # raises CycleError


def dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


@pytest.mark.parametrize("path", FILES, ids=by_name)
def test_one_file_knows_each_foreign_thing(path):
    name = path.relative_to(PACKAGE).as_posix()
    for root in roots(path) - {"transformer", "jax", "numpy"}:
        known = tuple(KNOWN_BY.get(root, ()))  # files, or rooms
        assert name.startswith(known), f"{path} may not import {root}"
    if name in WITHOUT_JAX:
        at_start = {n.split(".")[0] for n in imports(path, top_level_only=True)}
        assert not {"jax", "flax", "optax", "orbax"} & at_start


def test_what_is_imported_is_what_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = names_of(project["dependencies"])
    used = set().union(*map(roots, FILES + EXPERIMENTS)) - {"transformer"}
    used -= {path.stem for path in EXPERIMENTS} | {"experiments"}
    named = {DISTRIBUTIONS.get(n, n).replace("_", "-") for n in used}
    extras = project["optional-dependencies"]
    unsaid = {"importlib_resources"}  # tensorflow-datasets imports it, undeclared
    assert named | unsaid == declared | names_of(extras["slurm"])
    used = set().union(*map(roots, BENCH)) - {path.stem for path in BENCH}
    used -= {path.name for path in BENCH_ROOM.iterdir() if path.is_dir()}
    peers = names_of(extras["peers"])
    assert used - {"transformer"} - declared == peers


def names_of(requirements: list[str]) -> set[str]:
    return {re.split("[^\\w-]", line)[0] for line in requirements}


@pytest.mark.parametrize("path", BENCH, ids=by_name)
def test_a_peer_s_program_knows_that_peer_only(path):
    for root in roots(path) - {
        "numpy",
        "arena",
        "report",
        "sizes",
        "weights",
        "worker",
    }:
        known = tuple(BENCH_KNOWN_BY.get(root, ()))  # files, or folders
        name = path.relative_to(BENCH_ROOM).as_posix()
        assert name.startswith(known), f"{path} imports {root}"


@pytest.mark.parametrize("path", EXPERIMENTS, ids=by_name)
def test_experiments_import_only_ml_collections_and_each_other(path):
    others = {path.stem for path in EXPERIMENTS}
    assert roots(path) <= {"ml_collections", "experiments", *others}


def test_folders_of_tests_are_named_as_rooms():
    beside = {"support", "programs", "life", "experiments", "house", "campaign"}
    rooms = {name for names in FLOORS for name in names}
    assert {path.parent.name for path in TESTS.glob("*/*.py")} <= rooms | beside
    assert [path.name for path in TESTS.glob("*.py")] == ["conftest.py"]


def test_what_tests_share_is_in_support():
    files = set(TESTS.rglob("*.py"))
    shared = set((TESTS / "support").rglob("*.py"))
    names = [path.stem for path in files - shared]
    assert len(names) == len(set(names))  # pytest imports them as top-level modules
    for path in files:
        assert not roots(path) & set(names), f"{path} imports a test: use support/"
    for path in shared:
        assert ast.get_docstring(ast.parse(path.read_text())), path


@pytest.mark.parametrize("path", FILES, ids=by_name)
def test_no_data_is_executed(path):
    assert not roots(path) & {"cloudpickle", "dill", "joblib"}
    assert not imports(path) & {"pickle", "marshal", "shelve"}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in {"eval", "exec"}


def loaded_by(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    return {name.split(".")[0] for name in run.stdout.split()}


def test_help_starts_nothing_heavy():
    heavy = set(KNOWN_BY) - {"absl", "ml_collections", "yaml"} | {"jax", "numpy"}
    call = (
        "from transformer.cli.main import main; main(['--help']); main(['train', '-h'])"
    )
    assert not loaded_by(call) & heavy


def test_a_config_file_starts_no_jax():
    code = (
        "import sys; sys.path.insert(0, 'experiments'); import base; base.get_config()"
    )
    assert not loaded_by(code) & {"jax", "numpy", "transformer"}
