"""What validations decide, by hand."""

import dataclasses
import math

import pytest
from support.runs import tiny

from transformer.run.course import Course

START = {
    "optimizer.rate": 0.5,
    "optimizer.decay": 0.5,
}
PLATEAU = START | {"optimizer.schedule": "plateau", "optimizer.decay_patience": 1}
EPOCHS = START | {"optimizer.schedule": "epochs", "optimizer.decay_every": 1.0}


def factors(values: list[float], **changes: object) -> list[float]:
    rule, course, found = tiny(**(PLATEAU | changes)).optimizer, Course(), []
    for value in values:
        course = course.validated(value, rule)
        found.append(course.factor)
    return found


def test_a_plateau_lowers_the_rate_after_more_validations_in_vain_than_it_waits():
    # In vain: the third and fourth, then the fifth and sixth; 2.5 is none of them.
    values = [4, 3, 3, 3.5, 9, 3, 2.5, 2.6, 2.4, 2.4, 2.4]
    assert factors(values) == [1, 1, 1, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25, 0.25, 0.125]
    without = {"optimizer.decay_patience": 0}
    assert factors(values[:5], **without) == [1, 1, 0.5, 0.25, 0.125]


def test_what_is_no_number_is_no_improvement():
    assert factors([math.nan, math.inf, 1, math.nan]) == [1, 0.5, 0.5, 0.5]
    assert Course().validated(math.nan, tiny().optimizer).best is None


@pytest.mark.parametrize(
    "after, every, epochs, times",
    [
        *(
            (5, 1, 4.99, 0),
            (5, 1, 5.0, 1),
            (5, 1, 6.5, 2),
            (5, 0.5, 6.5, 4),
            (0, 2, 0, 1),
        ),
        *((1, 0.1, 1.3, 4), (0, 0.2, 2.2, 12), (0, 0.1, 1.19, 12)),
    ],
)
def test_epochs_lower_the_rate(after, every, epochs, times):
    changes = {
        "optimizer.decay_after": float(after),
        "optimizer.decay_every": float(every),
    }
    course = Course(factor=0.125).at(epochs, tiny(**(EPOCHS | changes)).optimizer)
    assert course == Course(factor=0.5**times)


def test_other_schedules_know_no_epochs():
    assert Course().at(100.0, tiny(**PLATEAU).optimizer) == Course()


def test_patience_ends_a_run():
    settings = tiny(**{"train.patience": 2})
    course = Course().validated(2.0, settings.optimizer)
    for vain, over in ((1, False), (2, True)):
        course = course.validated(2.0, settings.optimizer)
        assert course.vain == vain and bool(course.over(settings)) is over
    assert "2 validations" in course.over(settings)
    better = course.validated(1.9, settings.optimizer)
    assert not better.over(settings)


def test_a_rate_that_is_too_low_ends_a_run():
    settings = tiny(**(PLATEAU | {"optimizer.least_rate": 0.1}))
    assert not Course(factor=0.25).over(settings)
    assert "rate would be 0.0625" in Course(factor=0.125).over(settings)


def test_a_checkpoint_holds_it():
    course = Course(0.1 + 0.2, 3, 1, 1 / 3)
    assert Course.of_checkpoint({"course": dataclasses.asdict(course)}) == course
    assert Course.of_checkpoint({}) == Course()
