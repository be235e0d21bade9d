"""What cannot fit into memory is refused before it is tried, with what fits."""

import re
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from support.cases import leave
from support.configs import base
from support.paths import TESTS
from support.runs import command, compilations, tiny, tiny_run
from support.translators import SETTINGS, draw_params

from transformer import fitting, models, parallel
from transformer.batch_search import search
from transformer.cli import main as cli
from transformer.config import Config, UserError
from transformer.data.tokenizers import Vocabulary
from transformer.data.tokenizers.utf8 import Bytes
from transformer.parallel import memory
from transformer.search import Search
from transformer.step import init_state
from transformer.train import train
from transformer.translate import Translator

MB = 10**6


@pytest.fixture
def holding(monkeypatch):
    """Make this machine one with so many bytes of memory."""

    def holding(count: int) -> None:
        monkeypatch.setattr(memory, "here", lambda: count)

    return holding


def refused(call, *arguments) -> str:
    with pytest.raises(UserError) as caught:
        call(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def new(folder: Path) -> Path:
    (folder / "run").mkdir(exist_ok=True)
    return folder / "run"


def number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    assert found, text
    return int(found[1].replace(",", ""))


# ---- models --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"model.d_model": 10_000_000},
        {"model.layers": 2**31 - 1},
        {"model.d_ff": 2**31 - 1, "model.heads": 2**31 - 1},
        {"model.vocab_size": 2**31 - 1},
        {"tokenizer.vocab_size": 2**31 - 1},
        {"model.positions": "learned", "model.max_positions": 2**31 - 1},
    ],
)
def test_a_model_that_no_machine_holds(changes, tmp_path):
    said = refused(train, tiny_run(tmp_path / "text", **changes), new(tmp_path))
    assert said.startswith("model: expected parameters, moments and gradients that fit")
    assert number(r"got ([\d,]+) parameters", said) > 10**9
    assert not (tmp_path / "run" / "corpus").exists()


def test_its_bytes_by_formula_and_by_shapes(holding):
    settings = tiny(**{"model.vocab_size": 23})
    state = state_of(settings)
    count = sum(x.size for x in jax.tree.leaves(state.params))
    checks: list[tuple[Any, Any]] = [
        (fitting.check_sizes, settings),
        (fitting.check_state, state),
    ]
    for check, argument in checks:
        # Parameters, gradients and two moments in float32, and some scalars.
        holding(16 * count + 100)
        check(argument)
        holding(16 * count - 1)
        assert f"got {count:,} parameters" in refused(check, argument)


def test_a_model_over_several_devices_takes_its_share_of_each(holding):
    settings = base(**{"parallel.fsdp": 4, "parallel.tensor": 2})
    alone, spread = base(), settings
    holding(300 * MB)  # 63 million parameters take 1,000 MB
    fitting.check_sizes(spread)
    assert "spread it over more devices" in refused(fitting.check_sizes, alone)


def test_what_is_frozen_counts_once(holding):
    holding(300 * MB)  # 63 million parameters take 252 MB
    fitting.check_sizes(base(**{"optimizer.frozen": "encoder"}))
    assert "got 63," in refused(fitting.check_sizes, base())


def test_memory_that_is_not_known_refuses_nothing(holding):
    holding(0)
    fitting.check_sizes(base(**{"model.d_model": 10**7}))


def state_of(settings):
    mesh = parallel.replica_mesh(jax.devices()[:1])
    model = models.make(settings, 23, 23)
    shapes = jax.eval_shape(lambda: init_state(settings, model))
    return parallel.placed(mesh, model.partition, shapes)


# ---- steps ---------------------------------------------------------------------------


def test_a_step_that_is_too_large_is_refused_with_tokens_that_fit(holding, tmp_path):
    settings = tiny_run(tmp_path / "text", **{"batch.tokens": 1024, "train.steps": 2})
    holding(500_000)
    said = refused(train, settings, new(tmp_path))
    assert said.startswith("batch.tokens: expected a step that fits into the 0.0005 GB")
    fitting_tokens = number(r"about ([\d,]+) tokens fit", said)
    assert 128 <= fitting_tokens < 1024
    # These do fit, and what is refused is not far from what fits.
    run = tiny_run(
        tmp_path / "text", **{"batch.tokens": fitting_tokens, "train.steps": 2}
    )
    assert train(run, new(tmp_path)) is not None


def test_a_step_holds_at_least_its_ids_and_the_states_of_a_microbatch(holding):
    settings = tiny(**{"model.vocab_size": 23, "optimizer.accumulation": 4})
    state, width = state_of(settings), settings.model.d_model
    beside = memory.held(state) + memory.held(state.params)
    shapes = [(4, 8, 8), (64, 8, 16)]
    # On each of two devices 32 rows of 24 ids; 8 rows of 16 states in bfloat16.
    least = beside + 32 * 24 * 4 + 8 * 16 * width * 2
    holding(least)
    fitting.check_batches(settings, state, shapes, 2)
    holding(least - 1)
    said = refused(fitting.check_batches, settings, state, shapes, 2)
    assert said.startswith("batch.tokens: expected a step that fits")


def test_tokens_that_cannot_be_lowered(holding, tmp_path):
    settings = tiny_run(tmp_path / "text", **{"train.steps": 2})
    holding(150_000)
    assert "lower it and data.max_length, or set parallel.remat=layers" in refused(
        train, settings, new(tmp_path)
    )


def with_long_pair(place: Path, split: str) -> Config:
    changes = {"train.steps": 4, "train.evaluate_every": 3, "train.checkpoint_every": 4}
    settings = tiny_run(place, **changes)
    for language in ("en", "de"):
        path = place / f"{split}.{language}"
        path.write_text("one " * 100_000 + "\n" + path.read_text())
    return settings


@pytest.mark.parametrize("split", leave(["validation", "test"], ["validation"]))
def test_a_held_out_pair_that_no_machine_holds(split, tmp_path):
    settings, lines = with_long_pair(tmp_path / "text", split), list[str]()
    with pytest.raises(UserError, match=f"data.{split}: .*, got pair 1, which takes "):
        train(settings, new(tmp_path), lines.append)
    assert f"data.{split}: pair 1 has 100,001 source tokens" in "\n".join(lines)
    assert not (tmp_path / "run" / "checkpoints").exists()  # no step was made in vain


@pytest.mark.parametrize(
    "split, done", leave([("validation", 3), ("test", 4)], [("test", 4)])
)
def test_a_held_out_pair_too_long_for_unknown_memory(split, done, holding, tmp_path):
    settings = with_long_pair(tmp_path / "text", split)
    holding(0)
    said = refused(train, settings, new(tmp_path))
    assert said.startswith(f"data.{split}: expected a longest line that fits into memo")
    # The steps that were made are not lost.
    assert [x.name for x in (tmp_path / "run" / "checkpoints").iterdir()] == [str(done)]


# ---- searches ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def translator():
    vocabulary = Vocabulary(Bytes(), Bytes())
    params = models.init(models.make(SETTINGS, 260, 260), jax.random.key(0))
    one = Translator(SETTINGS, vocabulary, params)
    one.params = draw_params(one)
    return one


LINES = ["one two", "three"]


@pytest.mark.parametrize(
    "how, wide, key",
    [
        ({"beam": 100_000}, 100_000, "beam"),
        ({"beam": 2**31 - 1}, 2**31 - 1, "beam"),
        ({"sample": True, "n_best": 10**9}, 10**9, "n_best"),
    ],
)
def test_a_search_that_no_machine_holds(translator, how, wide, key):
    with compilations() as logged:
        said = refused(lambda: translator.hypotheses(LINES, **how))
    assert said.startswith(f"{key}: expected ") and f"got {wide:,} per sentence" in said
    assert number(r"; about ([\d,]+) fit", said) < wide
    if wide > 10**6:
        assert not [line for line in logged if "compilation of jit(search)" in line]


@pytest.mark.parametrize("how", [{}, {"sample": True}])
def test_what_is_said_to_fit_fits(translator, holding, how):
    name = "n_best" if how else "beam"
    holding(30 * MB)
    said = refused(lambda: translator.hypotheses(LINES, **how, **{name: 2000}))
    beam = number(r"about ([\d,]+) fit, more with fewer sentences", said)
    assert 8 < beam < 2000
    assert len(translator.hypotheses(LINES, **how, **{name: beam})) == 2


@pytest.mark.parametrize("beam, rows", [(1, 64), (4, 16), (64, 1)])
def test_nothing_that_fits_is_refused(translator, holding, beam, rows):
    how = Search(beam, 0.6, "gnmt")
    check = fitting.SearchCheck(SETTINGS, translator.model, how, rows, 16, 21)
    program = search_program(translator, how, rows)
    holding(need := memory.needed(program))
    check.before(translator.variables)
    check.compiled(program)
    holding(need - 1)
    assert "fit into the" in refused(check.compiled, program)


def search_program(translator, how, rows):
    return search.lower(
        how,
        translator.model,
        translator.mesh,
        21,
        translator.variables,
        np.zeros((rows, 16), np.int32),
        np.zeros(rows, np.int32),
        np.zeros(rows, np.uint32),
        np.uint32(0),
    ).compile()


def test_a_search_is_compiled_once(translator):
    with compilations() as logged:
        translator.translate(LINES, beam=3)
        translator.translate(LINES, beam=3)
    found = [line for line in logged if "XLA compilation of jit(search)" in line]
    assert len(found) == 1


def test_a_search_is_checked_once(translator, monkeypatch):
    fresh = Translator(SETTINGS, translator.vocabulary, translator.params)
    asked: list[int] = []
    lowered: list[Any] = []

    def here() -> int:
        asked.append(1)
        return 0

    monkeypatch.setattr(memory, "here", here)
    monkeypatch.setattr(
        fitting.SearchCheck, "compiled", lambda _, program: lowered.append(program)
    )
    fresh.translate(LINES, beam=3)
    found = len(asked), len(lowered)
    assert found[0] > 0 and found[1] == 1
    fresh.translate(LINES[::-1], beam=3)
    fresh.hypotheses(LINES, first=7, beam=3)
    assert (len(asked), len(lowered)) == found
    fresh.translate(LINES, beam=1)
    assert (len(asked), len(lowered)) == (2 * found[0], 2)


def test_a_configured_beam_is_refused_before_the_run(tmp_path):
    settings = tiny_run(tmp_path / "text", **{"decode.beam": 2**31 - 1})
    assert refused(train, settings, new(tmp_path)).startswith("beam: expected hypo")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


# ---- the command line ----------------------------------------------------------------


@pytest.fixture
def run(tmp_path, monkeypatch):
    shutil.copytree(TESTS / "old_run", tmp_path / "run")
    monkeypatch.chdir(tmp_path / "run")
    monkeypatch.setattr(parallel, "start", lambda device: "devices: none")
    return tmp_path / "run"


def test_a_beam_of_100000_ends_in_one_line(run, tmp_path, capsys):
    Path("lines").write_text("zero four\n")
    arguments = [f"--workdir={run}", "--input=lines", "--beam=100000"]
    assert cli.main(["translate", *arguments]) == 2
    out, said = capsys.readouterr()
    assert not out
    last = said.splitlines()[-1]
    assert last.startswith("transformer: error: beam: expected hypotheses that fit")
    assert number(r"about ([\d,]+) fit$", last) > 100
    assert "Traceback" not in said


def test_batch_tokens_of_2_to_31_end_in_one_line(run, tmp_path, capsys):
    settings = tiny_run(tmp_path / "text", **{"batch.tokens": 2**31 - 1})
    assert cli.main(command(settings, tmp_path / "new")) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("transformer: error: batch.tokens: expected a step that fi")
