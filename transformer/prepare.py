"""From sentence pairs to a prepared folder: tokenizers, encoded corpora, references.

A folder is made next to its place and moved there when it is complete, so a killed
preparation leaves nothing behind that looks finished.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import glob
import itertools
import os
import pathlib
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from transformer.config import Config, UserError, flatten, upgraded
from transformer.data import sources, tokenizers
from transformer.data.corpus import Corpus, Counts, Frames, write_corpus
from transformer.data.folder import MANIFEST, Folder, records_of
from transformer.data.tokenizers.sentence_piece import checksum
from transformer.files import lock, sealed
from transformer.parallel import hosts

_FORMAT = 1  # of the folder; another number means: prepare again
_Part = Literal[sources.Split, "tokenizer"]  # of what a folder is made from
_PARTS: tuple[_Part, ...] = (*sources.SPLITS, "tokenizer")


@dataclasses.dataclass(frozen=True)
class Prepared:
    """An opened prepared folder.

    Attributes:
      files: where it is, and what manifest.json says about it.
      vocabulary: tokenizers of both languages.
      corpora: split -> encoded pairs.
    """

    files: Folder
    vocabulary: tokenizers.Vocabulary
    corpora: Mapping[sources.Split, Corpus]

    @property
    def folder(self) -> pathlib.Path:
        """The path of the folder."""
        return self.files.path

    @property
    def manifest(self) -> dict[str, Any]:
        """All that manifest.json says about it."""
        assert self.files.manifest is not None
        return self.files.manifest

    @property
    def checksums(self) -> Mapping[str, sources.Checksums]:
        """Split -> {input: {"lines": n, "sha256": hex}}, including given models."""
        return self.manifest["inputs"]

    def texts(self, split: sources.Split) -> tuple[list[str], list[str]]:
        """Return the source and target lines of "validation" or "test" as given."""
        return self._lines(split, "source"), self._lines(split, "target")

    def inputs(self, split: sources.Split) -> Sequence[Any]:
        """Return what is read: the source lines, or the arrays that they name."""
        source = self.corpora[split].source
        if isinstance(source, Frames):  # the files may be gone, and need no reading
            return [*source]
        return self.texts(split)[0]

    def _lines(self, split: sources.Split, side: str) -> list[str]:
        name, pairs = _text_name(split, side), len(self.corpora[split])
        lines = self.files.lines(name)
        if len(lines) != pairs:
            self.files.refuse(name, f"{pairs:,} lines", f"{len(lines):,}")
        return lines

    def references(self, split: sources.Split) -> list[str]:
        """Return the target lines as ``decode`` would write them, with joins undone."""
        return [self.vocabulary.target.plain(line) for line in self.texts(split)[1]]


def is_prepared(config: Config) -> bool:
    """Return whether the folder that ``data.prepared`` names exists."""
    named = config.data.prepared
    return bool(named) and _is_complete(pathlib.Path(named))


def _is_complete(folder: pathlib.Path) -> bool:
    return os.path.lexists(folder / MANIFEST)


def prepare(
    config: Config,
    workdir: str | pathlib.Path,
    log: Callable[[str], None] = lambda line: None,
    vocabulary: tokenizers.Vocabulary | None = None,
) -> Prepared:
    """Make the prepared folder of a run, or open it if it exists.

    Args:
      config: data and tokenizer decide the folder's content.
      workdir: holds the folder, ``corpus``, unless ``data.prepared`` names another.
      log: takes messages, one line at a time.
      vocabulary: to encode with, None = the one that the configuration asks for.

    Returns:
      The opened folder.

    Raises:
      UserError: for data that cannot be used, and for a folder that was made from
        another configuration or from inputs that have changed.
    """
    folder = pathlib.Path(config.data.prepared or pathlib.Path(workdir) / "corpus")
    if not _is_complete(folder):
        _check_place(folder)
        # What another run made in the meantime is checked like any other folder.
        if not hosts.primary() or _make(config, folder, log, vocabulary):
            while not _is_complete(folder):
                time.sleep(1)  # the primary process makes it, which may take hours
            return _open(folder)
    prepared = _open(folder)
    _check_config(config, prepared)
    _check_inputs(config, prepared, log)
    log(f"data: {folder} is prepared, {len(prepared.corpora['train']):,} pairs")
    if not prepared.files.recorded:
        log(
            f"data: {folder} was prepared by an earlier version, without digests: its "
            "files are read unverified"
        )
    return prepared


def _check_place(folder: pathlib.Path) -> None:
    """Refuse to prepare where something else already is."""
    try:
        found = "a folder without manifest.json" if os.listdir(folder) else ""
    except FileNotFoundError:
        found = "a broken link" if folder.is_symlink() else ""
    except NotADirectoryError:
        found = "a file" if os.path.lexists(folder) else ""
    except (OSError, ValueError) as error:
        found = str(error)
    if found:
        raise UserError(
            f"{folder}: expected a prepared corpus or nothing, found {found}; remove "
            "it or set data.prepared"
        )


def _open(path: pathlib.Path) -> Prepared:
    folder = Folder(path)
    manifest = folder.manifest
    if manifest is None:
        folder.refuse(MANIFEST, "a file")
    if manifest["format"] != _FORMAT:
        folder.refuse(MANIFEST, f"format {_FORMAT}", f"format {manifest['format']}")
    for part in _PARTS:
        if not isinstance(manifest["inputs"].get(part), dict):
            folder.refuse(MANIFEST, f"checksums of {part}")
    for name in folder.names:
        if not name.startswith("train."):  # large, and verified where it is read
            folder.verify(name)
    vocabulary = tokenizers.load_vocabulary(folder)
    if vocabulary.digest != manifest["vocabulary"]:
        folder.refuse(
            MANIFEST,
            f"vocabulary {vocabulary.digest[:12]}",
            f"{manifest['vocabulary'][:12]}: a file was changed",
        )
    corpora = {split: Corpus(folder, split) for split in sources.SPLITS}
    return Prepared(folder, vocabulary, corpora)


def _make(
    config: Config,
    folder: pathlib.Path,
    log: Callable[[str], None],
    vocabulary: tokenizers.Vocabulary | None,
) -> bool:
    """Make a folder; return False where another run finished it first."""
    folder = pathlib.Path(os.path.realpath(folder))  # no folder replaces a link
    # Another container may have the same host name and process id.
    whose = f"{os.getpid()}.{secrets.token_hex(4)}"
    partial = folder.with_name(_partial(folder) + whose)
    with contextlib.ExitStack() as stack:
        try:
            partial.parent.mkdir(parents=True, exist_ok=True)
            # Held before there is anything that others may take for abandoned.
            stack.enter_context(lock.marking(_mark_of(partial)))
            partial.mkdir()
        except OSError as error:
            raise UserError(
                f"{folder}: expected a writable folder, got: {error}; change the "
                "workdir or data.prepared"
            ) from None
        stack.callback(shutil.rmtree, partial, ignore_errors=True)
        _remove_abandoned(folder)
        try:
            _fill(config, partial, log, vocabulary)
        except OSError as error:
            if error.filename is not None or error.errno is None:
                raise
            # A full disk: writing to an open file names no path.
            raise OSError(error.errno, error.strerror, str(folder)) from error
        return _move(partial, folder)


def _partial(folder: pathlib.Path) -> str:
    """Return the beginning of the names of this host's preparations of a folder."""
    return f"{folder.name}.partial-{socket.gethostname()}-"


def _mark_of(partial: pathlib.Path) -> pathlib.Path:
    return partial.with_name(f"{partial.name}.lock")


def _remove_abandoned(folder: pathlib.Path) -> None:
    """Delete what killed preparations of this folder left, if they ran on this host."""
    for partial in folder.parent.glob(f"{glob.escape(_partial(folder))}*"):
        if partial.is_dir() and _is_abandoned(partial):
            shutil.rmtree(partial, ignore_errors=True)
            _mark_of(partial).unlink(missing_ok=True)


def _is_abandoned(partial: pathlib.Path) -> bool:
    """Return whether the process of a preparation is no longer running.

    Its id says so only within its container: a process in another container with the
    same host name is known by the lock that it holds.
    """
    pid = partial.name.rpartition("-")[2].partition(".")[0]
    if not pid.isdigit() or _runs(int(pid)):
        return False
    return not lock.is_marked(_mark_of(partial))


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _move(partial: pathlib.Path, folder: pathlib.Path) -> bool:
    try:
        os.replace(partial, folder)
    except OSError:
        if not _is_complete(folder):
            raise
        return False
    return True


def _fill(
    config: Config,
    folder: pathlib.Path,
    log: Callable[[str], None],
    vocabulary: tokenizers.Vocabulary | None,
) -> None:
    source = sources.open_source(config.data)
    inputs: dict[_Part, sources.Checksums]
    inputs = {part: source.checksums(part) for part in sources.SPLITS}
    inputs["tokenizer"] = _given_models(config) if vocabulary is None else {}
    if vocabulary is not None:
        log("tokenizer: taken from the same run as the parameters")
        vocabulary.save(folder)
    else:
        log(f"tokenizer: building ({config.tokenizer.kind})")
        vocabulary = tokenizers.build_vocabulary(
            config.tokenizer,
            lambda: source.pairs("train"),
            folder,
            vectors=config.data.vectors,
        )
    what = "features of source vectors" if config.data.vectors else "source pieces"
    log(f"tokenizer: {vocabulary.source.size:,} {what}")
    counts = {}
    for split in sources.SPLITS:
        pairs, longest, encoder = source.pairs(split), None, vocabulary
        if split == "train":
            passes = (source.pairs(split) for _ in range(config.tokenizer.samples))
            pairs = itertools.chain.from_iterable(passes)
            longest = config.data.max_length
            encoder = vocabulary.sampling(config.tokenizer)
            if rate := config.tokenizer.dropout:
                each = f"{config.tokenizer.samples} segmentations of each pair"
                log(f"train: {each}, with BPE dropout {rate:g}")
        else:
            pairs = _keeping_texts(pairs, folder, split)
        counts[split] = write_corpus(folder, split, pairs, encoder, longest, log)
        log(_sentence(split, counts[split]))
    _check_train_pairs(config, counts["train"])
    manifest = {
        "format": _FORMAT,
        "config": _own_config(config),
        "inputs": inputs,
        "vocabulary": vocabulary.digest,
        "pairs": {split: dataclasses.asdict(counts[split]) for split in counts},
        "files": records_of(folder),
    }
    sealed.write_json(folder / MANIFEST, manifest)


def _given_models(config: Config) -> sources.Checksums:
    """Return the checksums of the given tokenizer models."""
    given = {config.tokenizer.source_model, config.tokenizer.target_model} - {""}
    return {model: checksum(model) for model in sorted(given)}


def _check_train_pairs(config: Config, counts: Counts) -> None:
    wanted = config.data.train_pairs
    there = (counts.kept + counts.empty + counts.long) // config.tokenizer.samples
    if there < wanted:
        raise UserError(
            f"data.train_pairs: expected at most {there}, the training pairs there "
            f"are, got {wanted}; set it to 0 for all"
        )


def _sentence(split: str, counts: Counts) -> str:
    left_out = f"; left out {counts.empty:,} empty, {counts.long:,} too long"
    return f"{split}: {counts.kept:,} pairs{left_out if split == 'train' else ''}"


def _keeping_texts(
    pairs: Iterable[sources.Pair], folder: pathlib.Path, split: str
) -> Iterator[sources.Pair]:
    """Pass pairs on and write their texts, which evaluation needs.

    Raises:
      UserError: if there are pairs, but none with text on both sides.
    """
    number, any_text = 0, False
    with (
        open(folder / _text_name(split, "source"), "wb") as source,
        open(folder / _text_name(split, "target"), "wb") as target,
    ):
        for pair in pairs:
            number += 1
            source.write(pair[0].encode() + b"\n")
            target.write(pair[1].encode() + b"\n")
            any_text = any_text or all(map(str.strip, pair))
            yield pair
    if number and not any_text:
        raise UserError(
            f"data.{split}: expected sentence pairs to measure with, got {number:,}, "
            "none with text on both sides; give others"
        )


def _text_name(split: str, side: str) -> str:
    return f"{split}.{side}.txt"


def _own_config(config: Config) -> dict[str, Any]:
    """Return the part of a configuration that decides a prepared folder's content."""
    own = flatten(config.data, "data.") | flatten(config.tokenizer, "tokenizer.")
    del own["data.prepared"], own["data.measure"]
    own["init.vocabulary"] = config.init.vocabulary
    return own


def _check_config(config: Config, prepared: Prepared) -> None:
    old = upgraded(prepared.manifest["config"])
    new = _own_config(config)
    changed = [
        f"{k}: {old.get(k)!r} -> {new[k]!r}" for k in new if old.get(k) != new[k]
    ]
    if changed:
        raise UserError(
            f"{prepared.folder}: expected the configuration it was prepared with, got "
            f"{'; '.join(changed)}; set them back, or use another workdir or "
            "data.prepared"
        )


def _check_inputs(
    config: Config, prepared: Prepared, log: Callable[[str], None]
) -> None:
    """Refuse inputs that have changed, and report those that are gone."""
    opened = functools.cache(lambda: sources.open_source(config.data))
    for part in _PARTS:
        known = prepared.checksums[part]
        try:
            if part == "tokenizer":
                # None was read where the vocabulary was that of another run.
                now = _given_models(config) if known else {}
            else:
                now = opened().checksums(part)
        except UserError as error:
            log(
                f"data: could not compare all inputs of {part} with those of "
                f"{prepared.folder}: {error}"
            )
            now = sources.digests_of(known)
        if gone := sorted(known.keys() - now.keys()):
            which = f", from which {prepared.folder} was made,"
            what = f"{gone[0]}{which} is gone"
            if len(gone) > 1:
                what = f"{len(gone):,} inputs{which} are gone, the first {gone[0]}"
            log(f"data: {what}")
        if other := sources.changed(known, now):
            raise UserError(
                f"{other[0]}: expected the content that {prepared.folder} was made "
                "from, got other content; restore it, or remove that folder to prepare "
                "it again"
            )
