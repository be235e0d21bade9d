"""A run's record says what is needed to make the run again."""

import dataclasses
import subprocess

from support.configs import base

from transformer import config
from transformer.run import provenance
from transformer.run.folder import read_record
from transformer.run.provenance import write_run_record


def test_the_record_of_a_run(tmp_path):
    sums = {"train": {"a.en": {"lines": 2, "sha256": "00"}}}
    sizes = {"loss.block": 512}
    claim = {"bytes": 0, "sha256": "ab"}
    started = "2020-01-01T00:00:00+00:00"

    def written(settings, **more):
        write_run_record(
            tmp_path,
            settings,
            "cafe",
            sums,
            **more,
            sizes=sizes,
            metrics=claim,
            started=started,
        )
        return read_record(tmp_path)

    first = written(base(), tokens=0)
    assert first["ended"] is None and first["tokens"] == 0
    assert first["metrics"] == claim and first["changes"] == []
    changed = dataclasses.replace(base(), seed=7)
    sizes = {"loss.block": 1024}  # it went on on another device
    record = written(changed, tokens=12, end={"vain": 2})
    assert record["course"] == {"vain": 2} and first["course"] is None
    assert record["started"] == started
    assert record["ended"] > record["started"] and record["ended"].endswith("+00:00")
    assert record["seed"] == 7 and record["tokens"] == 12
    assert record["config_digest"] == config.digest(changed) != first["config_digest"]
    assert record["vocabulary_digest"] == "cafe" and record["data"] == sums
    assert {"python", "jax", "flax", "optax", "orbax-checkpoint", "numpy"} <= set(
        record["versions"]
    )
    assert record["devices"][0].startswith("cpu: ")
    assert record["sizes"] == sizes and first["sizes"] == {"loss.block": 512}
    assert record["machine"]["operands"] in ("bfloat16", "float32")


def test_git_revision_is_that_of_the_tree_that_holds_the_code(tmp_path, monkeypatch):
    def git(*arguments):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        command = ["git", "-C", tmp_path, *identity, *arguments]
        return subprocess.run(
            command, check=True, capture_output=True, text=True
        ).stdout.strip()

    file = tmp_path / "provenance.py"
    file.write_text("")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert provenance._revision_of(file) is None
    git("init")
    assert (
        provenance._revision_of(file) is None
    )  # there is a repository, without the file
    git("add", "provenance.py")
    git("commit", "-m", "a")
    assert provenance._revision_of(file) == git("rev-parse", "HEAD")
    file.write_text("x")
    assert provenance._revision_of(file) == git("rev-parse", "HEAD") + "-dirty"
    monkeypatch.setenv("PATH", "")
    assert provenance._revision_of(file) is None
