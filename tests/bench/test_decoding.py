"""`benchmarks/decoding.py`: its contenders are in no package, and take turns all the same."""

from importlib import import_module

from tapeless.bench.race import Work, contenders, race

decoding = import_module("decoding")  # of benchmarks/, which is no package


def test_ours_and_the_floor_take_turns():
    fields = {"layers": 1, "channels": 16, "heads": 2, "vocab": 50}
    work = Work("gpt2-4x256", 1, decoding.PROMPT, 1, fields)
    with contenders(["decode-ours", "decode-floor"], work, decoding.WORKER) as (ours, floor):
        assert list(race([ours, floor], 1)) == [1]
        assert len(ours.about["tokens"]) == decoding.NEW
        assert floor.about["bytes_per_token"] > 4 * 50 * 16
        assert {row["call"] for row in ours.profile(1)["calls"]} >= {"remember.forward", "cached_attention.forward"}
    assert len(ours.times) == len(floor.times) == 1
