"""The ids that mean the same in every vocabulary."""

PAD, UNK, BOS, EOS = range(4)
SPECIAL = ("<pad>", "<unk>", "<s>", "</s>")  # their pieces
