"""A run keeps the threads that it was made with: MKL's products round differently on another number."""

import os
from dataclasses import replace

import pytest

from tapeless import Model
from tapeless.backends import gpu
from tapeless.backends.cpu import Cpu
from tapeless.backends.traits import Traits
from tapeless.errors import TapelessError
from tapeless.kernels import cpu as cpu_kernels
from tapeless.models.config import Optimizer
from tapeless.train import machine
from tapeless.train.machine import offered
from tapeless.train.session import resume, start
from tapeless.train.settings import Settings, read_request

CORES = len(os.sched_getaffinity(0))
MODEL = {"layers": 1, "channels": 64, "heads": 2, "vocab": 1100, "context": 32}


@pytest.fixture(autouse=True)
def threads_as_they_were():
    before = cpu_kernels.threads()
    yield
    cpu_kernels.set_threads(before)


@pytest.fixture
def request_of(tmp_path):
    (tmp_path / "prose.txt").write_text("the quick brown fox jumps over the lazy dog, again and again. " * 200)
    settings = Settings(data=str(tmp_path / "prose.txt"), batch=4, time=32, steps=8, save_every=4, eval_every=4)

    def made(threads):
        request = read_request("gpt2-4x256").override(MODEL, {})
        return replace(request, settings=replace(settings, threads=threads))

    return made


def finish(session, until=None):
    session.train(stopping=lambda: "enough" if session.trainer.step == until else None)
    session.run.release()
    return {name: weight.tobytes() for name, weight in session.model.params.items()}


@pytest.mark.parametrize("threads", sorted({1, min(2, CORES)}))
def test_a_resumed_run_has_its_threads_and_its_bits(tmp_path, request_of, threads):
    whole = finish(start(request_of(threads), tmp_path / "whole"))
    finish(start(request_of(threads), tmp_path / "cut"), until=5)
    cpu_kernels.set_threads(CORES + 1 - threads if CORES > 1 else 1)  # another number, where there is another
    session = resume(tmp_path / "cut", {}, {})
    assert cpu_kernels.threads() == threads
    assert finish(session) == whole


def test_a_resumed_run_has_its_products_and_its_bits(tmp_path, request_of):
    def made():
        return replace(request_of(1), settings=replace(request_of(1).settings, products="own"))

    try:
        whole = finish(start(made(), tmp_path / "whole"))
        finish(start(made(), tmp_path / "cut"), until=5)
        assert '\nproducts = "own"\n' in (tmp_path / "cut" / "config.toml").read_text()
        cpu_kernels.set_gemm_library(None)
        session = resume(tmp_path / "cut", {}, {})
        assert cpu_kernels.gemm_library() == "own"
        assert finish(session) == whole
    finally:
        cpu_kernels.set_gemm_library(None)


def test_a_run_whose_products_are_not_installed_goes_on(tmp_path, request_of, monkeypatch):
    finish(start(request_of(1), tmp_path / "run"), until=4)
    config = tmp_path / "run" / "config.toml"
    config.write_text(
        config.read_text().replace(f'\nproducts = "{cpu_kernels.gemm_library()}"\n', '\nproducts = "mkl"\n')
    )
    monkeypatch.setattr("tapeless.kernels.cpu.dispatch.mkl", lambda: None)
    try:
        session = resume(tmp_path / "run", {}, {})
    finally:
        monkeypatch.undo()
        cpu_kernels.set_gemm_library(None)
    session.run.release()
    (said,) = [message for message in session.messages if "MKL" in message]
    assert said == "the run's products were MKL's, and MKL is not installed here: it has our own from here on."
    assert '\nproducts = "own"\n' in config.read_text()  # so that it does not go back unnoticed where MKL is


def test_a_new_run_records_what_it_has(tmp_path, request_of, monkeypatch):
    settings = replace(request_of(1).settings, products="mkl", threads=64, backend="auto")
    monkeypatch.setattr("tapeless.kernels.cpu.dispatch.mkl", lambda: None)
    monkeypatch.setattr(gpu, "is_there", lambda: False)
    try:
        session = start(replace(request_of(1), settings=settings), tmp_path / "run")
        session.run.release()
        text = (tmp_path / "run" / "config.toml").read_text()
    finally:
        monkeypatch.undo()
        cpu_kernels.set_gemm_library(None)
        cpu_kernels.set_threads(CORES)
    assert session.messages[:2] == [
        "products='mkl' were asked for and MKL is not installed here: it trains with our own.",
        f"threads=64 were asked for and this machine has {CORES}: it trains with {CORES}.",
    ]
    for line in ('products = "own"', f"threads = {CORES}", 'backend = "cpu"'):
        assert f"\n{line}\n" in text


@pytest.mark.parametrize(("optimizer", "chosen"), [("adamw", None), ("muon", "own")])
def test_in_bfloat16_only_muon_has_a_choice(optimizer, chosen, monkeypatch):
    monkeypatch.setattr(cpu_kernels, "faster_gemm", lambda: cpu_kernels.FasterGemm("own", 0.8))
    try:
        settings, messages = machine.on_its_machine(Settings(precision="bfloat16"), optimizer, new=True)
    finally:
        cpu_kernels.set_gemm_library(None)
    assert settings.products == chosen
    assert len(messages) == (chosen is not None)


def test_a_new_training_has_the_faster_products_and_keeps_them(tmp_path, request_of, monkeypatch):
    asked = [cpu_kernels.FasterGemm("own", 0.8)]
    monkeypatch.setattr(cpu_kernels, "faster_gemm", lambda: asked.pop())
    try:
        session = start(request_of(1), tmp_path / "run")
        assert "the products are our own: on this processor they take 80% of MKL's time" in " ".join(session.messages)
        finish(session, until=4)
        assert '\nproducts = "own"\n' in (tmp_path / "run" / "config.toml").read_text()
        cpu_kernels.set_gemm_library(None)
        resume(tmp_path / "run", {}, {}).run.release()  # and does not ask again
        assert cpu_kernels.gemm_library() == "own"
    finally:
        cpu_kernels.set_gemm_library(None)


def test_threads_of_a_file_are_taken(tmp_path, request_of):
    finish(start(request_of(1), tmp_path / "first"), until=1)
    cpu_kernels.set_threads(CORES)
    again = read_request(str(tmp_path / "first" / "config.toml"))
    start(again, tmp_path / "second").run.release()
    assert cpu_kernels.threads() == 1


def test_what_was_in_effect_is_recorded(tmp_path, request_of):
    cpu_kernels.set_threads(CORES)
    start(request_of(None), tmp_path / "run").run.release()
    assert f"\nthreads = {CORES}\n" in (tmp_path / "run" / "config.toml").read_text()


def test_fewer_cores_than_recorded_are_told_of(tmp_path, request_of):
    finish(start(request_of(None), tmp_path / "run"), until=4)
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace(f"\nthreads = {cpu_kernels.threads()}\n", "\nthreads = 4096\n"))
    session = resume(tmp_path / "run", {}, {})
    session.run.release()
    (said,) = [message for message in session.messages if "4096 threads" in message]
    assert f"goes on with {CORES}" in said
    assert "threads = 4096" in config.read_text()  # for the machine that has them


def test_no_threads_at_all_are_refused(tmp_path, request_of):
    with pytest.raises(TapelessError, match="threads must be a whole number from 1"):
        start(request_of(0), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_bfloat16_is_offered_where_it_is_fast_and_pays(monkeypatch):
    model = Model("gpt2-4x256", batch=1, time=8, backend="cpu", layers=1, channels=64, heads=2, vocab=64)
    assert offered(Settings(), model) == []  # too small
    monkeypatch.setattr(machine, "WORTH_IT", 0)
    for there in ("float32", "bfloat16"), ("float32",):
        monkeypatch.setattr(Cpu, "traits", Traits(there))
        assert len(offered(Settings(), model)) == len(there) - 1
    monkeypatch.setattr(Cpu, "traits", Traits(("float32", "bfloat16")))
    assert offered(Settings(precision="float32"), model) == []
    model.optimizer = Optimizer("muon")
    assert offered(Settings(), model) == []


def test_a_resumed_run_may_be_told_what_it_is(tmp_path, request_of):
    finish(start(request_of(1), tmp_path / "run"), until=4)
    given = {"chunk": None, "layers": 1, "lean": True}
    resume(tmp_path / "run", given, {"batch": 4, "precision": "float32", "backend": "cpu"}).run.release()
    for model, settings, name in (
        ({"chunk": 7}, {}, "chunk"),
        ({"layers": 2}, {}, "layers"),
        ({}, {"batch": 5}, "batch"),
        ({}, {"precision": "bfloat16"}, "precision"),
    ):
        with pytest.raises(TapelessError, match=f"^{name} cannot be changed in the middle of a run"):
            resume(tmp_path / "run", model, settings)


def test_what_is_missing_in_a_configuration_is_said_to_be(tmp_path, request_of):
    request = request_of(1)
    finish(start(replace(request, model={**request.model, "chunk": 7}), tmp_path / "run"), until=4)
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace("\nchunk = 7\n", "\n"))
    with pytest.raises(TapelessError, match=r"^no chunk is given by .*config.toml, and this run was trained with 7:"):
        resume(tmp_path / "run", {}, {})
