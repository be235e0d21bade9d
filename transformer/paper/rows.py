"""Tables 2, 3 and 4 as printed, and what section 6.2 concludes from them, as data.

Source: Vaswani et al. (2017), Attention Is All You Need, arXiv:1706.03762v5.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

Measure = Literal["perplexity", "bleu"]
Relation = Literal["worse", "same"]
MEASURES: tuple[Measure, Measure] = ("perplexity", "bleu")

# What the paper's columns are called in a configuration.
KEYS = {
    "layers": "model.layers",
    "d_model": "model.d_model",
    "d_ff": "model.d_ff",
    "heads": "model.heads",
    "d_k": "model.d_k",
    "d_v": "model.d_v",
    "dropout": "model.dropout",
    "attention_dropout": "model.attention_dropout",
    "relu_dropout": "model.relu_dropout",
    "label_smoothing": "loss.smoothing",
    "smoothing_over": "loss.smoothing_over",
    "r_drop": "loss.r_drop",
    "step_offset": "optimizer.step_offset",
    "target_space": "model.target_space",
    "positions": "model.positions",
    "clip": "model.clip",
    "score": "model.score",
    "window": "model.window",
    "attention_bias": "model.attention_bias",
    "norm": "model.norm",
    "steps": "train.steps",
}
# The widths, which a smaller replica multiplies by its scale.
WIDTHS = ("model.d_model", "model.d_ff", "model.d_k", "model.d_v")

# What all rows have in common beside the values of ``BASE``: sections 5.1 and 5.3.
SHARED: Mapping[str, Any] = MappingProxyType(
    {
        "data.train": "train",
        "data.train_pairs": 0,
        "batch.tokens": 25_000,
        "optimizer.scale": 1.0,
        "optimizer.warmup": 4000,
    }
)

BASE: Mapping[str, Any] = MappingProxyType(
    {
        "layers": 6,
        "d_model": 512,
        "d_ff": 2048,
        "heads": 8,
        "d_k": 64,
        "d_v": 64,
        "dropout": 0.1,
        "attention_dropout": 0.0,
        "relu_dropout": 0.0,
        "label_smoothing": 0.1,
        "smoothing_over": "all",
        "r_drop": 0.0,
        "step_offset": 0,
        "target_space": False,
        "positions": "sinusoidal",
        "clip": -1,
        "score": "scaled_dot",
        "window": 0,
        "attention_bias": True,
        "norm": "post",
        "steps": 100_000,
    }
)


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of Table 3, or one of which the paper prints no values.

    Attributes:
      changes: what differs from ``BASE``, in the paper's terms.
      perplexity: per piece, on newstest2013; None = not printed.
      bleu: on newstest2013.
      millions: of parameters; None where the cell is blank.
    """

    changes: Mapping[str, Any]
    perplexity: float | None = None
    bleu: float | None = None
    millions: int | None = None

    @property
    def overrides(self) -> dict[str, Any]:
        """What differs from the base model's configuration, by dotted key."""
        return {KEYS[name]: value for name, value in self.changes.items()}


def _row(
    perplexity: float | None,
    bleu: float | None,
    millions: int | None,
    **changes: Any,
) -> Row:
    return Row(MappingProxyType(changes), perplexity, bleu, millions)


TABLE3: Mapping[str, Row] = MappingProxyType(
    {
        "base": _row(4.92, 25.8, 65),
        "A_h1": _row(5.29, 24.9, None, heads=1, d_k=512, d_v=512),
        "A_h4": _row(5.00, 25.5, None, heads=4, d_k=128, d_v=128),
        "A_h16": _row(4.91, 25.8, None, heads=16, d_k=32, d_v=32),
        "A_h32": _row(5.01, 25.4, None, heads=32, d_k=16, d_v=16),
        "B_dk16": _row(5.16, 25.1, 58, d_k=16),
        "B_dk32": _row(5.01, 25.4, 60, d_k=32),
        "C_N2": _row(6.11, 23.7, 36, layers=2),
        "C_N4": _row(5.19, 25.3, 50, layers=4),
        "C_N8": _row(4.88, 25.5, 80, layers=8),
        "C_d256": _row(5.75, 24.5, 28, d_model=256, d_k=32, d_v=32),
        "C_d1024": _row(4.66, 26.0, 168, d_model=1024, d_k=128, d_v=128),
        "C_ff1024": _row(5.12, 25.4, 53, d_ff=1024),
        "C_ff4096": _row(4.75, 26.2, 90, d_ff=4096),
        "D_drop0.0": _row(5.77, 24.6, None, dropout=0.0),
        "D_drop0.2": _row(4.95, 25.5, None, dropout=0.2),
        "D_smooth0.0": _row(4.67, 25.3, None, label_smoothing=0.0),
        "D_smooth0.2": _row(5.47, 25.7, None, label_smoothing=0.2),
        "E_learned": _row(4.92, 25.7, None, positions="learned"),
        "big": _row(
            4.33,
            26.4,
            213,
            d_model=1024,
            d_ff=4096,
            heads=16,
            dropout=0.3,
            steps=300_000,
        ),
        "no_positions": _row(None, None, None, positions="none"),
        "unscaled": _row(None, None, None, score="dot"),
        "additive_score": _row(None, None, None, score="additive"),
        "general_score": _row(None, None, None, score="general"),
        "window": _row(None, None, None, window=4),
        "no_attention_bias": _row(None, None, None, attention_bias=False),
        "pre_norm": _row(None, None, None, norm="pre"),
        "attention_dropout": _row(None, None, None, attention_dropout=0.1),
        "relu_dropout": _row(None, None, None, relu_dropout=0.1),
        "relative": _row(None, None, None, positions="relative", clip=16),
        "disentangled": _row(None, None, None, positions="disentangled", clip=16),
        "rotary": _row(None, None, None, positions="rotary"),
        "alibi": _row(None, None, None, positions="alibi"),
        "r_drop": _row(None, None, None, r_drop=5.0),
        "as_run_positions": _row(None, None, None, positions="sinusoidal_concat"),
        "as_run_smoothing": _row(None, None, None, smoothing_over="others"),
        "as_run_step": _row(None, None, None, step_offset=1),
        "as_run_target_space": _row(None, None, None, target_space=True),
        "as_run": _row(
            None,
            None,
            None,
            positions="sinusoidal_concat",
            smoothing_over="others",
            step_offset=1,
            target_space=True,
        ),
    }
)


@dataclasses.dataclass(frozen=True)
class System:
    """A row of Table 2: BLEU on newstest2014 and training cost, by language pair."""

    name: str
    bleu: Mapping[str, float]
    flops: Mapping[str, float]


def _system(
    name: str,
    bleu_en_de: float | None,
    bleu_en_fr: float | None,
    flops_en_de: float | None,
    flops_en_fr: float | None,
) -> System:
    bleu = {"en_de": bleu_en_de, "en_fr": bleu_en_fr}
    flops = {"en_de": flops_en_de, "en_fr": flops_en_fr}
    given = [{k: v for k, v in one.items() if v is not None} for one in (bleu, flops)]
    return System(name, *map(MappingProxyType, given))


TABLE2 = (
    _system("ByteNet", 23.75, None, None, None),
    _system("Deep-Att + PosUnk", None, 39.2, None, 1.0e20),
    _system("GNMT + RL", 24.6, 39.92, 2.3e19, 1.4e20),
    _system("ConvS2S", 25.16, 40.46, 9.6e18, 1.5e20),
    _system("MoE", 26.03, 40.56, 2.0e19, 1.2e20),
    _system("Deep-Att + PosUnk ensemble", None, 40.4, None, 8.0e20),
    _system("GNMT + RL ensemble", 26.30, 41.16, 1.8e20, 1.1e21),
    _system("ConvS2S ensemble", 26.36, 41.29, 7.7e19, 1.2e21),
    _system("Transformer (base)", 27.3, 38.1, 3.3e18, 3.3e18),
    _system("Transformer (big)", 28.4, 41.8, 2.3e19, 2.3e19),
)
# What the project calls a model of Table 2 on a language pair.
OURS_IN_TABLE2 = MappingProxyType(
    {
        (f"Transformer ({size})", pair): f"{size}_{pair}"
        for size in ("base", "big")
        for pair in ("en_de", "en_fr")
    }
)


@dataclasses.dataclass(frozen=True)
class Parser:
    """A row of Table 4: F1 on section 23 of the Wall Street Journal."""

    name: str
    training: str
    f1: float


TABLE4 = (
    Parser("Vinyals & Kaiser et al. (2014)", "WSJ only", 88.3),
    Parser("Petrov et al. (2006)", "WSJ only", 90.4),
    Parser("Zhu et al. (2013)", "WSJ only", 90.4),
    Parser("Dyer et al. (2016)", "WSJ only", 91.7),
    Parser("Transformer (4 layers)", "WSJ only", 91.3),
    Parser("Zhu et al. (2013)", "semi-supervised", 91.3),
    Parser("Huang & Harper (2009)", "semi-supervised", 91.3),
    Parser("McClosky et al. (2006)", "semi-supervised", 92.1),
    Parser("Vinyals & Kaiser et al. (2014)", "semi-supervised", 92.1),
    Parser("Transformer (4 layers)", "semi-supervised", 92.7),
    Parser("Luong et al. (2015)", "multi-task", 93.0),
    Parser("Dyer et al. (2016)", "generative", 93.3),
)
# What the project calls a row of Table 4.
OURS_IN_TABLE4 = MappingProxyType(
    {
        ("Transformer (4 layers)", "WSJ only"): "parsing_wsj",
        ("Transformer (4 layers)", "semi-supervised"): "parsing_wsj_semi",
    }
)


# ---- what is concluded ---------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Comparison:
    """``first`` has a worse value than ``second``, or nearly the same one."""

    first: str
    second: str
    measure: Measure
    relation: Relation = "worse"


@dataclasses.dataclass(frozen=True)
class Claim:
    """A conclusion; it holds if all its comparisons hold."""

    text: str
    section: str
    comparisons: tuple[Comparison, ...]

    @property
    def measure(self) -> Measure:
        """The one measure that it is about."""
        return self.comparisons[0].measure


def _claim(
    text: str,
    section: str,
    measure: Measure,
    *pairs: tuple[str, str],
    relation: Relation = "worse",
) -> Claim:
    comparisons = (Comparison(*pair, measure, relation) for pair in pairs)
    return Claim(text, section, tuple(comparisons))


_SMALLER = (
    ("C_N2", "base"),
    ("C_N4", "base"),
    ("base", "C_N8"),
    ("C_d256", "base"),
    ("base", "C_d1024"),
    ("C_ff1024", "base"),
    ("base", "C_ff4096"),
    ("base", "big"),
)

CLAIMS = (
    *(
        _claim("one head is worse than 8", "6.2 (A)", one, ("A_h1", "base"))
        for one in MEASURES
    ),
    *(
        _claim("too many heads are worse", "6.2 (A)", one, ("A_h32", "base"))
        for one in MEASURES
    ),
    *(
        _claim(
            "a smaller d_k is worse",
            "6.2 (B)",
            one,
            ("B_dk16", "base"),
            ("B_dk32", "base"),
        )
        for one in MEASURES
    ),
    _claim("bigger models are better", "6.2 (C)", "perplexity", *_SMALLER),
    _claim(
        "bigger models are better (except 8 layers, 0.3 BLEU worse in the paper)",
        "6.2 (C)",
        "bleu",
        *(pair for pair in _SMALLER if "C_N8" not in pair),
    ),
    *(
        _claim("dropout helps", "6.2 (D)", one, ("D_drop0.0", "base"))
        for one in MEASURES
    ),
    _claim(
        "label smoothing hurts perplexity",
        "5.4, 6.2 (D)",
        "perplexity",
        ("base", "D_smooth0.0"),
        ("D_smooth0.2", "base"),
    ),
    _claim("label smoothing helps BLEU", "5.4", "bleu", ("D_smooth0.0", "base")),
    *(
        _claim(
            "learned and sinusoidal positions are nearly the same",
            "6.2 (E)",
            one,
            ("E_learned", "base"),
            relation="same",
        )
        for one in MEASURES
    ),
    *(
        _claim("without positions it is worse", "3.5", one, ("no_positions", "base"))
        for one in MEASURES
    ),
    *(
        _claim("unscaled dot products are worse", "3.2.1", one, ("unscaled", "base"))
        for one in MEASURES
    ),
)

# The last digit printed: two values that differ by one may have been rounded apart.
_DIGIT = {"perplexity": 0.01, "bleu": 0.1}


def against_base(name: str, measure: Measure) -> Comparison | None:
    """Return how a row's printed value compares with that of the base model.

    Values that differ by no more than their last digit are the same; a row without a
    value is worse if a claim holds so, otherwise the paper is silent on it.
    """
    printed, base = getattr(TABLE3[name], measure), getattr(TABLE3["base"], measure)
    if printed is None:
        argued = any(one.first == name for claim in CLAIMS for one in claim.comparisons)
        return Comparison(name, "base", measure) if argued else None
    if abs(printed - base) < 1.5 * _DIGIT[measure]:
        return Comparison(name, "base", measure, "same")
    if (printed > base) == (measure == "perplexity"):
        return Comparison(name, "base", measure)
    return Comparison("base", name, measure)


def badness(measure: Measure, value: float) -> float:
    """Return a value as tests compare it: log perplexity, or BLEU times -1."""
    return math.log(value) if measure == "perplexity" else -value


def margin(measure: Measure) -> float:
    """Return the difference from which on two rows are no longer nearly the same.

    It is the difference of 32 heads from the base model, the smallest one from which
    section 6.2 draws a conclusion: 0.018 of log perplexity (1.8 %), and 0.4 BLEU.
    """
    values = [getattr(TABLE3[name], measure) for name in ("A_h32", "base")]
    first, second = (badness(measure, value) for value in values)
    return round(first - second, 4)
