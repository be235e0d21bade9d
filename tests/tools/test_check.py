"""Every self-check passes on sound models and fails on a model that is broken."""

import dataclasses
import itertools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.cases import leave
from support.checks import SOUND, changed
from support.configs import base
from support.models import draw_params
from support.paths import PROGRAMS, TESTS

from transformer import config, models
from transformer.config import Config, UserError
from transformer.decode import beam_search
from transformer.models.transformer import Transformer
from transformer.nn import attention, layers, losses
from transformer.parallel import sizes
from transformer.tools import check


def verdicts(settings: Config) -> tuple[int, dict[str, str]]:
    """Return the exit code and the verdict of every check."""
    lines: list[str] = []
    code = check.check(settings=settings, log=lines.append)
    *table, summary = lines
    found = {line[6:].split("  ")[0].strip(): line[:4] for line in table}
    assert list(found) == list(check.CHECKS)
    passed = list(found.values()).count("pass")
    assert summary == f"{passed} of {len(check.CHECKS)} checks passed"
    assert code == (passed < len(check.CHECKS))
    return code, found


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, marks=pytest.mark.thorough),  # by test_every_model.py, too
        {
            "norm": "pre",
            "positions": "learned",
            "tying": "none",
            "window": 2,
            "target_space": True,
            "score": "dot",
            "dropout": 0.3,
        },
    ],
    ids=["base", "changed"],
)
def test_sound_models_pass(changes):
    loss = dataclasses.replace(SOUND.loss, smoothing_over="others")
    settings = dataclasses.replace(SOUND, loss=loss) if changes else SOUND
    code, found = verdicts(changed(settings, **changes))
    assert code == 0 and set(found.values()) == {"pass"}


def test_a_model_that_reads_vectors_is_given_vectors():
    data = dataclasses.replace(SOUND.data, source="vectors")
    settings = changed(dataclasses.replace(SOUND, data=data), tying="two")
    subject = check.subject(None, settings)
    assert subject.source.shape == (4, 9, 1 + 23)
    # A 1 marks a frame, and behind the last one all is zero.
    np.testing.assert_array_equal(subject.source[..., 0].sum(1), [9, 8, 7, 6])
    padding = subject.source[..., 0] == 0
    assert not subject.source[padding].any() and subject.source[~padding].all()
    code, found = verdicts(settings)
    assert code == 0 and set(found.values()) == {"pass"}


def test_a_vocabulary_without_tokens_is_refused():
    with pytest.raises(UserError, match="above 4, the special ids, got 4"):
        check.subject(None, changed(SOUND, vocab_size=4))


def test_the_vocabulary_of_bytes_is_known_without_data():
    keys = {"tokenizer.kind": "bytes", "tokenizer.vocab_size": 0}
    for rows, expected in ((0, 4 + 256), (264, 264)):
        settings = base(**keys, **{"model.vocab_size": rows})
        assert models.configured_vocabulary(settings) == expected


# A program once compiled for a model does not see what is broken later, so each broken
# model is another one: this number is of no effect where positions are not learned.
rows = itertools.count(2000)


def measure(name: str) -> float:
    """Return what the check of this name finds in a new model."""
    sound = config.transformer(SOUND.model)
    exact = dataclasses.replace(sound, dtype="float32", max_positions=next(rows))
    model = Transformer(exact, 23, 23)
    draw = np.random.default_rng(0)
    sentences = (check._sentences(draw, n, 23) for n in (check._SOURCE, check._TARGET))
    params = draw_params(model)
    settings = sizes.here(dataclasses.replace(SOUND, model=exact), 23)
    return check.CHECKS[name](check.Subject(settings, model, params, *sentences))


def everything(*shape):
    return jnp.ones(shape, bool)


def see_the_future(patch):
    patch.setattr(
        attention, "causal_mask", lambda length: everything(1, 1, length, length)
    )


def see_padding(patch):
    patch.setattr(
        attention, "padding_mask", lambda ids: everything(len(ids), 1, 1, ids.shape[1])
    )


def norm_over_the_batch(patch):
    def layer_norm(x, scale, bias, epsilon):
        centred = x - x.mean(0, keepdims=True)
        return centred / jnp.sqrt((centred**2).mean(0) + 1) * scale + bias

    patch.setattr(layers, "layer_norm", layer_norm)


def forget_the_past(patch):
    whole = Transformer.step

    def step(self, cache, ids, parents):
        other = cache._replace(
            ancestors=cache.ancestors._replace(beams=cache.ancestors.beams + 1)
        )
        return whole(self, other, ids, parents)

    patch.setattr(Transformer, "step", step)


def end_too_early(patch):
    whole = beam_search.best_continuations

    def best(totals, logits, count, allowed):
        return whole(totals, logits.at[..., 3].add(4.0), count, allowed)

    patch.setattr(beam_search, "best_continuations", best)


def smooth_too_much(patch):
    patch.setattr(losses, "smoothing_constants", lambda e, over, size: (1 - e, e))


def count_the_target_twice(patch):
    # "all" with the constants of "others", the mistake that is hardest to see.
    whole = losses.smoothing_constants
    patch.setattr(
        losses, "smoothing_constants", lambda e, over, size: whole(e, "others", size)
    )


def mask_with_infinity(patch):
    def weights(scores, mask):
        return jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), axis=-1)

    patch.setattr(attention, "attention_weights", weights)


BROKEN = [
    ("no future leak", see_the_future),
    ("no pad leak", see_padding),
    ("batch invariance", norm_over_the_batch),
    ("cached = uncached decoding", forget_the_past),
    ("beam 1 = greedy", end_too_early),
    ("smoothed loss = closed form", smooth_too_much),
    ("smoothed loss = closed form", count_the_target_twice),
    ("empty rows leave gradients finite", mask_with_infinity),
]


@pytest.mark.parametrize("name, breaking", BROKEN, ids=[f.__name__ for _, f in BROKEN])
def test_a_broken_model_fails(name, breaking, patch):
    breaking(patch)
    assert not measure(name) <= check.TOLERANCE  # NaN fails too


def test_every_check_has_been_seen_to_fail():
    assert {name for name, _ in BROKEN} == set(check.CHECKS)


def test_one_failure_fails_the_command(monkeypatch):
    lines: list[str] = []
    checks = {"sound": lambda it: 0.0, "unsound": lambda it: float("nan")}
    monkeypatch.setattr(check, "CHECKS", checks)
    monkeypatch.setattr(check, "subject", lambda workdir, settings: settings)
    assert check.check(settings=SOUND, log=lines.append) == 1
    assert [line[:4] for line in lines[:2]] == ["pass", "FAIL"]
    assert lines[-1] == "1 of 2 checks passed"


def test_the_model_is_looked_at_in_float32(monkeypatch):
    monkeypatch.setattr(models, "init", lambda model, key: {})
    assert SOUND.model.dtype == "bfloat16"
    assert check.subject(None, SOUND).model.config.dtype == "float32"


@pytest.mark.parametrize(
    "precision, passes",
    leave([("HIGHEST", True), ("DEFAULT", False)], [("DEFAULT", False)]),
)
def test_the_checks_hold_where_float32_operands_would_be_rounded(precision, passes):
    """As on an NVIDIA GPU, whose products are TF32 unless told; see the program."""
    program = PROGRAMS / "rounding_machine.py"
    run = subprocess.run(
        [sys.executable, str(program), "10", precision],
        env=os.environ | {"PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == (0 if passes else 1), run.stderr
    failed = [line for line in run.stdout.splitlines() if line.startswith("FAIL")]
    assert any("batch invariance" in line for line in failed) != passes, run.stdout
