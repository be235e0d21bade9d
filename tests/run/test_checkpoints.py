"""Checkpoints survive kills and damage, and give back exactly what was saved."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from transformer.config import UserError
from transformer.run import checkpoints as checkpoints_module
from transformer.run.checkpoints import Checkpoints, average, save_inference


class State(NamedTuple):
    params: Any
    optimizer: Any
    key: Any
    step: Any


def make_state(step: int, width: int = 3) -> State:
    params = {
        "embedding": jnp.arange(4.0 * width).reshape(4, width) + step,
        "layer 0": {"kernel": jnp.full((width, 2), 0.1 * step, jnp.bfloat16)},
    }
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.1))
    keys = {"typed": jax.random.key(step), "raw": jax.random.PRNGKey(step)}
    return State(params, optimizer.init(params), keys, jnp.int32(step))


def abstract(width: int = 3) -> State:
    return jax.eval_shape(lambda: make_state(0, width))


def numbers(tree: Any) -> list[np.ndarray]:
    def plain(leaf: Any) -> np.ndarray:
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        return np.asarray(leaf)

    return [plain(leaf) for leaf in jax.tree.leaves(tree)]


def assert_same(got: Any, expected: Any) -> None:
    assert str(jax.tree.structure(got)) == str(jax.tree.structure(expected))
    for a, b in zip(numbers(got), numbers(expected), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def save_all(folder: Path, steps: list[int], **options: Any) -> None:
    with Checkpoints(folder, keep=10) as checkpoints:
        for step in steps:
            checkpoints.save(step, make_state(step), {"position": step}, **options)


def listing(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_state_and_metadata_come_back_exactly(tmp_path):
    metadata = {"config": {"model": {"heads": 4}}, "vocabulary": "ab12", "position": 7}
    state = make_state(7)
    with Checkpoints(tmp_path / "new" / "folder", keep=1) as checkpoints:
        checkpoints.save(7, state, metadata, metric=1.5)
        step, tree, found = checkpoints.restore(abstract())
    assert (step, found) == (7, metadata)
    assert_same(tree, state)
    assert isinstance(tree, State)


def test_arrays_may_be_donated_as_soon_as_save_returns(tmp_path):
    overwrite = jax.jit(lambda x: x * 0 - 1, donate_argnums=0)
    like = jax.ShapeDtypeStruct((64, 1024), jnp.float32)
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        for step in range(1, 4):
            array = jnp.full((64, 1024), step, jnp.float32)
            checkpoints.save(step, {"params": array}, {})
            overwrite(array).block_until_ready()
            _, tree, _ = checkpoints.restore({"params": like})
            np.testing.assert_array_equal(tree["params"], step)


def test_parameters_alone(tmp_path):
    save_all(tmp_path, [3])
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        _, tree, metadata = checkpoints.restore({"params": abstract().params})
    assert metadata == {"position": 3}
    assert_same(tree, {"params": make_state(3).params})


def test_restored_arrays_lie_where_the_abstract_tree_says(tmp_path):
    save_all(tmp_path, [3])
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    leaf = jax.ShapeDtypeStruct((4, 3), jnp.float32, sharding=sharding)
    wanted = {"params": abstract().params | {"embedding": leaf}}
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        _, tree, _ = checkpoints.restore(wanted)
    assert tree["params"]["embedding"].sharding == sharding


def test_the_last_and_the_best_are_kept_across_sessions(tmp_path):
    metrics = [3.0, 1.0, float("nan"), 2.0, None, float("inf"), 4.0]
    for step, metric in enumerate(metrics, start=1):
        with Checkpoints(tmp_path, keep=2) as checkpoints:
            checkpoints.save(step, make_state(step), {}, metric)
    assert checkpoints.steps() == [2, 6, 7]
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        checkpoints.save(8, make_state(8), {}, 0.5)
    assert checkpoints.steps() == [7, 8]


def test_each_record_is_read_once(tmp_path, monkeypatch):
    save_all(tmp_path, [1, 2, 3])
    read, record = [], checkpoints_module._record

    def counted(path: Path) -> dict[str, Any]:
        read.append(int(path.name))
        return record(path)

    monkeypatch.setattr(checkpoints_module, "_record", counted)
    with Checkpoints(tmp_path, keep=10) as checkpoints:
        for step in range(4, 8):
            checkpoints.save(step, make_state(step), {}, float(step))
        checkpoints.wait()
        assert (checkpoints.best(), read) == (4, [1, 2, 3])
        # A step that is made again has the metric of the last time.
        checkpoints.save(4, make_state(4), {}, 9.0)
        checkpoints.save(5, make_state(5), {}, 7.0)
        checkpoints.wait()
        assert (checkpoints.best(), read) == (5, [1, 2, 3])


def test_what_a_kill_left_behind_the_last_save_is_removed(tmp_path):
    with Checkpoints(tmp_path, keep=9) as checkpoints:
        for step, metric in enumerate([3.0, 1.0, 2.0, 4.0], start=1):
            checkpoints.save(step, make_state(step), {}, metric)
    (tmp_path / "3.removed").mkdir()
    theirs = ["3.backup", "4.saving-it", "notes"]  # what a user put there
    for name in theirs:
        (tmp_path / name).mkdir()
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.clean()
    assert sorted(os.listdir(tmp_path)) == sorted(["2", "4", *theirs])  # best, last


def test_a_temporary_checkpoint_is_replaced_by_the_next(tmp_path):
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        checkpoints.save(10, make_state(10), {})
        checkpoints.save(20, make_state(20), {})
        checkpoints.save(23, make_state(23), {}, 0.5, temporary=True)  # not the best
        assert checkpoints.restore(abstract())[0] == 23
        assert checkpoints.steps() == [10, 20, 23]
        checkpoints.save(30, make_state(30), {})
    assert checkpoints.steps() == [20, 30]


@pytest.mark.parametrize("damage", ["delete", "truncate", "flip"])
def test_damage_to_any_file_is_told_and_the_one_before_is_used(tmp_path, damage):
    save_all(tmp_path, [1, 2])
    files = [p for p in (tmp_path / "2").rglob("*") if p.is_file()]
    assert len(files) > 5
    for file in files:
        content = file.read_bytes()
        if damage == "delete":
            file.unlink()
        elif damage == "truncate":
            file.write_bytes(content[: len(content) // 2])
        else:
            middle = len(content) // 2
            flipped = bytes([content[middle] ^ 1]) if content else b"x"
            file.write_bytes(content[:middle] + flipped + content[middle + 1 :])
        changed = not file.exists() or file.read_bytes() != content
        said: list[str] = []
        before = listing(tmp_path)
        with Checkpoints(tmp_path, keep=1, log=said.append) as checkpoints:
            step, tree, _ = checkpoints.restore(abstract())
        assert step == (1 if changed else 2), file
        assert len(said) == changed
        assert_same(tree, make_state(step))
        assert listing(tmp_path) == before, "reading must not change the folder"
        file.write_bytes(content)


def test_a_kill_between_two_renames_loses_no_checkpoint(tmp_path):
    save_all(tmp_path, [1, 2])
    (tmp_path / "1").rename(tmp_path / "2.removed")
    (tmp_path / "2").rename(tmp_path / "2.saving")  # complete: it has its digests
    (tmp_path / "3.saving").mkdir()
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.recover()
        assert checkpoints.steps() == [2]
        assert checkpoints.restore(abstract())[0] == 2
        checkpoints.clean()
    assert [path.name for path in tmp_path.iterdir()] == ["2"]


def test_the_digest_of_what_was_restored_outlives_it(tmp_path):
    save_all(tmp_path, [1])
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        before = checkpoints.digest(1)
        checkpoints.restore(abstract())
        shutil.rmtree(tmp_path / "1")  # by the run, which goes on
        assert checkpoints.digest(1) == before


def test_a_file_that_was_not_saved_is_damage_too(tmp_path):
    save_all(tmp_path, [1, 2])
    (tmp_path / "2" / "more").touch()
    said: list[str] = []
    with Checkpoints(tmp_path, keep=1, log=said.append) as checkpoints:
        assert checkpoints.restore(abstract())[0] == 1
    assert "file more is not what was saved" in said[0]


@pytest.mark.parametrize("digests", [b"", b"{", b"[1, 2]", b"[[1, 2]]", b'{"a": []}'])
def test_damaged_digests(tmp_path, digests):
    save_all(tmp_path, [1, 2])
    (tmp_path / "2" / "digests.json").write_bytes(digests)
    said: list[str] = []
    with Checkpoints(tmp_path, keep=1, log=said.append) as checkpoints:
        assert checkpoints.restore(abstract())[0] == 1
    assert len(said) == 1 and str(tmp_path / "2") in said[0] and "\n" not in said[0]


def no_answer(path: Path) -> None:
    """Make reading a file fail like a disk that does not answer, even for root."""
    if not Path("/proc/self/mem").exists():
        pytest.skip("no /proc here, whose file mem cannot be read from its beginning")
    path.unlink()
    path.symlink_to("/proc/self/mem")


@pytest.mark.parametrize("name", ["digests.json", "_CHECKPOINT_METADATA"])
@pytest.mark.parametrize("step", [None, 2])
def test_a_checkpoint_that_cannot_be_read_is_not_damaged(tmp_path, name, step):
    save_all(tmp_path, [1, 2])
    no_answer(tmp_path / "2" / name)
    with (
        pytest.raises(OSError, match="Input/output"),
        Checkpoints(tmp_path, keep=2, log=pytest.fail) as checkpoints,
    ):
        checkpoints.restore(abstract(), step)


def test_the_best_checkpoint_stays_where_it_cannot_be_read(tmp_path):
    for step, metric in enumerate([0.1, 0.5], 1):
        save_all(tmp_path, [step], metric=metric)
    no_answer(tmp_path / "1" / "_CHECKPOINT_METADATA")
    for use in ("best", "save"):
        with (
            pytest.raises(OSError, match="Input/output"),
            Checkpoints(tmp_path, keep=1, log=pytest.fail) as checkpoints,
        ):
            if use == "best":
                checkpoints.best()
            checkpoints.save(3, make_state(3), {})
        assert (tmp_path / "1").is_dir()


def test_a_checkpoint_that_may_not_be_listed_is_not_damaged(tmp_path):
    save_all(tmp_path, [1, 2])
    with tempfile.TemporaryDirectory() as place:  # tmp_path is closed to other users
        shutil.copytree(tmp_path, place, dirs_exist_ok=True)
        os.chmod(place, 0o755)
        closed = Path(place, "2", "state")
        closed.chmod(0)
        user = os.geteuid()
        os.seteuid(user or 65534)  # root may list everything
        try:
            with (
                pytest.raises(PermissionError, match="2/state"),
                Checkpoints(Path(place), keep=2, log=pytest.fail) as checkpoints,
            ):
                checkpoints.restore(abstract())
        finally:
            os.seteuid(user)
            closed.chmod(0o755)


def test_a_damaged_checkpoint_is_not_the_best_and_reported_once(tmp_path):
    for step, metric in enumerate([3.0, 1.0, 2.0], 1):
        save_all(tmp_path, [step], metric=metric)
    (tmp_path / "2" / "_CHECKPOINT_METADATA").write_text("rubbish")
    said: list[str] = []
    with Checkpoints(tmp_path, keep=3, log=said.append) as checkpoints:
        assert [checkpoints.best() for _ in range(2)] == [3, 3]
    assert len(said) == 1
    assert "2 is damaged" in said[0] and "cannot be the best" in said[0]


def test_a_run_that_went_back_replaces_the_damaged_checkpoint(tmp_path):
    save_all(tmp_path, [1, 2, 3])
    (tmp_path / "3" / "_CHECKPOINT_METADATA").write_text("rubbish")
    with Checkpoints(tmp_path, keep=3, log=lambda _: None) as checkpoints:
        assert checkpoints.restore(abstract())[0] == 2
        checkpoints.save(3, make_state(33), {})
        assert_same(checkpoints.restore(abstract())[1], make_state(33))
    assert checkpoints.steps() == [1, 2, 3]


def test_what_a_kill_left_does_not_count_and_is_cleared_by_the_next_save(tmp_path):
    save_all(tmp_path, [1, 2])
    (tmp_path / "2").rename(tmp_path / "2.saving")  # it was killed before that
    (tmp_path / "3.saving.orbax-checkpoint-tmp" / "state").mkdir(parents=True)
    (tmp_path / "notes").mkdir()
    with Checkpoints(tmp_path, keep=3, log=pytest.fail) as checkpoints:
        assert checkpoints.steps() == [1]
        assert checkpoints.restore(abstract())[0] == 1
        checkpoints.save(2, make_state(2), {})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["1", "2", "notes"]


def killed(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt  # nothing that comes after it is done


def test_what_is_removed_is_empty_before_and_counts_no_more(tmp_path, monkeypatch):
    # Google Drive keeps what is removed in a bin, and counts its bytes.
    save_all(tmp_path, [1, 2, 3])
    seen: dict[str, int] = {}

    def to_the_bin(folder: Path) -> None:
        assert not (folder / "digests.json").exists()
        files = {p.name: p.stat().st_size for p in folder.rglob("*") if p.is_file()}
        assert len(files) > 3
        seen.update({f"{folder.name}/{name}": size for name, size in files.items()})
        rmtree(folder)

    rmtree = shutil.rmtree
    monkeypatch.setattr("shutil.rmtree", to_the_bin)
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        checkpoints.save(4, make_state(4), {})
    assert checkpoints.steps() == [3, 4]
    assert {name.split("/")[0] for name in seen} == {"1.removed", "2.removed"}
    assert set(seen.values()) == {0}
    monkeypatch.undo()
    with Checkpoints(tmp_path, keep=2, log=pytest.fail) as checkpoints:
        assert_same(checkpoints.restore(abstract(), 3)[1], make_state(3))


ASIDE = "transformer.run.checkpoints._set_aside"
REMOVAL = [ASIDE, "pathlib.Path.unlink", "os.truncate", "shutil.rmtree"]


@pytest.mark.parametrize("at", REMOVAL)
def test_a_kill_amid_a_removal_leaves_a_whole_one(tmp_path, monkeypatch, at):
    save_all(tmp_path, [1, 2])
    with Checkpoints(tmp_path, keep=9, log=pytest.fail) as checkpoints:
        monkeypatch.setattr(at, killed)
        checkpoints.save(2, make_state(22), {})  # replaces the step 2 that is there
        with pytest.raises(KeyboardInterrupt):
            checkpoints.wait()
        monkeypatch.undo()
        # The old one has its name until the new one is whole, which takes it at once.
        found = make_state(2 if at == ASIDE else 22)
        step, tree, _ = checkpoints.restore(abstract())
        assert step == 2
        assert_same(tree, found)
        checkpoints.save(2, make_state(23), {})
        assert_same(checkpoints.restore(abstract())[1], make_state(23))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["1", "2"]


def test_an_emptied_checkpoint_whose_digests_came_back_is_passed_over(tmp_path):
    # A disk in the cloud may have kept the emptied files and not the removed one.
    save_all(tmp_path, [1, 2])
    for file in (tmp_path / "2").rglob("*"):
        if file.is_file() and file.name != "digests.json":
            os.truncate(file, 0)
    said: list[str] = []
    with Checkpoints(tmp_path, keep=2, log=said.append) as checkpoints:
        assert checkpoints.restore(abstract())[0] == 1
    assert len(said) == 1 and "2 is damaged" in said[0]


def test_a_linked_copy_keeps_what_a_removed_checkpoint_held(tmp_path):
    save_all(tmp_path / "run", [1])
    shutil.copytree(tmp_path / "run", tmp_path / "copy", copy_function=os.link)
    with Checkpoints(tmp_path / "run", keep=1) as checkpoints:
        checkpoints.save(2, make_state(2), {})
    assert checkpoints.steps() == [2]
    with Checkpoints(tmp_path / "copy", keep=1, log=pytest.fail) as checkpoints:
        assert_same(checkpoints.restore(abstract())[1], make_state(1))


SAVE_FOR_EVER = """
import itertools, sys
import jax.numpy as jnp
from transformer.run import checkpoints as checkpoints_module
from transformer.run.checkpoints import Checkpoints
with Checkpoints(sys.argv[1], keep=2) as checkpoints:
    for step in itertools.count(1):
        checkpoints.save(step, {"params": jnp.full((256, 256), step)}, {"step": step})
"""


def test_sigkill_leaves_whole_checkpoints_only(tmp_path):
    abstract_params = {"params": jax.ShapeDtypeStruct((256, 256), jnp.int32)}
    with subprocess.Popen([sys.executable, "-c", SAVE_FOR_EVER, tmp_path]) as process:
        checkpoints = Checkpoints(tmp_path, keep=2, log=pytest.fail)
        while len(checkpoints.steps()) < 2:
            assert process.poll() is None
            time.sleep(0.01)
        time.sleep(0.1 + np.random.default_rng().uniform(0, 0.1))
        process.send_signal(signal.SIGKILL)
    for step in checkpoints.steps():
        found, tree, metadata = checkpoints.restore(abstract_params, step)
        assert found == step and metadata == {"step": step}
        np.testing.assert_array_equal(tree["params"], step)


def test_another_shape_names_the_first_parameter_with_both_shapes(tmp_path):
    save_all(tmp_path, [1])
    with Checkpoints(tmp_path, keep=1, log=pytest.fail) as checkpoints:
        with pytest.raises(UserError) as error:
            checkpoints.restore(abstract(width=5))
    assert "expected params.embedding float32 (4, 5)" in str(error.value)
    assert "got float32 (4, 3)" in str(error.value)


def test_missing_and_surplus_parameters(tmp_path):
    save_all(tmp_path, [1])
    params = abstract().params
    fewer = {"params": {"embedding": params["embedding"]}}
    more = {"params": params | {"output": params["embedding"]}}
    with Checkpoints(tmp_path, keep=1, log=pytest.fail) as checkpoints:
        with pytest.raises(UserError, match="layer 0.kernel absent, got bfloat16"):
            checkpoints.restore(fewer)
        with pytest.raises(UserError, match="params.output float32.*got absent"):
            checkpoints.restore(more)


def test_nothing_to_restore(tmp_path):
    with Checkpoints(tmp_path / "none", keep=1) as checkpoints:
        assert checkpoints.steps() == []
        with pytest.raises(UserError, match="found none; train first"):
            checkpoints.restore(abstract())
    assert not (tmp_path / "none").exists()
    save_all(tmp_path, [1, 2])
    with Checkpoints(tmp_path, keep=1, log=lambda _: None) as checkpoints:
        with pytest.raises(UserError, match="step 1, 2 in .*got step 3"):
            checkpoints.restore(abstract(), 3)
        for step in (1, 2):
            (tmp_path / str(step) / "_CHECKPOINT_METADATA").write_text("{}")
        with pytest.raises(UserError, match="2 is damaged.*choose another"):
            checkpoints.restore(abstract(), 2)
        with pytest.raises(UserError, match="all of 1, 2 are damaged"):
            checkpoints.restore(abstract())


def test_a_save_that_fails_is_heard_of(tmp_path):
    (tmp_path / "file").write_text("")
    with Checkpoints(tmp_path / "file", keep=1) as checkpoints:
        with pytest.raises(FileExistsError):
            checkpoints.save(1, make_state(1), {})


def test_average_is_the_mean_in_more_than_float32(tmp_path):
    values = [[1e8, 1.0], [1.0, 2.0], [-1e8, 6.0]]  # summed in float32, 1e8 eats the 1
    with Checkpoints(tmp_path, keep=10) as checkpoints:
        for step, value in enumerate(values, start=1):
            state = {
                "params": {"w": jnp.array(value, jnp.float32)},
                "step": jnp.int32(0),
            }
            checkpoints.save(step, state, {"vocabulary": "abc"})
    like = {"w": jax.ShapeDtypeStruct((2,), jnp.float32)}
    mean = average(tmp_path, [1, 2, 3], like, "abc")
    np.testing.assert_array_equal(mean["w"], np.array([1 / 3, 3.0], np.float32))
    np.testing.assert_array_equal(average(tmp_path, [2], like, "abc")["w"], values[1])
    assert mean["w"].dtype == jnp.float32
    with pytest.raises(UserError, match=r"expected params.w float32 \(3,\)"):
        other = {"w": jax.ShapeDtypeStruct((3,), jnp.float32)}
        average(tmp_path, [1, 2], other, "abc")
    with pytest.raises(UserError, match="1: expected vocabulary abc, .* got abd"):
        average(tmp_path, [1, 2], like, "abd")


def test_training_cannot_resume_from_an_inference_only_checkpoint(tmp_path):
    params = make_state(4).params
    save_inference(tmp_path, 4, params, {"averaged": [3, 4]})
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        _, tree, metadata = checkpoints.restore({"params": abstract().params})
        assert metadata == {"averaged": [3, 4], "inference_only": True}
        assert_same(tree, {"params": params})
        with pytest.raises(
            UserError, match="inference-only.*no key, opt.*cannot resume"
        ):
            checkpoints.restore(abstract())


def test_digests_name_every_other_file(tmp_path):
    save_all(tmp_path, [1])
    digests = json.loads((tmp_path / "1" / "digests.json").read_text())
    files = {str(p.relative_to(tmp_path / "1")) for p in (tmp_path / "1").rglob("*")}
    assert {f for f in files if (tmp_path / "1" / f).is_file()} == {
        *digests,
        "digests.json",
    }
