"""The side-by-side harness: fair turns, honest tables, and the same model everywhere.

The peers may have a Python of their own: PEERS_PYTHON names it. Where they are absent,
the tests that need them are skipped.
"""

import dataclasses
import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from support import torch_cases as cases
from support.configs import base
from support.paths import BENCH

from transformer import ids, models
from transformer.config import UserError
from transformer.data import tokenizers
from transformer.translate import Translator

sys.path.append(str(BENCH))

import arena
import export
import ours_composed
import report
import side_by_side
import sizes
import weights
import worker

PEERS_PYTHON = os.environ.get("PEERS_PYTHON", sys.executable)

# Says how it was started and told, and how long each turn took it; dies without a next.
STUB = """
import json, sys
name, log, *seconds = sys.argv[1:]
def write(text):
    with open(log, "a") as file:
        print(name, text, file=file)
write("starts")
print("a library says hello")
print("READY", json.dumps({"versions": {name: "1.0"}}), flush=True)
for line, each in zip(sys.stdin, seconds):
    times = int(line.split()[1])
    write(times)
    print("DONE", json.dumps({"seconds": times * float(each)}), flush=True)
sys.exit("first line\\nno seconds left")
"""


class Arena:
    """Stub workers with given seconds, and what they and the arena say."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.workers: list[arena.Worker] = []
        self.said: list[str] = []
        (folder / "stub.py").write_text(STUB)

    def add(self, name: str, *seconds: float) -> arena.Worker:
        log = self.folder / "log"
        return self.add_command(name, "stub.py", name, str(log), *map(str, seconds))

    def add_command(self, name: str, program: str, *arguments: str) -> arena.Worker:
        command = [sys.executable, str(self.folder / program), *arguments]
        one = arena.Worker(name, command, {})
        self.workers.append(one)
        return one

    def run(self, rounds: int) -> list[str]:
        arena.take_turns(self.workers, rounds, self.said.append, turn=0.5, rest=0.0)
        log = self.folder / "log"
        return log.read_text().splitlines() if log.exists() else []


@pytest.fixture
def stubs(tmp_path):
    made = Arena(tmp_path)
    yield made
    for one in made.workers:
        one.close()


# ---- turns ---------------------------------------------------------------------------


def test_turns_alternate_and_short_work_is_repeated(stubs):
    a = stubs.add("a", 0.1, 1.0, 2.0, 3.0)
    b = stubs.add("b", 0.3, 4.0, 5.0, 6.0)
    assert stubs.run(rounds=3) == [
        *("a starts", "a 1", "b starts", "b 1"),  # no start disturbs another
        *("a 5", "b 2"),  # as often as half a second takes
        *("b 2", "a 5"),
        *("a 5", "b 2"),
    ]
    # Of one piece of work; the first turn does not count.
    assert a.seconds == pytest.approx([1.0, 2.0, 3.0])
    assert b.seconds == pytest.approx([4.0, 5.0, 6.0])
    assert a.info == {"versions": {"a": "1.0"}} and a.trouble == a.missing == ""


def test_a_worker_that_dies_is_out_and_its_last_lines_are_told(stubs):
    a, b = stubs.add("a", 1.0, 1.0, 1.0, 1.0), stubs.add("b", 1.0, 1.0)
    assert stubs.run(rounds=3)[-3:] == ["b 1", "a 1", "a 1"]
    assert len(a.seconds) == 3 and not a.trouble
    assert b.trouble == "ended with exit code 1\nfirst line\nno seconds left"
    assert f"b: {b.trouble}" in stubs.said and b.missing == ""


def test_a_worker_that_never_gets_ready_leaves_the_others_alone(stubs, tmp_path):
    (tmp_path / "broken.py").write_text("raise ValueError('of this')")
    broken, a = stubs.add_command("broken", "broken.py"), stubs.add("a", 1.0, 2.0)
    stubs.run(rounds=1)
    assert broken.trouble.splitlines()[-1] == "ValueError: of this"
    assert broken.missing == "" and a.seconds == [2.0]


def test_on_an_accelerator_one_is_closed_before_the_next_starts(stubs, monkeypatch):
    workers = stubs.add("a", 0.25, 1.0, 2.0), stubs.add("b", 0.1, 4.0)
    events = []
    for name in ("start", "close"):
        do = getattr(arena.Worker, name)

        def also(one, name=name, do=do):
            events.append(f"{name} {one.name}")
            do(one)

        monkeypatch.setattr(arena.Worker, name, also)
    arena.one_by_one(workers, 2, stubs.said.append, turn=0.5, rest=0.0)
    turns = (stubs.folder / "log").read_text().splitlines()
    assert turns == ["a starts", "a 1", "a 2", "a 2", "b starts", "b 1", "b 5"]
    assert workers[0].seconds == [1.0, 2.0]
    assert workers[1].trouble.startswith("ended")
    assert events == ["start a", "close a", "start b", "close b"]


def test_a_module_that_is_missing_is_named(stubs, tmp_path):
    (tmp_path / "lacking.py").write_text("import json\nimport no_such_peer")
    lacking = stubs.add_command("lacking", "lacking.py")
    stubs.run(rounds=1)
    assert lacking.missing == "no_such_peer"
    assert stubs.said[0] == "lacking: not installed: no module no_such_peer"


def test_a_program_of_works_serves_the_one_it_is_asked_for(stubs, tmp_path):
    (tmp_path / "program.py").write_text(
        f"import sys\nsys.path.append({str(BENCH)!r})\n"
        "import worker\n\n\n"
        "def rest(hours: float) -> worker.Work:\n"
        "    raise ValueError\n\n\n"
        "def count(name: str, start: int) -> worker.Work:\n"
        "    at = start\n\n"
        "    def step():\n"
        "        nonlocal at\n"
        "        at += 1\n"
        "        print('DONE', at)  # a library's noise: no part of the protocol\n"
        "        with open(name, 'w') as file:\n"
        "            file.write(str(at))\n\n"
        "    def wait():\n"
        "        with open(name, 'a') as file:\n"
        "            file.write(' waited')\n\n"
        "    return worker.Work(step, {'from': start}, wait)\n\n\n"
        "worker.run(rest, count)\n"
    )
    number = tmp_path / "number"
    arguments = ("count", f"--name={number}", "--start=40")
    one = stubs.add_command("program", "program.py", *arguments)
    one.start()
    assert one.info["from"] == 40 and one.info["first_seconds"] > 0
    assert number.read_text() == "42 waited"  # warmed up twice
    seconds = one.work(3)
    assert seconds is not None and seconds > 0
    assert number.read_text() == "45 waited"  # once, after the last


# ---- numbers and the table -----------------------------------------------------------


def test_a_ratio_is_of_medians_and_its_spread_of_rounds():
    # Round by round 3, 1 and 2 times as fast; medians 2 and 3.
    assert arena.ratio([1.0, 2.0, 4.0], [3.0, 2.0, 8.0]) == arena.Ratio(1.5, 1.0, 3.0)


def measured(name: str, *seconds: float, **info: Any) -> arena.Worker:
    one = arena.Worker(name, [], {})
    one.seconds, one.info = list(seconds), info
    return one


def by_name(*workers: arena.Worker) -> dict[str, arena.Worker]:
    return {one.name: one for one in workers}


def test_a_line_has_each_peer_of_its_own_form_or_what_kept_it_away():
    absent, dead = measured("CTranslate2 float32"), measured("CTranslate2 int8")
    absent.trouble = absent.missing = "ctranslate2"
    dead.trouble = "ended with exit code 1"
    workers = by_name(
        measured("ours bfloat16", 1.0, 1.0, 2.0),
        measured("ours float32", 2.0, 2.0, 2.0),
        measured("transformers bfloat16", 2.0, 3.0, 4.0),
        measured("transformers float32", 1.0, 1.0, 1.0),
        absent,
        dead,
    )
    rest = ["not installed", "failed"]
    row = functools.partial(report.ratio_row, "search", workers=workers)
    assert row("bfloat16") == [
        *("search", "bfloat16", "", "3.00 (2.00 to 3.00)"),
        *rest,
    ]
    assert row("float32")[3] == "0.50 (0.50 to 0.50)"
    workers["ours float32"].trouble = "ended with exit code 1"
    assert row("float32") == ["search", "float32, failed"]
    about = report.caption(3, list(workers.values()))
    assert "Not installed: CTranslate2 (no module ctranslate2)." in about
    assert "3 rounds" in about


def test_translations_are_compared_beside_the_speed():
    ours = measured("ours float32", 1.0, outputs=[[4, 5], [6], [7], []])
    peer = measured("CTranslate2 int8", 2.0, outputs=[[4, 5], [6], [8], []])
    row = report.ratio_row("text", "float32", by_name(ours, peer))
    assert row[-1] == "2.00 (2.00 to 2.00), 75.0 % the same"


def test_the_table_is_markdown():
    facts = {
        f"start to first step, s ({which})": value
        for which, value in (("median", 2.345), ("least", 2.0), ("most", 3.0))
    }
    rows = [["training", "bfloat16", "2.00", "", "", ""], report.start_row("go", facts)]
    assert report.table(rows, "cpu").splitlines() == [
        "| work | ours | PyTorch | transformers | CTranslate2 float32 "
        "| CTranslate2 int8 |",
        "|---|---|---|---|---|---|",
        "| training | bfloat16 | 2.00 | | | |",
        "| go | 2.35 s (2.00 to 3.00) | | | | |",
    ]


def test_differences_of_scores_are_those_of_float32_a_token():
    task = weights.Task([[3]] * 2, [[0, 1]], 9, 0.0, [[7, 3], [8, 8, 8, 3]], [-1.0, -8])
    workers = by_name(
        measured("transformers bfloat16", scores=[5.0, 5.0]),
        measured("transformers float32", scores=[-1.5, -9.2]),
        measured("CTranslate2 float32", scores=[-1.0, -7.9]),
    )
    first, second = report.score_notes(task, workers)
    assert first.startswith("transformers ") and "at most 3.0e-01 per token" in first
    assert second.startswith("CTranslate2 ") and "at most 2.5e-02 per token" in second


def test_a_loss_that_differs_is_told():
    workers = by_name(
        measured("ours float32", 1.0, loss=8.5),
        measured("PyTorch float32", 1.0, loss=8.25),
        measured("transformers float32", 1.0),
    )
    (note,) = report.loss_notes("training, cgru", workers)
    assert note.startswith("PyTorch ") and "training, cgru" in note
    assert note.endswith("is 8.250000, and ours differs by 2.5e-01.")
    del workers["PyTorch float32"]
    assert report.loss_notes("training, cgru", workers) == []


# ---- the command ---------------------------------------------------------------------


def test_every_worker_of_every_group_has_a_program_that_takes_its_flags(tmp_path):
    texts = []
    for kind in ("transformer", "rnn"):
        settings = {"name": "run", "model": {"kind": kind}}
        (tmp_path / "config.json").write_text(json.dumps(settings))
        texts.append(side_by_side.translating(tmp_path, Path("a"), Path("b"), beam=5))
        assert texts[-1].title == "`translate`, run, beam 5"
    # Nobody else has our recurrent models.
    assert [*texts[1].tasks] == ["ours float32", "PyTorch float32"]
    groups = side_by_side.GROUPS | side_by_side.GPU_GROUPS
    for group in (*groups.values(), *texts):
        assert {f"ours {dtype}" for dtype in group.dtypes} <= set(group.tasks)
        for name, (program, work, *flags) in group.tasks.items():
            source = (BENCH / program).read_text()
            signature = re.search(rf"^def {work}\((.*?)\)", source, re.M | re.S)
            assert signature, f"{name}: {program} has no {work}"
            wanted = re.findall(r"(\w+): ", signature[1])
            given = [flag.removeprefix("--").split("=")[0] for flag in flags]
            assert sorted(wanted) == sorted(given)
            assert name.endswith(" " + flags[0].removeprefix("--dtype="))


def test_a_table_is_printed_and_every_number_kept(monkeypatch, tmp_path, capsys):
    def measure(group, rounds, python, turns):
        assert (rounds, python, turns) == (2, sys.executable, arena.take_turns)
        times = {"ours": 1.0, "PyTorch": 2.0, "transformers": 4.0}
        workers = by_name(
            *(measured(name, *[times[name.split()[0]]] * 2) for name in group.tasks)
        )
        workers["PyTorch bfloat16"].info = {"versions": {"torch": "9.9"}, "scores": [1]}
        return workers

    monkeypatch.setattr(side_by_side, "measure", measure)
    path = tmp_path / "numbers.json"
    arguments = ["--table", "train-small", "--rounds=2", f"--output={path}"]
    assert side_by_side.main(arguments) == 0
    printed = capsys.readouterr().out
    line = "| training, small | bfloat16 | 2.00 (2.00 to 2.00) | 4.00 (4.00 to 4.00) |"
    assert line in printed and "torch 9.9" in printed
    kept = json.loads(path.read_text())["groups"]["train-small"]["PyTorch bfloat16"]
    assert kept == {"seconds": [2.0, 2.0], "trouble": "", "versions": {"torch": "9.9"}}


def test_one_dtype_leaves_out_lines_and_workers_of_the_other():
    search = side_by_side.GROUPS["greedy-base"]
    kept = side_by_side.lines_of(search, ["float32"])
    assert kept.dtypes == ("float32",)
    names = ["ours float32", "transformers float32"]
    assert sorted(kept.tasks) == ["CTranslate2 float32", "CTranslate2 int8", *names]
    assert side_by_side.lines_of(search, ["bfloat16", "float32"]) == search
    assert side_by_side.lines_of(search, ["bfloat16"]).tasks.keys() == {
        *("CTranslate2 float32", "CTranslate2 int8"),
        *("ours bfloat16", "transformers bfloat16"),
    }


@pytest.mark.parametrize("missing, code", [("torch", 0), ("", 1)])
def test_only_what_is_installed_can_fail(monkeypatch, capsys, missing, code):
    def measure(group, rounds, python, turns):
        workers = by_name(*(measured(name, 1.0) for name in group.tasks))
        workers["PyTorch bfloat16"].trouble = "ended"
        workers["PyTorch bfloat16"].missing = missing
        return workers

    monkeypatch.setattr(side_by_side, "measure", measure)
    assert side_by_side.main(["--table", "train-small"]) == code
    wanted = "not installed" if missing else "failed"
    assert f"| bfloat16 | {wanted} |" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments, wanted",
    [
        (["--table", "text-beam"], "expected --workdir and --input"),
        (["--table", "train-256"], "expected train-base, .* got train-256"),
        (["--device=gpu", "--table", "greedy-base"], "expected train-32, .* got gree"),
        (["--rounds=0"], "expected 1 or more, got 0"),
        (
            ["--table", "train-cgru", "--dtypes", "bfloat16"],
            "expected float32 for train-cgru, got bfloat16; change it, or leave",
        ),
        (["--peers_python=/no/python"], "expected a Python, got /no/python"),
    ],
)
def test_a_mistake_is_said_before_anything_is_measured(capsys, arguments, wanted):
    with pytest.raises(SystemExit) as stopped:
        side_by_side.main(arguments)
    assert stopped.value.code == 2
    assert re.search(wanted, " ".join(capsys.readouterr().err.split()))


# ---- what is measured ----------------------------------------------------------------


def test_everyone_has_the_ids_of_this_project():
    ours = (ids.PAD, ids.UNK, ids.BOS, ids.EOS)
    assert (sizes.PAD, sizes.UNK, sizes.BOS, sizes.EOS) == ours


def test_sentences_are_ragged_and_frequent_words_are_frequent():
    source, target = sizes.training_batch(1000)
    assert source.shape == target.shape == (64, 32) and (source != target).any()
    lengths = (source != sizes.PAD).sum(1)
    assert (lengths.min(), lengths.max()) == (27, 32)  # .85 of 32 at least
    assert (source[np.arange(64), lengths - 1] == sizes.EOS).all()
    assert (source == sizes.EOS).sum() == 64 and source.max() < 1000
    ids = sizes.sentences(1000, 500, 100)
    assert (ids[:, :-1] != sizes.PAD).all()
    first, tenth = ((ids == sizes.EOS + n).mean() for n in (1, 10))
    assert first / tenth == pytest.approx(10, rel=0.15)


def test_captions_end_and_each_is_in_one_batch():
    sources = sizes.captions(1000, 300)
    lengths = [len(ids) for ids in sources]
    assert (min(lengths), max(lengths)) == (6, 35)  # EOS included
    assert 13 < np.mean(lengths) < 16 and lengths[0] != 35
    assert all(ids.index(sizes.EOS) == len(ids) - 1 for ids in sources)
    assert sizes.PAD not in np.concatenate(sources)
    groups = sizes.in_groups(lengths)
    assert sorted(row for rows in groups for row in rows) == [*range(300)]
    padded = [len(rows) * max(lengths[row] for row in rows) for rows in groups]
    assert max(padded) <= sizes.SLOTS < padded[0] + padded[1]


SETTINGS = base(
    **{
        "data.max_length": 24,
        "tokenizer.kind": "bytes",
        "tokenizer.vocab_size": 0,
        "model.layers": 2,
        "model.d_model": 32,
        "model.d_ff": 48,
        "model.heads": 4,
        "model.d_k": 8,
        "model.d_v": 8,
        "model.norm_epsilon": 0.1,  # so large that one left at its default would show
        "model.dtype": "float32",
        "decode.extra_tokens": 5,
        "decode.tokens": 32,
    }
)
LINES = ["a small dog", "hello again", "two letters", "number five"]  # of one length


@pytest.fixture(scope="module")
def translator() -> Translator:
    vocabulary = tokenizers.Vocabulary(tokenizers.Bytes(), tokenizers.Bytes())
    model = models.make(SETTINGS, vocabulary.source.size, vocabulary.target.size)

    def unequal(path: Any, leaf: jax.Array) -> jax.Array:
        """Make no scale 1, no bias 0 and no two alike: each has its own effect."""
        draw = np.random.default_rng(list(jax.tree_util.keystr(path).encode()))
        return leaf + draw.normal(0, 0.3, leaf.shape).astype(np.float32)

    params = jax.jit(functools.partial(models.init, model))(jax.random.key(3))
    params = jax.tree_util.tree_map_with_path(unequal, params)
    return Translator(SETTINGS, vocabulary, params)


def recurrent(size: sizes.Recurrent) -> Translator:
    """Return a translator of bytes by a recurrent model with the parameters drawn."""
    vocabulary = tokenizers.Vocabulary(tokenizers.Bytes(), tokenizers.Bytes())
    settings = ours_composed.set_up(size, "float32")
    decoding = dataclasses.replace(settings.decode, extra_tokens=5, tokens=64)
    settings = dataclasses.replace(settings, decode=decoding)
    params = ours_composed.tree(weights.draw_composed(size).arrays)
    return Translator(settings, vocabulary, params)


BYTES = tokenizers.Bytes().size
RECURRENT = {
    name: sizes.Recurrent(*chosen[:5], BYTES, BYTES, *chosen[7:])
    for name, chosen in cases.MODELS.items()
}


def changed(translator: Translator, **model: Any) -> Translator:
    settings = translator.settings
    settings = dataclasses.replace(
        settings, model=dataclasses.replace(settings.model, **model)
    )
    return Translator(settings, translator.vocabulary, translator.params)


@pytest.fixture(scope="module")
def exported(translator, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    task = export.make_task(translator, LINES)
    given = export.take_weights(translator, export.longest(task))
    weights.save(folder, given, task)
    return folder


def test_parameters_keep_names_and_shapes_on_their_way(translator, exported):
    given, task = weights.load(exported)
    assert {name: array.shape for name, array in given.arrays.items()} == (
        weights.shapes(given.size)
    )
    assert given.size == sizes.Size(2, 32, 48, 4, 260) and given.epsilon == 0.1
    for path, leaf in jax.tree_util.tree_leaves_with_path(translator.params):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        np.testing.assert_array_equal(given.arrays[name], leaf)
    # PE(1, 0) = sin 1, PE(1, 1) = cos 1: pairs stand side by side.
    assert given.positions.shape == (export.longest(task), 32)
    np.testing.assert_allclose(given.positions[1, :2], [np.sin(1), np.cos(1)], 1e-6)


@pytest.mark.parametrize("size", sizes.SIZES.values(), ids=sizes.SIZES)
def test_a_drawn_model_has_the_parameters_of_ours(size):
    values = base(
        **{f"model.{k}": getattr(size, k) for k in ("layers", "d_model", "heads")},
        **{"model.d_ff": size.d_ff},
        **dict.fromkeys(("model.d_k", "model.d_v"), size.d_model // size.heads),
    )
    tree = models.abstract(models.make(values, size.vocabulary, size.vocabulary))
    assert weights.shapes(size) == {
        jax.tree_util.keystr(path, simple=True, separator="."): leaf.shape
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


@pytest.mark.parametrize(
    "size",
    [*sizes.COMPOSED.values(), sizes.RECURRENT["cgru"]._replace(normed=True)],
    ids=[*sizes.COMPOSED, "cgru normed"],
)
def test_a_drawn_composed_model_has_the_parameters_of_ours(size):
    settings = ours_composed.set_up(size, "float32")
    tree = models.abstract(models.make(settings, size.source, size.target))
    assert weights.composed_shapes(size) == {
        jax.tree_util.keystr(path, simple=True, separator="."): leaf.shape
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_parameters_keep_names_and_sizes_on_their_way(name, tmp_path):
    size, task = RECURRENT[name], weights.Task([[3]], [[0]], 9, 0.6, [[3]], [-1.0])
    weights.save(tmp_path, export.take_recurrent(recurrent(size)), task)
    given, same = weights.load_recurrent(tmp_path)
    assert same == weights.load_task(tmp_path) == task
    assert given.size == size
    drawn = weights.draw_composed(size).arrays
    assert given.arrays.keys() == drawn.keys()
    for key, array in drawn.items():
        np.testing.assert_array_equal(given.arrays[key], array)


@pytest.mark.parametrize(
    "name, change, key",
    [
        ("cgru", {"member": "rnnsearch"}, "member"),
        ("cgru", {"reverse_source": True}, "reverse_source"),
        ("luong", {"score": "dot"}, "score"),
        ("luong", {"attention": "local_p"}, "attention"),
    ],
)
def test_a_recurrent_model_that_torch_has_not_is_refused(name, change, key):
    translator = recurrent(RECURRENT[name])
    model = dataclasses.replace(translator.settings.model, **change)
    translator.settings = dataclasses.replace(translator.settings, model=model)
    with pytest.raises(UserError, match=f"model.{key}: expected .*, got "):
        export.take_recurrent(translator)


def test_a_task_has_every_sentence_in_one_batch(translator):
    lines = ["a", "bcd", "e" * 20, "fg"]
    task = export.make_task(translator, lines)
    assert [bytes(i - 4 for i in ids[:-1]).decode() for ids in task.sources] == lines
    assert sorted(row for rows in task.groups for row in rows) == [0, 1, 2, 3]
    assert task.groups == [[0, 3], [1], [2]]  # 32 slots: two of up to 16 tokens
    assert task.limit == 20 + 5
    assert {ids[-1] for ids in task.sources + task.targets} == {sizes.EOS}


@pytest.mark.parametrize(
    "change", [{"norm": "pre"}, {"d_k": 4}, {"positions": "rotary"}, {"window": 3}]
)
def test_a_model_that_nobody_else_has_is_refused(translator, change):
    (name,) = change
    with pytest.raises(UserError, match=f"model.{name}.*expected .*, got "):
        export.take_weights(changed(translator, **change), 30)


def test_a_line_without_text_is_refused(tmp_path):
    path = tmp_path / "text"
    path.write_text("one\n \nthree\n")
    with pytest.raises(UserError, match="line 2: expected a sentence"):
        export.read_sentences(path)


def translating(program: str, module: str, exported: Path, beam: int) -> arena.Worker:
    """Return what a peer says of its translations of an export; skip without it."""
    options = [f"--folder={exported}", f"--beam={beam}"]
    return started(program, module, "translate", *options)


def started(program: str, module: str, work: str, *options: str) -> arena.Worker:
    """Return a peer that has started some work in float32; skip without it."""
    look = f"import importlib.util as u; print(u.find_spec({module!r}) is not None)"
    found = subprocess.run(
        [PEERS_PYTHON, "-c", look], capture_output=True, text=True, check=True
    )
    if found.stdout.strip() != "True":
        pytest.skip(f"no {module} in {PEERS_PYTHON}; PEERS_PYTHON names another")
    command = [PEERS_PYTHON, str(BENCH / f"{program}.py"), work, "--dtype=float32"]
    peer = arena.Worker(module, [*command, *options], {})
    try:
        peer.start()
    finally:
        peer.close()
    assert not peer.trouble
    return peer


@pytest.mark.parametrize(
    "program, module",
    [("peer_transformers", "transformers"), ("peer_ctranslate2", "ctranslate2")],
)
def test_a_peer_with_the_same_parameters_is_the_same_model(
    translator, exported, program, module
):
    peer = translating(program, module, exported, beam=1)
    _, task = weights.load(exported)
    lengths = np.array([len(ids) for ids in task.targets])
    # A log-probability is a sum of logits around 10, some 100 roundings deep.
    allowed = 100 * np.finfo(np.float32).eps * 10
    errors = np.abs(np.subtract(peer.info["scores"], task.scores)) / lengths
    assert errors.max() < allowed
    ours = [found[0].ids for found in translator.hypotheses(LINES, beam=1)]
    assert peer.info["outputs"] == ours


@pytest.mark.parametrize("name", RECURRENT)
def test_torch_translates_an_exported_run_as_ours_does(name, tmp_path):
    translator = recurrent(RECURRENT[name])
    task = export.make_task(translator, LINES)
    weights.save(tmp_path, export.take_recurrent(translator), task)
    peer = translating("peer_torch_composed", "torch", tmp_path, beam=3)
    found = translator.hypotheses(LINES, beam=3, length_penalty="power")
    assert peer.info["outputs"] == [best[0].ids for best in found]


@pytest.mark.parametrize("size", sizes.COMPOSED)
def test_what_torch_trains_has_the_loss_of_ours(size):
    peer = started("peer_torch_composed", "torch", "train", f"--size={size}")
    loss = ours_composed.train(size, "float32").info["loss"]
    # The mean of some 500 log-probabilities of up to 10, each some 300 roundings deep.
    tolerance = 300 * float(np.finfo(np.float32).eps) * 10
    np.testing.assert_allclose(peer.info["loss"], loss, atol=tolerance, rtol=0)


def test_a_worker_s_versions_are_those_installed():
    assert worker.versions("jax") == {"jax": jax.__version__}
