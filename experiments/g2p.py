"""Words to phonemes: data that six layers learn in minutes, with published scores.

A folder has ``train``, ``dev`` and perhaps ``test``, each a ``.graphemes`` file and a
``.phonemes`` file (plain or .gz): line n of both is one word, its symbols separated by
spaces. The English and Dutch data are the high and medium resource settings of the
SIGMORPHON 2021 shared task (sigmorphon/2021-task1, CC BY-SA 3.0, from Wiktionary).
Scores are word and phoneme error rates in percent; lower is better.

``:eng_us``, 33,344 words, is measured on the development words, of which an ensemble of
ten transducers got 45.1 % wrong (the task's README); ``:dut``, 8,000 words, on the test
words: 14.7 % by that ensemble, 16.9 % by one Transformer of 7.4 M parameters
(juletx/writing-systems, README).

    transformer train --config=experiments/g2p.py --config.data.dir=g2p/eng_us \\
        --workdir=runs/eng_us
    transformer train --config=experiments/g2p.py:dut --config.data.dir=g2p/dut \\
        --workdir=runs/dut
"""

import base
from ml_collections import ConfigDict

# Which words a language is tested on, for how many steps it is trained, and its
# learning rate: scale and warm-up of equation 3. Each gets fewer words wrong with its
# own rate than with the other's or with 0.226 and 400; English also gets fewer wrong
# than after 8,000 steps (see docs/results.md).
LANGUAGES = {"eng_us": ("dev", 12000, 0.452, 1000), "dut": ("test", 6000, 0.904, 2000)}


def get_config(language: str = "eng_us") -> ConfigDict:
    """Return the configuration of a language."""
    config = base.get_config()
    test, steps, scale, warmup = base.choose(LANGUAGES, language)
    config.name = f"g2p_{language}"
    config.data.source = "text"
    config.data.dir = f"g2p/{language}"
    config.data.name = ""
    config.data.source_language = "graphemes"
    config.data.target_language = "phonemes"
    config.data.validation = "dev"
    config.data.test = test
    config.data.max_length = 40
    config.data.measure = "errors"
    config.tokenizer.kind = "whitespace"
    config.tokenizer.vocab_size = 0
    # With 2,048, or with words of similar length in each batch (8 shapes instead of 2),
    # it learns less in the same time, though there is less padding (measured with a
    # peak of .001, after 400 steps).
    config.batch.tokens = 1024
    config.batch.shapes = 2
    config.batch.length_multiple = 1
    config.model.d_model = 128
    config.model.d_ff = 512
    config.model.d_k = 16
    config.model.d_v = 16
    config.optimizer.scale = scale  # peaks of .0013 and .0018
    config.optimizer.warmup = warmup
    config.train.steps = steps
    config.train.evaluate_every = 200
    config.train.checkpoint_every = 200
    config.train.checkpoint_minutes = 0.0
    config.decode.beam = 5
    config.decode.average = 5
    return config
