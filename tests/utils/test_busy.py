from __future__ import annotations

from hone.utils.busy import BusyMeter


def test_share_is_the_mean_use_of_the_capacity():
    now = 0.0
    meter = BusyMeter(2, clock=lambda: now)
    with meter.use():
        now += 1.0
        with meter.use(), meter.use():  # three users of two places count as two
            now += 2.0
        now += 1.0
    now += 4.0
    assert meter.share() == (1 + 2 * 2 + 1) / (2 * 8)
    assert meter.share() == 0.0  # no time has passed
    now += 1.0
    assert meter.share() == 0.0
