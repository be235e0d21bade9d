"""An ablation from the command line: what it prints, refuses and leaves on disk."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence

import pytest
from support.ablations import FAKE, STEPS, TABLE3, TRAIN, write_results
from support.calls import error
from support.configs import base, saved_form
from support.paths import EXPERIMENTS, ROOT
from support.runs import write_digits

from transformer.cli import main as cli
from transformer.cli.parse import resolved
from transformer.run.folder import write_settings
from transformer.tools.ablate import runs as planned
from transformer.tools.ablate import watch

pytestmark = pytest.mark.usefixtures("hasty")


def test_the_configuration_of_a_run_has_neither_rows_nor_variants(tmp_path, capsys):
    file = tmp_path / "config.json"
    write_settings(tmp_path, base())
    call = ["ablate", f"--config={file}", "--rows=all", f"--workdir={tmp_path}"]
    assert "expected a file with ROWS" in error(capsys, *call)
    said = error(capsys, "params", f"--config={file}:big")
    assert said.startswith(f"--config: expected no variant of {file}, which has none")


def test_dry_run_prints_the_commands_and_touches_nothing(tmp_path, capsys):
    folder = tmp_path / "a folder"
    given = ["--config.train.steps=8", "--noconfig.model.attention_bias"]
    call = ["ablate", f"{TABLE3}:data=numbers,scale=0.25", *given, "--rows=E,A_h4"]
    assert cli.main([*call, "--seeds=2", f"--workdir={folder}", "--dry_run"]) == 0
    commands = [shlex.split(line) for line in capsys.readouterr().out.splitlines()]
    order = [(row, k) for k in (0, 1) for row in ("base", "E_learned", "A_h4")]
    python = [sys.executable, "-m", "transformer", "train"]
    assert commands == [
        [
            *python,
            f"{TABLE3}:{row},data=numbers,scale=0.25",
            "--config.train.steps=8",
            "--config.model.attention_bias=False",
            f"--config.seed={k}",
            f"--workdir={folder / row / f'seed_{k}'}",
        ]
        for row, k in order
    ]
    assert not list(tmp_path.iterdir())


def test_dry_run_leaves_out_what_is_finished(tmp_path, capsys):
    write_results(tmp_path / "base" / "seed_0")
    call = [f"{TABLE3}:data=numbers", "--rows=E", "--config.train.steps=8"]
    assert cli.main(["ablate", *call, f"--workdir={tmp_path}", "--dry_run"]) == 0
    (command,) = capsys.readouterr().out.splitlines()
    assert f"--workdir={tmp_path}/E_learned/seed_0" in command


def keep(folder, row, *changes):
    """Write what report --save writes of a finished run, as far as ablate reads it."""
    given = [f"{TABLE3}:{row},data=numbers", *changes, "--config.data.dir=theirs"]
    write_results(place := folder / row / "seed_0", step=8)
    settings = resolved([*given, "--config.train.steps=8"])
    write_settings(place, settings)


def test_what_is_kept_elsewhere_is_not_trained_again(tmp_path, capsys):
    keep(tmp_path / "kept", "base")
    call = [f"{TABLE3}:data=numbers", "--rows=E", "--config.train.steps=8"]
    call += [f"--workdir={tmp_path / 'runs'}", f"--results={tmp_path / 'kept'}"]
    assert cli.main(["ablate", *call, "--dry_run"]) == 0
    (command,) = capsys.readouterr().out.splitlines()
    assert f"--workdir={tmp_path}/runs/E_learned/seed_0" in command
    assert cli.main(["ablate", *call, "--seeds=2", "--dry_run"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    keep(tmp_path / "kept", "E_learned")
    assert cli.main(["ablate", *call]) == 0  # without a folder or a process
    assert "nothing to do" in capsys.readouterr().out
    assert not (tmp_path / "runs").exists()


def test_what_is_kept_of_another_configuration_is_refused(tmp_path, capsys):
    keep(tmp_path / "kept", "base", "--config.model.dropout=0.3")
    call = [f"{TABLE3}:data=numbers", "--rows=E", "--config.train.steps=8"]
    call += [f"--workdir={tmp_path / 'runs'}", "--dry_run"]
    said = error(capsys, "ablate", *call, f"--results={tmp_path / 'kept'}")
    assert "model.dropout: 0.3 -> 0.1" in said and "base/seed_0" in said
    said = error(capsys, "ablate", *call, f"--results={tmp_path / 'nothing'}")
    assert "--results: expected a folder" in said


@pytest.mark.parametrize(
    "row", ["..", "a/b", "/a", "", ".a", "-a", "a,b", "a:b", "a\\b", "a\nb", 3]
)
def test_a_row_that_is_no_name_of_a_folder(tmp_path, capsys, row):
    file = tmp_path / "rows.py"
    file.write_text(
        f"ROWS = {{'base': {{}}, {row!r}: {{}}}}\n"
        "from ml_collections import ConfigDict\n"
        "def get_config(variant=''):\n    return ConfigDict(CONFIG)\n"
        f"CONFIG = {saved_form(base())}\n"
    )
    folder = tmp_path / "runs" / "here"
    call = [f"--config={file}", "--rows=base", f"--workdir={folder}", "--dry_run"]
    assert "names of ROWS such as A_h1" in (said := error(capsys, "ablate", *call))
    assert f"got {row!r} in {file}" in said and not folder.exists()


@pytest.mark.parametrize(
    "arguments, expected",
    [
        ([TABLE3, "--rows=A_h2"], "expected rows of the config file, base, A_h1, "),
        ([TABLE3, "--rows=E,E_learned"], "expected every row once, got E_learned"),
        (
            [TABLE3, "--rows=E", "--seeds=0"],
            "--seeds: expected a whole number, at least 1",
        ),
        ([TABLE3], "ablate: expected --rows: "),
        (
            [f"{TABLE3}:scale=0.3", "--rows=A"],
            "table3.py: expected a scale that leaves model.d_model a whole number, got",
        ),
        (
            [f"{TABLE3}:scale=0.015625", "--rows=A"],
            "model.d_k a whole number, got 32 x 0.015625",
        ),
        ([f"{TABLE3}:scale=-1", "--rows=A"], "expected a scale above 0, got -1"),
        ([f"{TABLE3}:A_h1", "--rows=E"], ":KEY=VALUE,... for all rows, got :A_h1; nam"),
        ([TABLE3, "--rows=E", "--config.seed=3"], "--config.seed: expected no value"),
        ([TABLE3, "--rows=E", "--config.name=x"], "--config.name: expected no value"),
        ([TABLE3, "--rows=E", "--config.sed=3"], "got sed; did you mean seed?"),
        (
            [TABLE3, "--rows=D", "--config.model.dropout=0.2"],
            "expected rows that differ, got base and D_drop0.0, which are the same",
        ),
        (
            [f"--config={EXPERIMENTS / 'number_words.py'}", "--rows=E"],
            "expected a file with ROWS, such as experiments/table3.py, got ",
        ),
        (
            [TABLE3, "--rows=E", "--jobs=0"],
            "--jobs: expected a whole number, at least 1",
        ),
        (
            [TABLE3, "--rows=E", "--launcher=ssh"],
            "--launcher: expected one of local, slurm",
        ),
        (
            [TABLE3, "--rows=E", "--slurm.account=me"],
            "--slurm.account: expected --launcher=slurm with it",
        ),
        (
            [TABLE3, "--rows=E", "--config.device=cpu", "--jobs=9999"],
            "the cores of this machine, got 9999; ask for fewer",
        ),
    ],
)
def test_mistakes_are_one_line_and_nothing_runs(
    capsys, monkeypatch, tmp_path, arguments, expected
):
    monkeypatch.setattr(watch, "ablate", pytest.fail)
    folder = tmp_path / "x"
    assert expected in error(capsys, "ablate", *arguments, f"--workdir={folder}")
    assert not folder.exists() or not list(folder.iterdir())


def test_a_workdir_of_another_configuration_is_refused(capsys, tmp_path):
    workdir = tmp_path / "E_learned" / "seed_0"
    write_results(workdir)
    write_settings(workdir, base(name="mine"))
    call = ["ablate", TABLE3, "--rows=E", f"--workdir={tmp_path}", "--dry_run"]
    text = error(capsys, *call)
    assert text.startswith(f"{workdir} belongs to another configuration; expected the ")
    assert "name: 'mine' -> 'table3/E_learned/wmt14/x1'; " in text


def test_all_of_it_from_the_command_line(capsys, monkeypatch, tmp_path):
    """Three rows of real configurations and real data; only training is not real."""

    def fake(arguments: Sequence[str]) -> tuple[str, ...]:
        workdir = arguments[-1].removeprefix("--workdir=")
        return sys.executable, "-c", FAKE + TRAIN, workdir

    monkeypatch.setattr(planned, "command_of", fake)
    write_digits(tmp_path / "data")
    folder = tmp_path / "runs"
    call = [
        "ablate",
        f"{TABLE3}:data={tmp_path / 'data'},scale=0.125",
        *("--rows=E,no_positions", f"--workdir={folder}", "--config.device=cpu"),
        *("--config.tokenizer.kind=whitespace", "--config.tokenizer.vocab_size=0"),
        f"--config.train.steps={STEPS}",
    ]
    assert cli.main(call) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "3 runs: 0 finished before, 3 to do, 1 at a time" in lines
    assert lines[-1].startswith("3 of 3 runs are finished; compare them by transformer")
    made = sorted(path.name for path in folder.iterdir())
    assert made == ["E_learned", "base", "corpus", "no_positions"]
    assert "trained" in (folder / "E_learned" / "seed_0.log").read_text()
    moved = folder.rename(tmp_path / "moved")
    for row in ("base", "E_learned", "no_positions"):
        link = moved / row / "seed_0" / "corpus"
        assert link.is_symlink() and (link / "manifest.json").is_file()


@pytest.mark.slow
def test_a_real_ablation_of_a_few_steps(tmp_path):
    write_digits(tmp_path / "data")
    sizes = {
        "data.max_length": 8,
        "tokenizer.kind": "whitespace",
        "tokenizer.vocab_size": 0,
        "batch.tokens": 128,
        "model.layers": 1,
        "train.steps": 4,
        "train.log_every": 1,
        "train.evaluate_every": 2,
        "train.checkpoint_every": 2,
        "train.checkpoint_minutes": 0.0,
        "decode.beam": 1,
        "decode.extra_tokens": 1,
        "device": "cpu",
    }
    call = [
        *(sys.executable, "-m", "transformer", "ablate", "--rows=no_positions"),
        f"{TABLE3}:data={tmp_path / 'data'},scale=0.0625",
        *(f"--config.{key}={value}" for key, value in sizes.items()),
        f"--workdir={tmp_path / 'runs'}",
    ]

    def call_it() -> list[str]:
        run = subprocess.run(call, cwd=ROOT, capture_output=True, text=True)
        assert run.returncode == 0, run.stdout + run.stderr
        return run.stdout.splitlines()

    lines = call_it()
    assert any(re.match(r"base seed 0: running  step 2/4  loss \d", x) for x in lines)
    for row in ("base", "no_positions"):
        workdir = tmp_path / "runs" / row / "seed_0"
        results = json.loads((workdir / "results.json").read_text())
        assert results["step"] == 4 and len(results["sentences"]) == 3
        assert (workdir / "corpus").is_symlink()
        record = json.loads((workdir / "record.json").read_text())
        assert record["name"] == f"table3/{row}/data/x0.0625"
    assert "2 runs: 2 finished before, 0 to do, 0 at a time" in call_it()
