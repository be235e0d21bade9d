"""The command line: every mistake of a user is one line and exit code 2."""

import dataclasses
import importlib
import os
import re
import subprocess
import sys

import pytest
from support.calls import error, programme
from support.paths import EXPERIMENTS, ROOT

import transformer
from transformer import parallel
from transformer.cli import main as cli
from transformer.config import UserError
from transformer.search import Search

pytestmark = pytest.mark.usefixtures("started")
BASE = f"--config={EXPERIMENTS / 'base.py'}"


# ---- help ----------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["help"]])
def test_the_overview_names_every_command(capsys, arguments):
    assert cli.main(arguments) == 0
    text = capsys.readouterr().out
    for name, command in cli.COMMANDS.items():
        assert f"  {name} " in text and command.summary in text


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_the_help_of_a_command_names_its_flags_and_no_other(capsys, name):
    assert cli.main([name, "--help"]) == 0
    text = capsys.readouterr().out
    command = cli.COMMANDS[name]
    own = {*command.required, *command.optional}
    lines = [line for line in text.splitlines() if line.startswith("  --")]
    shown = {line.split("=")[0].strip() for line in lines}
    assert shown == {f"--{flag}" for flag in own}
    assert all(f"--{flag}=" in text.splitlines()[0] for flag in command.required)


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"transformer {transformer.__version__}\n"


def test_the_commands_of_the_plan_have_their_flags():
    flags = {n: {*c.required, *c.optional} for n, c in cli.COMMANDS.items()}
    hosts = {"coordinator", "num_processes", "process_id"}
    assert flags["train"] == {"config", "workdir", "init_from"} | hosts
    assert flags["evaluate"] >= {"workdir", "split", "step", "average"}
    assert flags["translate"] >= {"workdir", "input", "output", "beam", "alpha"} | {
        "length_penalty",
        "n_best",
        "sample",
        "temperature",
        "top_k",
        "top_p",
        "scores",
    }
    assert flags["score"] >= {"workdir", "source", "target"}
    assert flags["average"] == {"workdir", "last"}
    assert flags["params"] == {"config"}
    assert flags["check"] >= {"config", "workdir"}


# ---- mistakes ------------------------------------------------------------------------


def test_an_unknown_command_suggests_the_nearest(capsys):
    text = error(capsys, "trian")
    assert "expected a command, one of train, evaluate" in text
    assert text.endswith("got trian; did you mean train?")
    assert error(capsys, "--workdir=x").endswith("see transformer --help")


@pytest.mark.parametrize(
    "text, expected",
    [
        ("def get_config(:", "line 1: SyntaxError: invalid syntax"),
        ("\nimport no_such_module", "line 2: ModuleNotFoundError: No module named"),
        ("def get_config():\n  return undefined", "line 2: NameError: name 'undef"),
        ("def get_config():\n  return 1 + 'a'", "line 2: TypeError: unsupported"),
        ("def get_config():\n  open('/no/such')", "line 2: FileNotFoundError: "),
        ("x = 1", "no attribute 'get_config'"),
        ("import sys\nsys.exit(3)", "line 2: SystemExit: 3; fix the file"),
        ("def get_config():\n  exit()", "line 2: SystemExit: None; fix the file"),
        ("def get_config():\n  int('x')", "line 2: ValueError: invalid literal"),
        ("raise BaseException('a\\nb')", "line 1: BaseException: a b; fix the file"),
        ("def get_config():\n  pass", "to return a ConfigDict, got NoneType"),
        ("def get_config():\n  return 3", "to return a ConfigDict, got int"),
        (
            "from ml_collections import ConfigDict\ndef get_config():\n"
            "  return ConfigDict({'name': 'x'})",
            "config: key batch is missing; set it",
        ),
    ],
)
def test_mistakes_in_a_config_file(capsys, tmp_path, text, expected):
    (tmp_path / "mine.py").write_text(text)
    assert expected in error(capsys, "params", f"--config={tmp_path / 'mine.py'}")


def test_a_config_file_is_known_by_its_name(capsys, tmp_path):
    (tmp_path / "mine").write_text("x = 1")
    text = error(capsys, "params", f"--config={tmp_path / 'mine'}")
    assert text.startswith("--config: expected a file name that ends in .py, got ")


@pytest.mark.parametrize("name", ["evaluate", "translate", "score", "average", "check"])
def test_a_folder_without_a_run(capsys, tmp_path, name):
    more = ["--source=a", "--target=b"] if name == "score" else []
    text = error(capsys, name, f"--workdir={tmp_path / 'none'}", *more)
    assert "/none: expected the folder of a training run, found no config.json" in text
    assert text.endswith("run transformer train first")


def test_processes_without_what_they_need(capsys, tmp_path, trained):
    call = ["train", BASE, f"--workdir={tmp_path}"]
    text = error(capsys, *call, "--num_processes=2")
    assert text.startswith("--num_processes: expected with --coordinator only; add")
    more = ["--coordinator=here:1", "--num_processes=2", "--process_id=2"]
    text = error(capsys, *call, *more)
    assert text.startswith("--process_id: expected a number below --num_processes")
    text = error(capsys, "translate", f"--workdir={trained}", "--coordinator=auto")
    assert "expected --input with it, a file that every process can read" in text


def test_a_damaged_config_json(capsys, trained):
    (trained / "config.json").write_text("{")
    assert "config.json: expected JSON" in error(
        capsys, "evaluate", f"--workdir={trained}"
    )
    (trained / "config.json").write_text("[]")
    assert "expected a JSON object, got a list" in error(
        capsys, "evaluate", f"--workdir={trained}"
    )
    (trained / "config.json").write_text("{}")
    assert "key device is missing" in error(capsys, "evaluate", f"--workdir={trained}")


def test_texts_are_utf8(capsys):
    text = error(capsys, "evaluate", "--workdir=a\udce4")
    assert text == "--workdir: expected text in UTF-8, got 'a\\udce4'; change it"
    text = error(capsys, "train", BASE, "--workdir=x", "--config.data.dir=\udce4")
    assert "data.dir: expected text in UTF-8, got" in text


def test_a_name_that_is_too_long(capsys):
    text = error(capsys, "evaluate", f"--workdir={'a' * 300}")
    assert "File name too long" in text and text.endswith("; choose a shorter one")


def test_a_workdir_that_cannot_be_written(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    for place in ("file", "file/below"):
        text = error(capsys, "train", BASE, f"--workdir={tmp_path / place}")
        assert text.startswith("--workdir: expected a writable folder, got ")


def test_an_accelerator_that_is_absent(capsys, monkeypatch, tmp_path):
    def absent(device):
        raise UserError(f"device: expected a {device}")

    monkeypatch.setattr(parallel, "start", absent)
    call = ["train", BASE, "--config.device=tpu", f"--workdir={tmp_path}"]
    assert error(capsys, *call) == "device: expected a tpu"


def test_errors_of_a_programme(capsys, monkeypatch, tmp_path):
    raised: list[BaseException] = []

    def train(settings, workdir, init_from):
        raise raised[-1]

    programme(monkeypatch, "train", train=train)
    call = ["train", BASE, f"--workdir={tmp_path}"]

    def outcome(error):
        raised.append(error)
        code = cli.main(call)
        return code, capsys.readouterr().err.removeprefix("devices: any\n")

    prefix = "transformer: error: "
    assert outcome(UserError("two\nlines")) == (2, f"{prefix}two lines\n")
    assert outcome(KeyboardInterrupt()) == (130, f"{prefix}interrupted\n")
    assert outcome(BrokenPipeError()) == (141, "")
    code, text = outcome(OSError(36, "File name too long", "runs/x"))
    assert (code, text) == (
        2,
        f"{prefix}[Errno 36] File name too long: 'runs/x'; choose a shorter one\n",
    )
    code, text = outcome(OSError(28, "No space left on device", "runs/x"))
    assert code == 2 and "No space left on device: 'runs/x'; make room" in text
    for unexpected in (ValueError("bug"), FileNotFoundError(2, "bug"), KeyError("bug")):
        with pytest.raises(type(unexpected)):
            outcome(unexpected)


SIGNALS = pytest.mark.parametrize(
    "name, code, word", [("SIGINT", 130, "interrupted"), ("SIGTERM", 143, "terminated")]
)


def ended(program: str, name: str) -> subprocess.CompletedProcess[str]:
    """Run a program that a signal of this name ends."""
    return subprocess.run(
        [sys.executable, "-c", program, name],
        capture_output=True,
        text=True,
        timeout=200,
    )


_A_PROGRAM_GOES_ON = """
import os, signal, threading
import jax
from jax import lax
from transformer.cli import main

def interrupted(arguments):
    forever = jax.jit(lambda n: lax.while_loop(lambda i: i >= 0, lambda i: i ^ 1, n))
    threading.Thread(target=forever, args=(1,)).start()
    os.kill(os.getpid(), signal.Signals[arguments[0]])

main._dispatch = interrupted
main.run()
"""


@SIGNALS
def test_an_interrupted_command_waits_for_no_device(name, code, word):
    done = ended(_A_PROGRAM_GOES_ON, name)
    assert (done.returncode, done.stderr) == (code, f"transformer: error: {word}\n")


_A_SEARCH_GOES_ON = """
import os, signal, threading
import jax
from jax import lax
from transformer.cli import main
from transformer.run import signals

def searching(arguments):
    forever = jax.jit(lambda n: lax.while_loop(lambda i: i >= 0, lambda i: i ^ 1, n))
    forever.lower(1).compile()
    with signals.handled([signal.SIGTERM], lambda *_: print("saved", flush=True)):
        os.kill(os.getpid(), signal.SIGTERM)  # which this handles, however long
    ask = os.kill, (os.getpid(), signal.Signals[arguments[0]])
    threading.Timer(1.0, *ask).start()
    forever(1).block_until_ready()

main._PATIENCE, main._dispatch = 0.5, searching
main.run()
"""


@SIGNALS
def test_a_search_that_does_not_end_is_ended_by_a_signal(name, code, word):
    done = ended(_A_SEARCH_GOES_ON, name)
    assert (done.returncode, done.stdout) == (code, "saved\n")
    assert done.stderr == f"transformer: error: {word}\n"


# ---- what reaches the programmes -----------------------------------------------------


def keeps(calls):
    """Return a programme that only keeps what it was asked."""

    def train(settings, workdir, init_from):
        calls.append((settings, workdir, init_from))
        return workdir / "results.json"

    return train


def test_train_is_given_the_resolved_config(monkeypatch, tmp_path, capsys, started):
    calls: list = []
    programme(monkeypatch, "train", train=keeps(calls))
    workdir = tmp_path / "runs" / "one"
    overrides = ["--config.model.heads=4", "--config.decode.alpha", "1"]
    bias = "--noconfig.model.attention_bias"
    call = ["train", f"{BASE}:as_run", *overrides, bias, f"--workdir={workdir}"]
    assert cli.main([*call, "--init_from=runs/other:3"]) == 0
    ((settings, folder, init_from),) = calls
    assert init_from == "runs/other:3"
    assert folder == workdir and workdir.is_dir() and not list(workdir.iterdir())
    assert settings.name == "base_as_run" and settings.model.heads == 4
    assert settings.decode.alpha == 1.0 and settings.model.attention_bias is False
    assert started == ["any"]
    assert capsys.readouterr().err == "devices: any\n"


def test_one_call_leaves_nothing_for_the_next(monkeypatch, tmp_path):
    calls: list = []
    programme(monkeypatch, "train", train=keeps(calls))
    call = ["train", BASE, f"--workdir={tmp_path}"]
    assert cli.main([*call, "--config.seed=7"]) == cli.main(call) == 0
    assert [settings.seed for settings, *_ in calls] == [7, 0]


def test_a_config_file_may_import_the_one_beside_it(monkeypatch, tmp_path):
    (tmp_path / "a_parent.py").write_text((EXPERIMENTS / "base.py").read_text())
    (tmp_path / "child.py").write_text(
        "import a_parent\n"
        "def get_config():\n"
        "  config = a_parent.get_config()\n"
        "  config.name = 'child'\n"
        "  return config\n"
    )
    calls: list = []
    programme(monkeypatch, "train", train=keeps(calls))
    path = list(sys.path)
    call = [f"--config={tmp_path / 'child.py'}", f"--workdir={tmp_path}"]
    assert cli.main(["train", *call]) == 0
    assert calls[0][0].name == "child" and sys.path == path
    assert "a_parent" not in sys.modules


def test_what_else_is_called_so_is_not_imported(monkeypatch, tmp_path):
    """Neither a file on the path, as in the folder of ``python -m``, nor a module."""
    parent = (EXPERIMENTS / "base.py").read_text()
    for place in ("beside", "elsewhere"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "a_parent.py").write_text(f"{parent}\nWHERE = '{place}'\n")
    # Python's own are not replaced.
    (tmp_path / "beside" / "statistics.py").write_text("raise ImportError\n")
    (tmp_path / "beside" / "child.py").write_text(
        "import a_parent, statistics\n"
        "def get_config():\n"
        "  import a_parent as again\n"
        "  config = again.get_config()\n"
        "  config.name = a_parent.WHERE + again.WHERE\n"
        "  return config\n"
    )
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    monkeypatch.delitem(sys.modules, "statistics", raising=False)
    calls: list = []
    programme(monkeypatch, "train", train=keeps(calls))
    call = [f"--config={tmp_path / 'beside' / 'child.py'}", f"--workdir={tmp_path}"]
    assert cli.main(["train", *call]) == 0
    imported = importlib.import_module("a_parent")
    assert imported.WHERE == "elsewhere"
    assert cli.main(["train", *call]) == 0
    assert sys.modules.pop("a_parent") is imported
    assert [settings.name for settings, *_ in calls] == ["besidebeside"] * 2


def test_what_evaluate_average_score_and_check_are_asked(monkeypatch, trained, capsys):
    asked: list = []

    def record(result):
        def function(*arguments, **options):
            asked.append((arguments, options))
            return result

        return function

    programme(monkeypatch, "evaluate", evaluate=record(None), average=record("mean"))
    programme(monkeypatch, "tools.check", check=record(1))
    programme(
        monkeypatch,
        "stream",
        score_stream=lambda workdir, left, right, output, step: asked.append(
            (list(left), list(right), step)
        ),
    )
    here = f"--workdir={trained}"
    assert cli.main(["evaluate", here, "--split=validation", "--average=3"]) == 0
    options = {"split": "validation", "step": None, "average": 3, "output": None}
    assert asked.pop() == ((trained,), options)
    texts = trained.parent / "texts"
    assert cli.main(["evaluate", here, f"--output={texts}"]) == 0
    assert asked.pop()[1]["output"] == texts and texts.is_dir()
    capsys.readouterr()
    for place in (trained / "config.json", trained / "checkpoints" / "x"):
        told = error(capsys, "evaluate", here, f"--output={place}")
        assert told.startswith("--output: expected a path that is not part of the run")
    (trained / "file").write_text("")
    told = error(capsys, "evaluate", here, f"--output={trained / 'file'}")
    assert told.startswith("--output: expected a writable folder")
    assert cli.main(["average", here, "--last=5"]) == 0
    assert asked.pop() == ((trained,), {"last": 5})
    assert capsys.readouterr().out == "mean\n"
    assert cli.main(["check", here]) == 1
    assert asked.pop() == ((), {"workdir": trained})
    assert cli.main(["check", BASE, "--config.seed=3"]) == 1
    (options,) = [options for _, options in asked]
    assert options["settings"].seed == 3 and asked.pop()
    (trained / "a").write_text("x\n\ny")
    files = [f"--source={trained / 'a'}", f"--target={trained / 'a'}"]
    assert cli.main(["score", here, *files, "--step=7"]) == 0
    assert asked == [(["x", "", "y"], ["x", "", "y"], 7)]


def test_translate_has_a_flag_for_each_field_of_a_search(monkeypatch, trained, capsys):
    names = [field.name for field in dataclasses.fields(Search)]
    assert set(names) <= set(cli.COMMANDS["translate"].optional)
    asked: list[dict] = []
    programme(
        monkeypatch, "stream", translate_stream=lambda *_, **how: asked.append(how)
    )
    (trained / "in").write_text("a\n")
    call = ["translate", f"--workdir={trained}", f"--input={trained / 'in'}"]
    assert cli.main(call) == 0
    assert {name: asked[-1][name] for name in names} == {
        **dict.fromkeys(("beam", "alpha", "length_penalty")),  # the configured
        **{"n_best": 1, "sample": False, "temperature": 1.0, "top_k": 0},
        **{"top_p": 1.0, "seed": 0, "constrained": None},
    }
    others = {"step", "scores", "alignments", "layer", "tags"}
    assert set(asked[-1]) - set(names) == others
    aligned = ["--beam=2", "--alpha=1", "--alignments", "--layer=3"]
    assert cli.main([*call, *aligned]) == 0
    assert (asked[-1]["beam"], asked[-1]["alpha"], asked[-1]["layer"]) == (2, 1.0, 3)
    assert cli.main([*call, "--sample", "--seed=4294967295", "--top_k=2"]) == 0
    assert (asked[-1]["sample"], asked[-1]["seed"]) == (True, 2**32 - 1)
    assert cli.main([*call, "--noconstrained"]) == 0
    assert asked[-1]["constrained"] is False
    capsys.readouterr()
    for seed in ("-1", "4294967296", "18446744073709551616"):
        text = error(capsys, *call, "--sample", f"--seed={seed}")
        assert "--seed: expected a whole number, 0 or more and less than 2^32" in text
    assert cli.main(["translate", "--help"]) == 0
    text = capsys.readouterr().out
    assert "--length_penalty=gnmt|power" in text
    assert "only the K most likely pieces, 0 = all (default: 0)" in text


def test_params_prints_the_table(capsys, started):
    model = ["--config.model.vocab_size=40960", "--config.device=tpu"]
    assert cli.main(["params", BASE, *model]) == 0
    # Table 3's base model: 65.11 M; and no device was looked for.
    total = capsys.readouterr().out.split()[-3:]
    assert total == ["total", "65,110,016", "260,440,064"] and not started


# ---- as a process --------------------------------------------------------------------


def run(*arguments, **options):
    command = [sys.executable, "-m", "transformer", *arguments]
    options.setdefault("cwd", ROOT)
    return subprocess.run(command, capture_output=True, text=True, **options)


def test_a_mistake_as_a_process_sees_it():
    result = run("train", "--workdri=x")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1 and "Traceback" not in result.stderr


def test_a_reader_that_goes_away_is_no_error():
    # A pipe nobody reads: the write fails only when the text is flushed.
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "transformer", "--help"]
    with os.fdopen(writer, "wb") as pipe:
        result = subprocess.run(
            command,
            stdout=pipe,
            stderr=subprocess.PIPE,
            cwd=ROOT,
        )
    assert result.returncode == 141 and result.stderr == b""


def test_a_log_of_any_script_goes_to_any_encoding():
    code = (
        "from transformer.cli.start import start_devices; start_devices('cpu'); "
        "print('\u03b8\u00e4', flush=True)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert result.stdout == b"\\u03b8\\xe4\n"


@pytest.mark.parametrize("closed, code", [(">&-", 2), ("2>&-", 0), (">/dev/full", 2)])
def test_a_stream_that_is_closed_or_full(closed, code):
    command = f"exec {sys.executable} -m transformer --help {closed}"
    result = subprocess.run(["sh", "-c", command], capture_output=True, cwd=ROOT)
    wanted = b"transformer: error: " if code else b""
    assert result.returncode == code and result.stderr.startswith(wanted)
    assert result.stderr.count(b"\n") == bool(code)
    assert (b"usage: transformer" in result.stdout) == (code == 0)


START = """
import sys, jax
from transformer.parallel import start
from transformer.config import UserError
try:
    print(start(sys.argv[1]))
    print(jax.numpy.ones(3).devices(), jax.config.jax_compilation_cache_dir)
except UserError as error:
    print("UserError:", error)
"""


def start_process(device, code=START, **environment):
    names = ("XDG_CACHE_HOME", "JAX_COMPILATION_CACHE_DIR", "JAX_PLATFORMS")
    kept = {k: v for k, v in os.environ.items() if k not in names}
    result = subprocess.run(
        [sys.executable, "-c", code, device],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=kept | environment,
    )
    return result.stdout.splitlines()


def test_the_first_line_says_which_devices_and_programs_are_kept(tmp_path):
    line, used = start_process("cpu", XDG_CACHE_HOME=str(tmp_path))
    mine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    cores = f"cores-{mine or os.cpu_count()}"
    folder = tmp_path / "transformer-reference" / "xla" / cores
    kind = r"(, without bfloat16 units: operands stay float32)?"
    assert re.match(rf"devices: 1 x cpu \(cpu\){kind}; jax ", line)
    assert str(folder) in line
    assert used == f"{{CpuDevice(id=0)}} {folder}"
    # JAX asks once where its programs are, when it compiles the first.
    assert any(folder.iterdir())
    _, used = start_process("cpu", JAX_COMPILATION_CACHE_DIR=str(tmp_path / "other"))
    assert used.endswith(str(tmp_path / "other" / cores))


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux pins cores")
def test_programs_of_one_core_are_kept_apart(tmp_path):
    """XLA divides their loops among fewer threads, and JAX's key does not say so."""
    pin = "import os\nos.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
    line, used = start_process("cpu", pin + START, XDG_CACHE_HOME=str(tmp_path))
    folder = tmp_path / "transformer-reference" / "xla" / "cores-1"
    assert str(folder) in line and used.endswith(str(folder))


def test_asking_for_an_accelerator_that_is_not_there_stops(tmp_path):
    cpu = {"XDG_CACHE_HOME": str(tmp_path), "JAX_PLATFORMS": "cpu"}
    (line,) = start_process("tpu", **cpu)
    assert line.startswith("UserError: device: expected a tpu, this machine offers 1 x")
    (line,) = start_process("any", **(cpu | {"JAX_PLATFORMS": "nonsense"}))
    assert line.startswith("UserError: expected devices that jax can use, got: ")
