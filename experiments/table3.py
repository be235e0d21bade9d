"""Table 3 of "Attention Is All You Need": variations of the base model, row by row.

Paper: perplexity per piece and BLEU on newstest2013, which the final evaluation uses
here too; all embedding tables have 40,960 rows, in agreement with the paper's parameter
counts. The report compares last checkpoints, as section 6.2 averages none; the average
is evaluated, too.

    transformer train --config=experiments/table3.py:A_h1 --workdir=runs/A_h1

Nineteen rows are not in the table. The paper argues against ``no_positions`` and
``unscaled``. ``additive_score`` and ``general_score`` are of the more sophisticated
kind that its comment on rows (B) suggests may help. The paper reports no result for
ten: ``window``, the restricted self-attention of section 4; ``no_attention_bias``;
``pre_norm``, ``attention_dropout`` and ``relu_dropout``, each alone, from the authors'
later code (tensor2tensor, ``transformer_base_v2``); positions by distance, ``relative``
(Shaw et al., who measured 25.8 BLEU here, as with sinusoids), ``disentangled`` (He et
al., DeBERTa, in the encoder), ``rotary`` and ``alibi``; and ``r_drop`` (Liang et al.).
The other five are what the authors' first public code did and the paper does not say,
as in base.py:as_run, each alone: ``as_run_positions``, the form of the sinusoids;
``as_run_smoothing``, over the other pieces; ``as_run_step``, one more in equation 3;
``as_run_target_space``, a vector added to the source; and ``as_run``, all four.

On other data: ``ROW,data=numbers``, ``ROW,data=eng_us`` and ``ROW,data=dut`` (words to
phonemes, see g2p.py), ``ROW,data=multi30k``, or ``ROW,data=FOLDER`` with your own text
(see text.py), as a smaller replica: ``scale`` multiplies d_model, d_ff, d_k, d_v and,
in proportion to the scale that the recipe is for, the steps. Everything else in a row
stays: heads, layers, dropout, smoothing, positions. The name of the configuration,
which all results carry, holds row, data and scale. ``data=numbers`` has numbers of at
most four digits here, so that six narrow layers learn them in few steps.

    transformer train --config=experiments/table3.py:A_h1,data=numbers --workdir=runs/A
    transformer train --config=experiments/table3.py:A_h1,data=eng_us \\
        --config.data.dir=g2p/eng_us --workdir=runs/A_eng_us
    transformer train --config=experiments/table3.py:A_h1,data=multi30k,scale=0.5 \\
        --config.data.dir=multi30k/raw --workdir=runs/B
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import base
import g2p
import multi30k
import number_words
import text
from ml_collections import ConfigDict

# What a row changes. Each could as well be typed: --config.model.heads=1 ...
ROWS: dict[str, dict[str, Any]] = {
    "base": {},
    "A_h1": {"model.heads": 1, "model.d_k": 512, "model.d_v": 512},
    "A_h4": {"model.heads": 4, "model.d_k": 128, "model.d_v": 128},
    "A_h16": {"model.heads": 16, "model.d_k": 32, "model.d_v": 32},
    "A_h32": {"model.heads": 32, "model.d_k": 16, "model.d_v": 16},
    "B_dk16": {"model.d_k": 16},
    "B_dk32": {"model.d_k": 32},
    "C_N2": {"model.layers": 2},
    "C_N4": {"model.layers": 4},
    "C_N8": {"model.layers": 8},
    "C_d256": {"model.d_model": 256, "model.d_k": 32, "model.d_v": 32},
    "C_d1024": {"model.d_model": 1024, "model.d_k": 128, "model.d_v": 128},
    "C_ff1024": {"model.d_ff": 1024},
    "C_ff4096": {"model.d_ff": 4096},
    "D_drop0.0": {"model.dropout": 0.0},
    "D_drop0.2": {"model.dropout": 0.2},
    "D_smooth0.0": {"loss.smoothing": 0.0},
    "D_smooth0.2": {"loss.smoothing": 0.2},
    "E_learned": {"model.positions": "learned"},
    "big": {
        "model.d_model": 1024,
        "model.d_ff": 4096,
        "model.heads": 16,
        "model.dropout": 0.3,
        "train.steps": 300_000,
        "train.keep": 20,
        "decode.average": 20,
    },
    # Not in the table; what sections 3.5 and 3.2.1 argue against.
    "no_positions": {"model.positions": "none"},
    "unscaled": {"model.score": "dot"},
    # Row (B) "suggests that [...] a more sophisticated compatibility function than dot
    # product may be beneficial": a layer of tanh, and a matrix between query and key.
    "additive_score": {"model.score": "additive"},
    "general_score": {"model.score": "general"},
    # Nor are these, and the paper reports no result for them: section 4 leaves
    # attention to a neighbourhood for later, and section 3.2.2 writes no biases.
    "window": {"model.window": 4},  # r = 9; six layers reach 24 positions each way
    "no_attention_bias": {"model.attention_bias": False},
    # Nor these, of tensor2tensor's later base: x + Dropout(f(LayerNorm(x))) in place
    # of LayerNorm(x + Dropout(f(x))); dropout of the weights of attention (equation 1),
    # and between the two products of equation 2.
    "pre_norm": {"model.norm": "pre"},
    "attention_dropout": {"model.attention_dropout": 0.1},
    "relu_dropout": {"model.relu_dropout": 0.1},
    # Nor these: positions by distance, which only attention knows.
    "relative": {"model.positions": "relative", "model.clip": 16},
    "disentangled": {"model.positions": "disentangled", "model.clip": 16},
    "rotary": {"model.positions": "rotary"},
    "alibi": {"model.positions": "alibi"},
    # Nor this: two passes with different dropout, kept close to each other.
    "r_drop": {"loss.r_drop": 5.0},
    # Nor these, of the authors' first public code.
    "as_run_positions": {"model.positions": "sinusoidal_concat"},
    "as_run_smoothing": {"loss.smoothing_over": "others"},
    "as_run_step": {"optimizer.step_offset": 1},
    "as_run_target_space": {"model.target_space": True},
    "as_run": {
        "model.positions": "sinusoidal_concat",
        "loss.smoothing_over": "others",
        "optimizer.step_offset": 1,
        "model.target_space": True,
    },
}

# By data: the experiment with the recipe, the scale of a replica, and what suits six
# layers of that width.
_EXPERIMENTS: dict[str, Callable[[], ConfigDict]] = {
    "numbers": number_words.get_config,
    "eng_us": functools.partial(g2p.get_config, "eng_us"),
    "dut": functools.partial(g2p.get_config, "dut"),
    "multi30k": multi30k.get_config,
}
# A peak of .001, with which the rows that open docs/results.md were trained. With the
# larger peaks of g2p.py and its 12,000 steps base learns more, and which rows are ahead
# of it changes.
_KEPT_RATE = {"optimizer.scale": 0.226, "optimizer.warmup": 400}
_REPLICAS: dict[str, tuple[float, dict[str, Any]]] = {
    "numbers": (
        0.25,
        {
            "data.digits": 4,
            "data.train_pairs": 8_000,
            "batch.tokens": 1024,
            "batch.shapes": 2,
            "optimizer.scale": 0.15,
            "optimizer.warmup": 150,
            "train.steps": 400,
            "train.evaluate_every": 50,
            "train.checkpoint_every": 50,
            "decode.average": 3,
        },
    ),
    "eng_us": (0.25, _KEPT_RATE | {"train.steps": 8_000}),
    "dut": (0.25, _KEPT_RATE),
    "multi30k": (
        0.25,
        {
            "tokenizer.vocab_size": 4_000,
            "batch.tokens": 2048,
            "batch.shapes": 8,
            "optimizer.scale": 0.358,  # the peak is .001
            "optimizer.warmup": 1_000,
            "train.steps": 4_500,
            "train.evaluate_every": 250,
            "train.checkpoint_every": 250,
            "decode.average": 5,
        },
    ),
}
_OWN_TEXT: tuple[float, dict[str, Any]] = (0.5, {})
_WIDTHS = ("d_model", "d_ff", "d_k", "d_v")


def get_config(argument: str = "base") -> ConfigDict:
    """Return the configuration of ``ROW[,data=DATA][,scale=SCALE]``.

    Without a row it is that of the base model.
    """
    row, given = _parse(argument)
    data = given.get("data", "wmt14")
    config, scale = _on_wmt14() if data == "wmt14" else _on(data)
    if "scale" in given:
        scale = _positive(given["scale"])
    config.name = f"table3/{row}/{Path(data).absolute().name}/x{scale:g}"
    for key, value in ROWS[row].items():
        if key == "train.steps":
            value = config.train.steps * value // base.get_config().train.steps
        config.update_from_flattened_dict({key: value})
    _shrink(config, scale)
    return config


def _parse(argument: str) -> tuple[str, dict[str, str]]:
    """Take ``ROW,data=DATA,scale=SCALE`` apart."""
    parts = argument.split(",")
    pairs = [part.split("=", 1) for part in parts if "=" in part]
    rows, given = [part for part in parts if "=" not in part] or ["base"], dict(pairs)
    known = set(given) <= {"data", "scale"} and all(given.values())
    if len(rows) > 1 or len(given) < len(pairs) or not known:
        raise ValueError(f"expected ROW,data=DATA,scale=SCALE, got {argument}")
    if rows[0] not in ROWS:
        raise ValueError(f"expected a row, one of {', '.join(ROWS)}; got {rows[0]}")
    return rows[0], given


def _on_wmt14() -> tuple[ConfigDict, float]:
    """Return the base model where Table 3 was measured, and its scale."""
    config = base.get_config()
    config.data.test = config.data.validation  # newstest2013
    config.model.vocab_size = 40_960
    return config, 1.0


def _on(data: str) -> tuple[ConfigDict, float]:
    """Return the base model with the recipe of other data, and the replica's scale."""
    scale, recipe = _REPLICAS.get(data, _OWN_TEXT)
    config = _EXPERIMENTS.get(data, text.get_config)()
    if data not in _REPLICAS:
        config.data.dir = data
    config.model = base.get_config().model
    config.loss = base.get_config().loss
    config.update_from_flattened_dict(recipe)
    config.train.steps = round(config.train.steps / scale)
    return config, scale


def _positive(given: str) -> float:
    try:
        scale = float(given)
    except ValueError:
        scale = 0.0
    if not 0 < scale < float("inf"):
        raise ValueError(f"expected a scale above 0, got {given}; change it")
    return scale


def _shrink(config: ConfigDict, scale: float) -> None:
    """Multiply widths and steps; widths have to stay whole numbers."""
    for width in _WIDTHS:
        scaled = config.model[width] * scale
        if scaled != int(scaled) or scaled < 1:
            raise ValueError(
                f"expected a scale that leaves model.{width} a whole number, got "
                f"{config.model[width]} x {scale:g} = {scaled:g}; choose another"
            )
        config.model[width] = int(scaled)
    config.train.steps = max(round(config.train.steps * scale), 1)
