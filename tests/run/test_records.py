"""What a run writes down can be read again, and outlives kills."""

import io
import json
import re
import sys
import types

import pytest

from transformer.run import records
from transformer.run.records import Records


def lines(workdir):
    text = (workdir / "metrics.jsonl").read_text()
    assert text.endswith("\n") or not text
    return [json.loads(line) for line in text.splitlines()]


def log_steps(workdir, first, last, resumed_at=0):
    with Records(workdir, 10, resumed_at, log=lambda _: None) as run:
        for step in range(first, last + 1):
            run.log(step, {"loss": 1 / step}, {"seconds": 0.25 * first})
            if step % 2 == 0:
                run.log(step, {"validation/nll": 2 / step})


def test_a_line_holds_values_and_timing_as_keys(tmp_path):
    with Records(tmp_path, 10, log=lambda _: None) as run:
        run.log(3, {"loss": 0.5, "skipped": 0}, {"seconds": 2.0})
        run.log(4, {"loss": float("nan"), "grad_norm": float("inf")})
        # On disk at once: a kill must not lose it.
        assert len(lines(tmp_path)) == 2
    assert lines(tmp_path) == [
        {"step": 3, "loss": 0.5, "skipped": 0.0, "seconds": 2.0},
        {"step": 4, "loss": None, "grad_norm": None},
    ]


@pytest.mark.parametrize("killed_at", [3, 4, 5])
@pytest.mark.parametrize("torn", ["", '{"step": 5, "lo', '{"step": 3, "loss": 1}'])
def test_a_resumed_run_ends_with_the_lines_of_an_unbroken_one(
    tmp_path, killed_at, torn
):
    for name in ("whole", "broken"):
        (tmp_path / name).mkdir()
    log_steps(tmp_path / "whole", 1, 6)
    log_steps(tmp_path / "broken", 1, killed_at)
    with (tmp_path / "broken" / "metrics.jsonl").open("a") as file:
        file.write(torn)
    log_steps(tmp_path / "broken", 4, 6, resumed_at=3)

    def values(name):
        kept = lines(tmp_path / name)
        return [{k: v for k, v in x.items() if k != "seconds"} for x in kept]

    assert values("broken") == values("whole")
    assert len(values("whole")) == 9


def test_a_fresh_run_forgets_the_lines_of_one_without_a_checkpoint(tmp_path):
    log_steps(tmp_path, 1, 3)
    log_steps(tmp_path, 1, 1)
    assert [line["step"] for line in lines(tmp_path)] == [1]


def test_tensorboard_events_hold_the_same_numbers(tmp_path):
    from tensorboardX.proto.event_pb2 import Event

    with Records(tmp_path, 10, log=lambda _: None) as run:
        run.log(7, {"loss": 0.5}, {"seconds": 2.0})
    (file,) = (tmp_path / "tensorboard").iterdir()
    data, found = file.read_bytes(), {}
    while data:  # a record: length (8 bytes), checksum (4), event, checksum (4)
        length = int.from_bytes(data[:8], "little")
        event = Event.FromString(data[12 : 12 + length])
        data = data[16 + length :]
        for value in event.summary.value:
            found[value.tag] = (event.step, value.simple_value)
    assert found == {"loss": (7, 0.5), "seconds": (7, 2.0)}


def test_plain_lines_where_there_is_no_terminal(tmp_path, monkeypatch):
    clock = iter([100.0, 110.0, 115.0])
    fake = types.SimpleNamespace(monotonic=lambda: next(clock))
    monkeypatch.setattr(records, "time", fake)
    said: list[str] = []
    with Records(tmp_path, 2000, log=said.append) as run:
        run.show(100, 4.25, 12345.6)
        run.show(200, 3.0, 9.4)
        run.show(2000, 1.0, 9.4)
        run.log_line("best so far")
    assert said == [
        "step 100/2,000  loss 4.250  12,346 tokens/s  ? left",
        "step 200/2,000  loss 3.000  9 tokens/s  0:03:00 left",
        "step 2,000/2,000  loss 1.000  9 tokens/s  0:00:00 left",
        "best so far",
    ]


def test_a_bar_on_a_terminal(tmp_path, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    with Records(tmp_path, 10, log=pytest.fail) as run:
        run.show(5, 4.25, 12345.6)
        run.log_line("[bold] best so far")
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    assert "5/10" in text and "loss 4.250  12,346 tokens/s  ? left" in text
    assert "[bold] best so far" in text
