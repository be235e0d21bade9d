"""The campaign, part by part, and the page that shows what came of it."""

import json
from collections import Counter

import pytest

from campaign import calls, kills, run
from campaign.place import make, quick


@pytest.mark.slow
@pytest.mark.parametrize("part", run.PARTS)
def test_all_is_refused_or_right_and_nothing_is_lost(part, tmp_path):
    found = list(run.outcomes(part, tmp_path))
    print(run.table(run.counted(found)))
    wrong = [run.shown(one) for one in found if one.problem]
    assert found and not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_a_sample_of_the_calls_is_refused_or_right(tmp_path):
    with quick(tmp_path / "xla"):
        found = list(calls.outcomes(make(tmp_path / "place"), every=4))
    print(run.table(run.counted(found)))
    wrong = [run.shown(one) for one in found if one.problem]
    assert len(found) > 200 and not wrong, "\n".join(wrong)


def test_the_page_shows_the_counts_of_the_last_campaign():
    rows = json.loads(run.COUNTS.read_text())
    (shown,) = run.TABLE.findall(run.PAGE.read_text())
    assert shown == run.table(rows)


def test_the_last_campaign_tried_what_is_written_here():
    rows = json.loads(run.COUNTS.read_text())
    written = Counter(f"calls, {one.what}" for one in calls.table())
    tried = {kind: row["times"] for kind, row in rows.items() if "calls" in kind}
    assert tried == written and sum(tried.values()) > 200
    assert rows["kills"]["times"] == kills.KILLS == 25
    damages = [row["times"] for kind, row in rows.items() if "damage" in kind]
    assert len(damages) == 4 and sum(damages) > 250
    rest = {"full disks", "two processes", "clocks", "links", "closed outputs"}
    assert rest <= rows.keys()


def test_the_last_campaign_lost_nothing():
    rows = json.loads(run.COUNTS.read_text())
    for kind, row in rows.items():
        assert row["right"] == row["times"], kind
        assert (row["lost"], row["tracebacks"]) == (0, 0), kind
