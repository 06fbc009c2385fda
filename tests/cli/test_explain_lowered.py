"""`tapeless explain --lowered`: the list that runs."""

from tests.cli.test_commands import result_of, tapeless

SMALL = ("gpt2-4x256", "--set", "layers=1", "--set", "vocab=50", "-T", "8")


def test_nothing_is_zeroed_and_gradients_are_written():
    written, lowered = (result_of("explain", *SMALL, *how) for how in ((), ("--lowered",)))
    assert [call["op"] for call in written if call["phase"] == "zero"] == ["zero"]
    assert not [call for call in lowered if call["phase"] == "zero"]
    modes = {result["buffer"]: result["sign"] for call in lowered for result in call["results"]}
    assert modes["blocks.0.mlp.up.dweight"] == "="
    assert modes["tokens.dweight"] == "+="  # tied: the head has written it


def test_fused_calls_stand_under_each_other():
    shown = tapeless("explain", *SMALL, "--lowered", "--backend", "cuda", columns=120).stdout
    assert "+ gelu" in shown
    assert "· is only between these" in " ".join(shown.split())
    assert "+ gelu" not in tapeless("explain", *SMALL, "--lowered", "--backend", "reference", columns=120).stdout


def test_what_it_cannot_show_is_refused():
    assert "--lowered as they run: leave out one" in tapeless("explain", *SMALL, "--lowered", "--values").stderr


def test_a_backend_alone_means_the_list_that_it_runs():
    asked, meant = (tapeless("explain", *SMALL, *how, "--backend", "cuda") for how in (("--lowered",), ()))
    assert (asked.returncode, asked.stdout) == (0, meant.stdout)
