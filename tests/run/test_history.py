"""metrics.jsonl is what was written, or is refused; no kill makes a false alarm."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer.config import UserError
from transformer.files import sealed
from transformer.run.history import History, read_metrics, validations


class Killed(BaseException):
    pass


def write_record(workdir, claim):
    sealed.write_json(workdir / "record.json", {"metrics": dict(claim)})


def opened(workdir, step):
    return History(workdir, step, lambda claim: write_record(workdir, claim))


def add(history, steps):
    for step in steps:
        history.add({"step": step, "loss": 1 / step})


@pytest.fixture
def workdir(tmp_path):
    """Six steps; the record was written after the fourth."""
    history = opened(tmp_path, 0)
    add(history, range(1, 5))
    write_record(tmp_path, history.claim())
    add(history, range(5, 7))
    history.close()
    return tmp_path


def steps_of(workdir):
    return [line["step"] for line in read_metrics(workdir)]


@given(st.lists(st.integers(0, 9), max_size=8), st.integers(1, 9))
def test_exactly_the_steps_up_to_one_are_kept(tmp_path_factory, steps, step):
    path = tmp_path_factory.mktemp("cut") / "metrics.jsonl"
    path.write_text("".join(f'{{"step": {n}}}\n' for n in sorted(steps)) + '{"step')
    History(path.parent, step).close()
    kept = [json.loads(line)["step"] for line in path.read_text().splitlines()]
    assert kept == [n for n in sorted(steps) if n <= step]


@pytest.mark.parametrize("step", [2, 4, 5])  # before, at and after the record
@pytest.mark.parametrize("moment", ["record", "cut", "line", "end"])
def test_a_kill_at_any_moment_of_a_resume_is_no_damage(workdir, step, moment):
    def record(claim):
        if moment == "record":
            raise Killed
        write_record(workdir, claim)
        if moment == "cut":
            raise Killed

    try:
        history = History(workdir, step, record)
        if moment == "line":
            history._file.write(b'{"step": ')  # torn
        else:
            add(history, range(step + 1, 8))
        history.close()
    except Killed:
        pass
    assert steps_of(workdir)[:step] == [*range(1, step + 1)]
    history = opened(workdir, 2)
    add(history, [3])
    write_record(workdir, history.claim())
    history.close()
    assert steps_of(workdir) == [1, 2, 3]


@pytest.mark.parametrize("place", [0, 9, 40, -70])
def test_a_flipped_bit_of_what_the_record_claims(workdir, place):
    path = workdir / "metrics.jsonl"
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    for reader in (read_metrics, lambda folder: opened(folder, 4)):
        with pytest.raises(UserError, match=r"metrics.jsonl: .* changed; restore it"):
            reader(workdir)
    assert path.read_bytes() == content


@pytest.mark.parametrize("left", [0, 30, None])
def test_lines_that_are_gone(workdir, left):
    path = workdir / "metrics.jsonl"
    content = path.read_bytes()
    path.unlink()
    if left is not None:
        path.write_bytes(content[:left])
    for reader in (read_metrics, lambda folder: opened(folder, 4)):
        with pytest.raises(UserError, match=r"expected at least the \d+ bytes.*move"):
            reader(workdir)
    (workdir / "record.json").unlink()
    opened(workdir, 4).close()  # on without what is gone
    assert steps_of(workdir) == ([1] if left == 30 else [])


@pytest.mark.parametrize(
    "line", ["{", "[1]", "3", '{"loss": 1}', '{"step": "1"}', '{"step": 1, "loss": []}']
)
def test_a_line_that_is_no_metrics(tmp_path, line):
    (tmp_path / "metrics.jsonl").write_text(f'{{"step": 1}}\n{line}\n')
    for reader in (read_metrics, lambda folder: opened(folder, 4)):
        with pytest.raises(UserError, match=r"metrics.jsonl, line 2: expected one"):
            reader(tmp_path)


def test_a_perplexity_that_is_not_finite_is_read_and_is_no_validation(tmp_path):
    texts = (
        '"loss": null',
        '"validation_perplexity": 9.5',
        '"validation_perplexity": null',
    )
    lines = [f'{{"step": {n}, {text}}}\n' for n, text in enumerate(texts, 1)]
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    assert steps_of(tmp_path) == [1, 2, 3]
    assert validations(read_metrics(tmp_path)) == ((2, 9.5),)


def test_a_run_that_resumes_while_it_is_read_is_no_damage(workdir, monkeypatch):
    from transformer.run import history

    read = history._content

    def late(path):
        monkeypatch.undo()
        opened(workdir, 2).close()  # cuts off what the reader's record claims
        return read(path)

    monkeypatch.setattr(history, "_content", late)
    assert steps_of(workdir) == [1, 2]
