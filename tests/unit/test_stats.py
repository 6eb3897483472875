from __future__ import annotations

import json
from dataclasses import asdict

from dgemma.stats import Meter


def test_rates_run_from_the_end_of_the_prefill() -> None:
    times = iter([10.0, 12.0, 15.0, 20.0])
    meter = Meter(5, clock=lambda: next(times))
    meter.encoded(0, 3)
    meter.encoded(3, 5)
    meter.denoising_steps = 6
    meter.block(4, 3)
    meter.encoded(5, 9)
    meter.block(2, 3)
    stats = meter.stats(99)
    assert (stats.prefill_s, stats.time_to_first_block_s, stats.decode_s, stats.total_s) == (2.0, 5.0, 8.0, 10.0)
    assert (stats.decode_tok_s, stats.e2e_tok_s) == (6 / 8, 6 / 10)
    assert (stats.encoder_passes, stats.tokens_per_forward, stats.tokens_per_pass) == (3, 6 / 6, 6 / 7)
    assert json.loads(json.dumps(asdict(stats)))["steps_per_canvas"] == [3, 3]


def test_nothing_done_divides_by_nothing() -> None:
    stats = Meter(5, clock=lambda: 1.0).stats(0)
    assert stats.decode_tok_s == stats.e2e_tok_s == stats.tokens_per_forward == stats.tokens_per_pass == 0.0
    assert stats.prefill_s == stats.decode_s == stats.time_to_first_block_s == 0.0
