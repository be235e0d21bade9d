"""Strips of handwritten digits, as the source ``vectors`` reads them.

``python -m transformer.tools.strips data/digits`` writes the arrays of a strip's
columns, and the number on each strip in words.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

from transformer.config import UserError
from transformer.data.sources.number_words import words

SIZE = 8  # rows of an image, and columns
_WHITE = 16.0  # the largest value of a pixel


class Made(NamedTuple):
    """What a split has.

    Attributes:
      images: how many of scikit-learn's 1,797 its strips are made of; no other split
        has them.
      strips: how many there are.
      digits: the most digits of a number.
      least: the fewest digits of a number.
      moved: pixels that an image may be moved by, up or down, and slanted by, to the
        left or to the right.
    """

    images: int
    strips: int
    digits: int = 3
    least: int = 3
    moved: int = 0


# Only training strips have short numbers, and images that are moved and slanted.
SPLITS = {
    "train": Made(1_297, 30_000, least=1, moved=1),
    "validation": Made(100, 300),
    "test": Made(400, 1_000),
}
_GAP = 3  # most empty columns before, between and after images


def write(
    folder: Path, splits: dict[str, Made] | None = None, seed: int = 0
) -> dict[str, set[int]]:
    """Write strips of all splits: ``SPLIT/00000.npy`` and line 0 of ``SPLIT.txt``, ...

    A strip is some of the 8 x 8 images side by side, the digits of a number, with 0 to
    3 empty columns before, between and after them. A frame is a column of it: 8 pixels
    from 0 to 1. The images are split at random: no image of one split is in another.

    Args:
      folder: to be made.
      splits: what each has, None = ``SPLITS``.
      seed: of all that is drawn.

    Returns:
      Split -> the images of its strips, by their numbers in scikit-learn.

    Raises:
      UserError: if there is something in the folder, or it cannot be written.
    """
    from sklearn import datasets

    images, labels = datasets.load_digits(return_X_y=True)
    images = images.reshape(-1, SIZE, SIZE) / _WHITE
    draw = np.random.Generator(np.random.Philox(seed))
    order, used = draw.permutation(len(images)), {}
    for split, made in (splits or SPLITS).items():
        own, order = order[: made.images], order[made.images :]
        by_digit = [own[labels[own] == digit] for digit in range(10)]
        place = _new_folder(folder / split)
        lines, taken = [], set()
        for i in range(made.strips):
            number = _number(made, draw)
            chosen = [int(draw.choice(by_digit[int(digit)])) for digit in str(number)]
            taken |= set(chosen)
            strip = _strip(images[chosen], made.moved, draw)
            np.save(place / f"{i:05}.npy", strip.T.astype(np.float32))
            lines.append(f"{words(number, 'en')}\n")
        (folder / f"{split}.txt").write_text("".join(lines))
        used[split] = taken
    return used


def _new_folder(place: Path) -> Path:
    try:
        place.mkdir(parents=True)
    except OSError as error:
        raise UserError(
            f"{place}: expected a new folder, got: {error.strerror}; choose another"
        ) from None
    return place


def _number(made: Made, draw: np.random.Generator) -> int:
    """Draw a number: its length first, all lengths equally likely."""
    digits = int(draw.integers(made.least, made.digits + 1))
    return int(draw.integers(10 ** (digits - 1) if digits > 1 else 0, 10**digits))


def _strip(images: np.ndarray, moved: int, draw: np.random.Generator) -> np.ndarray:
    """Put images (n, 8, 8) side by side: (8, columns)."""
    parts = [_gap(draw)]
    for image in images:
        down, slant = (int(x) for x in draw.integers(-moved, moved + 1, 2))
        parts += [_moved(image, down, slant), _gap(draw)]
    return np.concatenate(parts, axis=1)


def _moved(image: np.ndarray, down: int, slant: int) -> np.ndarray:
    """Move an image (8, 8) down, its top to the right and its foot to the left.

    What leaves the image is lost; what comes in is empty.
    """
    edge = max(abs(down), abs(slant))
    padded, middle = np.pad(image, edge), (SIZE - 1) / 2
    rows = []
    for row in range(SIZE):
        right = round(slant * (middle - row) / middle)
        rows.append(padded[edge + row - down][edge - right :][:SIZE])
    return np.stack(rows)


def _gap(draw: np.random.Generator) -> np.ndarray:
    return np.zeros((SIZE, int(draw.integers(0, _GAP + 1))))


def main(arguments: list[str]) -> int:
    """Write the strips to the folder that is named; return the exit code."""
    try:
        if len(arguments) != 1:
            raise UserError(
                f"expected one folder to write strips to, got {len(arguments)}; name it"
            )
        write(Path(arguments[0]))
    except UserError as error:
        print(f"transformer: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
