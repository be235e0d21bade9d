"""A step on paper: by hand, and as the model has it."""

import dataclasses
from typing import Any

import jax
import pytest
from support.configs import base
from support.paths import EXPERIMENTS

from transformer import config, models
from transformer.cli import main as cli
from transformer.config import Config
from transformer.models import counts
from transformer.tools import flops
from transformer.tools.meshes import cost, kept, table
from transformer.tools.meshes.cost import Load, Mesh

# Every letter a number of its own: N D F h d_k d_v.
LETTERS: dict[str, Any] = {
    "model.layers": 2,
    "model.d_model": 10,
    "model.d_ff": 14,
    "model.heads": 6,
    "model.d_k": 3,
    "model.d_v": 5,
    "loss.block": 4,
}
LOAD = Load(rows=64, source=7, target=4, vocabulary=30)


def settings(**changes: Any) -> Config:
    return base(**(LETTERS | changes))


def model_of(c: Config) -> config.Transformer:
    return config.transformer(c.model)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"model.tying": "two", "model.attention_bias": False},
        {"model.tying": "none", "model.norm": "pre"},
        {"model.positions": "learned", "model.target_space": True},
        {"model.score": "additive"},
        {"model.score": "general"},
        {"model.positions": "relative", "model.clip": 2},
        {"model.positions": "disentangled", "model.clip": 2},
        {
            "model.positions": "disentangled",
            "model.clip": 2,
            "model.decoder_layers": 1,
            "model.output_bias": True,
        },
        {
            "model.positions": "relative",
            "model.clip": 0,
            "model.relative_heads": "per_head",
        },
    ],
    ids=str,
)
def test_the_parameters_are_those_of_the_model(changes):
    whole = settings(**changes)
    c, tree = model_of(whole), models.abstract(models.make(whole, 30, 30))
    leaves = jax.tree.leaves(tree)
    matrices = sum(x.size for x in leaves if x.ndim >= 2)
    vectors = sum(x.size for x in leaves if x.ndim == 1)
    assert counts.parameter_count(c, 30) == (matrices, vectors)


@pytest.mark.parametrize("name, billions", [("1 B", 1), ("10 B", 10)])
def test_the_large_sizes_are_as_large_as_their_names(name, billions):
    c = dataclasses.replace(model_of(base()), **table.SIZES[name])
    assert sum(counts.parameter_count(c, 37_000)) == pytest.approx(billions * 1e9, 0.03)


@pytest.mark.parametrize("name", ["base", "big"])
def test_the_paper_s_sizes_are_those_of_their_configs(name):
    wide: dict[str, Any] = {"d_model": 1024, "d_ff": 4096, "heads": 16}
    changes = wide if name == "big" else {}
    expected = dataclasses.replace(model_of(base()), **changes)
    assert dataclasses.replace(model_of(base()), **table.SIZES[name]) == expected


def test_parameters_gradients_and_moments_by_hand():
    c = settings()
    count = counts.parameter_count(model_of(c), 30)
    alone = cost.cost(c, Mesh(1, 1, 1), LOAD)
    assert alone[:3] == (4 * sum(count), 4 * sum(count), 8 * sum(count))
    # Copies cut nothing, the others the matrices.
    assert cost.cost(c, Mesh(8, 1, 1), LOAD)[:3] == alone[:3]
    held = 4 * (count.matrices / 8 + count.vectors)
    assert cost.cost(c, Mesh(1, 8, 1), LOAD)[:3] == (held, held, 2 * held)
    assert cost.cost(c, Mesh(1, 4, 2), LOAD)[:3] == (held, held, 2 * held)
    plain = settings(**{"optimizer.name": "sgd", "optimizer.accumulation": 2})
    assert cost.cost(plain, Mesh(1, 1, 1), LOAD)[1:3] == (8 * sum(count), 0)


def test_results_kept_of_an_attention_by_hand():
    c = model_of(settings())  # bfloat16, no dropout of weights
    # 4 queries on 7 keys. Q 4 x 18, K 7 x 18, V 7 x 30 and twice the weights 6 x 4 x 7
    # in float32; the joined heads 4 x 30 and the input 4 x 10 in bfloat16.
    inner = 4 * (72 + 126 + 210 + 2 * 168) + 2 * 120
    assert kept.attention_bytes(c, 4, 7, 1) == inner + 2 * 40
    assert kept.attention_bytes(c, 4, 7, 2) == inner / 2 + 2 * 40
    dropped = dataclasses.replace(c, attention_dropout=0.1, dtype="float32")
    inner = 4 * (72 + 126 + 210 + 3 * 168 + 120) + 168
    assert kept.attention_bytes(dropped, 4, 7, 1) == inner + 4 * 40


def test_results_kept_of_the_rest_by_hand():
    c = model_of(settings())
    # bfloat16 operands 10 and 14 wide, and the signs of 14.
    assert kept.feed_forward_bytes(c, 4, 1) == 4 * (20 + 28 + 14)
    assert kept.feed_forward_bytes(c, 4, 2) == 4 * (20 + 14 + 7)
    assert kept.residual_bytes(c, 4) == 4 * 10 * 5
    quiet = dataclasses.replace(c, dropout=0.0)
    assert kept.residual_bytes(quiet, 4) == 4 * 10 * 4


def test_what_the_ways_of_remat_keep_by_hand():
    c = model_of(settings())
    encoder, decoder = kept.layer_bytes(c, 7, 4, 1)
    assert kept.stack_bytes(c, "none", 7, 4, 1) == 2 * (encoder + decoder)
    once, inputs = max(encoder, decoder), 4 * (7 + 4) * 10
    assert kept.stack_bytes(c, "layers", 7, 4, 1) == 2 * inputs + once
    # Q K V, output, d_ff and back: of 7 positions in the encoder; in the decoder of 4,
    # a second Q and output, and K V of 7.
    products = 7 * (18 + 48 + 10 + 14 + 10) + 4 * (18 + 48 + 10 + 14 + 10)
    products += 4 * (18 + 10) + 7 * 48
    assert sum(kept.product_bytes(c, 7, 4, 1)) == 4 * products
    assert kept.stack_bytes(c, "dots", 7, 4, 1) == 2 * (inputs + 4 * products) + once


def test_what_lives_within_a_step_by_hand():
    c = settings()
    pair = kept.stack_bytes(model_of(c), "none", 7, 4, 1) + 4 * (7 + 12) * 10
    # Logits of 64 rows, a column of the batch; of 4 = loss.block where a column has 2.
    logits = 30 * (4 + 4 + 2)
    assert cost.activations(c, Mesh(1, 1, 1), LOAD) == 64 * pair + 64 * logits
    assert cost.activations(c, Mesh(32, 1, 1), LOAD) == 2 * pair + 4 * logits
    parts = settings(**{"optimizer.accumulation": 8})
    assert cost.activations(parts, Mesh(1, 1, 1), LOAD) == 8 * pair + 8 * logits
    # All matrices, and the gradient of the table.
    matrices = counts.parameter_count(model_of(c), 30).matrices
    gathered = cost.activations(c, Mesh(1, 8, 1), LOAD) - 8 * pair - 8 * logits
    assert gathered == 4 * (matrices + 30 * 10)


def test_communication_by_hand():
    matrices, vectors = counts.parameter_count(model_of(settings()), 30)

    def sent(*mesh: int, **changes: Any) -> float:
        return cost.communication(settings(**changes), Mesh(*mesh), LOAD)

    assert sent(1, 1, 1) == 0
    assert sent(8, 1, 1) == pytest.approx(7 * (matrices + vectors))
    # Gathered and scattered, 7 / 8 of 4 bytes each.
    assert sent(1, 8, 1) == pytest.approx(7 * matrices + 7 * vectors)
    halves = 4 * matrices / 4 + 2 * 3 / 4 * 4 * matrices
    assert sent(2, 4, 1) == pytest.approx(halves + 7 * vectors)
    parts = {"optimizer.accumulation": 4}
    assert sent(8, 1, 1, **parts) == sent(8, 1, 1)
    assert sent(1, 8, 1, **parts) == pytest.approx(4 * 7 * matrices + 7 * vectors)
    # Of 2 layers: 2 sums of S = 7 and 3 of T = 4 forward, 4 and 2 of S and 5 of T back;
    # at the ends S and twice T. Each 64 x 10 floats a position, half sent, twice.
    passes = 2 * (2 * 7 + 3 * 4 + 6 * 7 + 5 * 4) + 7 + 2 * 4
    assert sent(1, 1, 2) == pytest.approx(64 * 10 * 4 * passes)
    again = 2 * (2 * 7 + 3 * 4)
    assert sent(1, 1, 2, **{"parallel.remat": "layers"}) == pytest.approx(
        64 * 10 * 4 * (passes + again)
    )


def test_two_passes_of_r_drop_send_and_hold_twice_what_is_of_rows():
    once, twice = settings(), settings(**{"loss.r_drop": 5.0})
    for mesh in (Mesh(1, 1, 1), Mesh(1, 8, 1), Mesh(8, 1, 1), Mesh(1, 1, 2)):
        one, two = (cost.cost(c, mesh, LOAD) for c in (once, twice))
        assert two.operations == 2 * one.operations
        assert two[:3] == one[:3]  # parameters, gradients, moments
        # Gradients and gathered matrices are those of one; results are of rows.
        of_rows = mesh.tensor == 2
        assert two.communication == (1 + of_rows) * one.communication
        matrices = counts.parameter_count(model_of(once), 30).matrices
        gathered = 4 * (matrices + 30 * 10) if mesh.fsdp > 1 else 0
        assert two.activations - gathered == 2 * (one.activations - gathered)


def test_operations_are_spread_evenly_and_count_what_is_made_twice():
    model = model_of(settings())
    once = flops.train_step(model, 64, 7, 4, 30)
    assert cost.cost(settings(), Mesh(2, 2, 2), LOAD).operations == once / 8
    again = settings(**{"parallel.remat": "layers"})
    twice = once + 64 * flops.forward(model, 7, 4, vocabulary=0)
    assert cost.cost(again, Mesh(2, 2, 2), LOAD).operations == twice / 8


def test_the_command_prints_a_line_for_each_size_and_mesh(capsys):
    sizes = ["--tokens=32768", "--length=64", "--simulate=0"]
    arguments = [f"--config={EXPERIMENTS / 'base.py'}", *sizes]
    assert cli.main(["plan", *arguments]) == 0
    lines = [x for x in capsys.readouterr().out.splitlines() if x.startswith("| ")]
    assert len(lines) == 1 + len(table.SIZES) * len(table.MESHES)
    assert {mesh.devices for mesh in table.MESHES} == {1, 8, 64, 512}
    cells = [cell.strip() for cell in lines[1].strip("|").split("|")]
    load = Load(512, 64, 64, 37_000)
    first = cost.cost(base(), Mesh(1, 1, 1), load)
    assert cells[:3] == ["base", "1", "1 x 1 x 1"] and cells[-1] == "formula"
    held, within = float(cells[3]), float(cells[4])
    assert held == pytest.approx(3 * first.parameters / 1e9, 0.01)
    assert within == pytest.approx((first.gradients + first.activations) / 1e9, 0.01)
    assert float(cells[5]) == pytest.approx(held + within, 0.01)


@pytest.mark.parametrize("kind", ["number_words:cgru", "convs2s", "bytenet"])
def test_other_models_are_refused_in_one_line(kind, capsys):
    file, _, member = kind.partition(":")
    given = str(EXPERIMENTS / f"{file}.py") + (member and f":{member}")
    assert cli.main(["plan", f"--config={given}", "--simulate=0"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "model.kind: expected transformer, got" in error


def test_rows_can_be_parted_for_accumulation():
    parts = {"optimizer.accumulation": 3, "batch.multiple": 24}
    c = settings(**parts, **{"model.vocab_size": 30})
    assert table.table(c, 4096, 8).title.startswith("One step of 1,536 x 8 tokens")


def test_a_step_on_one_device_as_compiled():
    """Every figure that the compiler tells, beside the formula's."""
    c = settings(**{"model.dropout": 0.0})
    load = Load(rows=16, source=8, target=8, vocabulary=30)
    found = table.as_compiled(c, Mesh(1, 1, 1), load, jax.devices())
    paper = table.by_formula(c, Mesh(1, 1, 1), load)
    ids = 2 * 16 * 8 * 4
    assert 0 <= found.held - paper.held - ids < 100  # counters
    assert found.sent == paper.sent == 0
    assert found.operations == pytest.approx(paper.operations, 0.05)
