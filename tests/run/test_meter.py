"""How long the steps of a run will take."""

from transformer.run.meter import Pace


class Clock:
    """Seconds that go by as told."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_steps_left_are_said_once_at_the_pace_of_twenty():
    clock, lines, compiled = Clock(), list[str](), [False]
    pace = Pace(1000, lambda: compiled[0], lines.append, clock)
    for step in range(1, 31):  # a second each, while programs are compiled
        clock.now += 1
        pace.stepped(step)
    compiled[0] = True
    for step in range(31, 100):
        clock.now += 0.5
        pace.stepped(step)
    # From step 31, the first that had not to wait, 20 steps of half a second; 949 left.
    assert lines == [
        "time: 0:07:54 for the 949 steps left, without validations, at the speed "
        "of steps 32 to 51"
    ]


def test_steps_beside_a_validation_are_not_timed():
    clock, lines = Clock(), list[str]()
    pace = Pace(100, lambda: True, lines.append, clock)
    for step in range(1, 60):
        clock.now += 2
        pace.stepped(step)
        if step == 10:
            clock.now += 500  # a validation
            pace.restart()
    assert len(lines) == 1 and lines[0].startswith("time: 0:02:18 for the 69 steps")


def test_short_runs_say_nothing():
    lines = list[str]()
    pace = Pace(20, lambda: True, lines.append, Clock())
    for step in range(1, 21):
        pace.stepped(step)
    assert lines == []
