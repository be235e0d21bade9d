"""The learning rate of GNMT's recipe, beside the rule of the code it is from."""

import pytest
from support.configs import experiment

from transformer import config
from transformer.run.course import Course


@pytest.mark.parametrize("step", [1, 170_001, 186_990, 187_010, 204_010, 339_999])
def test_the_rate_is_halved_as_tensorflow_nmt_does(step):
    settings = config.resolve(experiment("gnmt"))
    total = settings.train.steps
    # nmt/model.py, luong10: from half of the steps on, a staircase of ten stairs.
    start, stair = total // 2, (total - total // 2) // 10
    halved = max(step - start, 0) // stair
    epochs = step * 128 / 4.5e6  # of 4.5 M pairs
    factor = Course().at(epochs, settings.optimizer).factor
    assert factor == 0.5**halved
