"""Parameters and costs of Table 3's rows beside the paper's; tables and pictures."""

import dataclasses
import functools
import xml.etree.ElementTree as ElementTree

import jax
import numpy as np
import pytest
from support.configs import experiment

from transformer import config, models
from transformer import step as steps
from transformer.paper import complexity, static
from transformer.paper.rows import TABLE2, TABLE3
from transformer.parallel import sizes
from transformer.pictures.tables import Table
from transformer.tools import flops

PRINTED = [row for row, printed in TABLE3.items() if printed.millions and row != "big"]


@functools.cache
def resolved(row: str) -> config.Config:
    return config.resolve(experiment("table3", row))


def column(table: Table, head: str) -> dict[str, str]:
    at = table.columns.index(head)
    return {cells[0]: cells[at] for cells in table.rows}


def with_table_rows(settings: config.Config, size: int) -> config.Config:
    model = dataclasses.replace(settings.model, vocab_size=size)
    return dataclasses.replace(settings, model=model)


@functools.cache
def parameters(row: str) -> int:
    return static.parameters(resolved(row))


@pytest.mark.parametrize("row", PRINTED)
def test_parameters_are_the_paper_s_to_the_printed_digit(row):
    assert round(parameters(row) / 1e6) == TABLE3[row].millions


def test_the_parameters_of_the_base_model_by_hand():
    attention = 4 * (512 * 512 + 512)
    inner = 512 * 2048 + 2048 + 2048 * 512 + 512
    norm = 2 * 512
    encoder, decoder = attention + inner + 2 * norm, 2 * attention + inner + 3 * norm
    expected = 40_960 * 512 + 6 * (encoder + decoder)
    assert parameters("base") == expected


def test_the_vocabulary_that_fits_the_printed_count_fits_to_the_row():
    settings = resolved("big")
    least, most = static.fitting_vocabulary(settings, 213)
    assert (least, most) == (35_296, 36_272)
    for size, fits in ((least - 1, 0), (least, 1), (most, 1), (most + 1, 0)):
        count = static.parameters(with_table_rows(settings, size))
        assert (round(count / 1e6) == 213) == fits


def test_the_vocabularies_that_fit_all_other_rows():
    def all_fit(size):
        more = size - 40_960  # rows of d_model numbers
        return all(
            round((parameters(row) + more * resolved(row).model.d_model) / 1e6)
            == TABLE3[row].millions
            for row in PRINTED
        )

    fit = [size for size in range(40_930, 41_163) if all_fit(size)]
    assert (fit[0], fit[-1], len(fit)) == (40_932, 41_160, 229)
    assert f"{fit[0]:,} to {fit[-1]:,}" in static._parameter_table({}).note


def test_the_counted_step_is_the_traced_step_of_a_full_batch():
    settings = resolved("C_N2")
    size = models.configured_vocabulary(settings)
    settings = sizes.here(settings, size)
    model = models.make(settings, size, size)
    state = jax.eval_shape(lambda: steps.init_state(settings, model))
    ids = jax.ShapeDtypeStruct((25_000 // 32, 32), np.int32)
    step = steps.make_train_step(settings, model)
    traced = flops.traced(step, state, {"source": ids, "target": ids})
    assert static.step_operations(settings) == traced


def test_r_drop_reads_each_pair_twice():
    twice = static.step_operations(resolved("r_drop"))
    assert twice == 2 * static.step_operations(resolved("base"))


def test_no_pair_is_longer_than_the_configuration_lets_in():
    settings = resolved("base")
    data = dataclasses.replace(settings.data, max_length=20)
    short = dataclasses.replace(settings, data=data)
    expected = flops.train_step(settings.model, 25_000 // 20, 20, 20, 40_960)
    assert static.step_operations(short) == expected


@pytest.mark.parametrize("row", ["base", "big"])
def test_the_paper_s_method_gives_the_paper_s_cost(row):
    (system,) = (s for s in TABLE2 if s.name == f"Transformer ({row})")
    assert f"{static.paper_cost(row):.1e}" == f"{system.flops['en_de']:.1e}"


def test_the_paper_names_no_hours_of_other_rows():
    assert static.paper_cost("C_d1024") is None


def test_the_tables_of_three_rows(monkeypatch):
    monkeypatch.setattr(static, "_LENGTHS", (17,))
    monkeypatch.delattr(complexity, "seconds")  # measured only where asked for
    # The fits are tested with the measurements; here any law will do.
    law = complexity.Law(1.0, {"n": 1.0})
    monkeypatch.setattr(complexity, "path_law", lambda name: law)
    rows = {row: resolved(row) for row in ("base", "A_h1", "big")}
    size, cost, operations, chains, paths, more = static.tables(rows)

    assert column(size, "ours") == {"base": "65.11", "A_h1": "65.11", "big": "218.30"}
    assert column(size, "paper") == {"base": "65", "A_h1": "", "big": "213"}
    agrees = column(size, "agree to the printed digit")
    assert (agrees["base"], agrees["A_h1"]) == ("yes", "")
    assert agrees["big"].startswith("no, 35,296 to 36,272 ")

    for row, settings in rows.items():
        step = static.step_operations(settings)
        assert float(column(cost, "per step")[row]) == pytest.approx(step, rel=5e-3)
        run = float(column(cost, "the run")[row])
        assert run == pytest.approx(step * settings.train.steps, rel=5e-3)
    estimates = {"base": "3.3e18", "A_h1": "", "big": "2.3e19"}
    assert column(cost, "paper's estimate") == estimates

    printed = ["n^2 d", "n d^2", "n d^2", "k n d^2", "r n d"]
    assert list(column(operations, "paper").values()) == printed
    # 4 n^2 d of attention, 12 and 16 n d^2 of the cells.
    crossing = "below 3 d (recurrent, GRU) and 4 d (recurrent, LSTM)."
    assert operations.note.endswith(crossing)
    assert list(column(chains, "paper").values()) == ["1", "n", "n", "1", "1"]
    assert list(column(chains, "n = 17").values()) == ["2", "34", "17", "1", "2"]
    printed = ["1", "n", "n", "n/k", "log_k n", "n/r"]
    assert list(column(paths, "paper").values()) == printed
    at_17 = list(column(paths, "n = 17, k = r = 9").values())
    assert at_17 == ["1", "17", "17", "2", "2", "4"]
    counted = list(column(more, "counted there").values())
    # 17 positions of width 512, k = 9; 20 in blocks of 4 with 12 keys for each.
    by_hand = (
        2 * 9 * 17 * 512 + 2 * 17 * 512**2,
        2 * 17 * 9 * 512 * 1024,
        2 * 17 * (512 * 256 + 9 * 256 * 256 + 256 * 512),
        2 * 2 * 20 * 12 * 512,
    )
    assert counted == [f"{count:,}" for count in by_hand]
    # 16 positions back by 8, or 4 each way; ByteNet's go back by 8, then by 16.
    lengths = list(column(more, "maximum path length").values())
    assert lengths == ["2", "4", "2", "4"]


def test_the_picture_of_operations_names_each_layer_with_its_law():
    (svg,) = static.figures()
    texts = "".join(ElementTree.fromstring(svg).itertext())
    for name, row in complexity.ROWS.items():
        powers = " ".join(f"{x}^{p:.2f}" for x, p in row.operations.items())
        assert name in texts and powers in texts


def test_table_and_picture_show_one_measurement_of_time(monkeypatch):
    calls = []

    def seconds(lengths, *sizes):
        calls.append(lengths)
        return {row: [0.001 * n for n in lengths] for row in complexity.ROWS}

    monkeypatch.setattr(complexity, "seconds", seconds)
    monkeypatch.setattr(static, "_TIMED_LENGTHS", (4, 8))
    table = static._time_table()
    assert column(table, "n = 8") == dict.fromkeys(complexity.ROWS, "8")
    assert len(static.figures(timed=True)) == 2
    assert calls == [(4, 8), (4, 8)]
