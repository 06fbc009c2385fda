"""Adapters beside peft: gradients, files in both directions, the merged model; and folders that are no adapter."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from tapeless import Model
from tapeless.errors import TapelessError
from tapeless.models.config import Preset
from tapeless.train.base import FILE, all_weights, as_held, write_base
from tapeless.train.run import open_run
from tapeless.weights.hugging_face import read_config, read_weights
from tapeless.weights.peft import CONFIG, TENSORS, read_adapter, their_adapters, write_adapter
from tapeless.weights.runs import export_run, import_adapter, import_folder
from tests.oracles import disagreements, torch_gradients
from tests.weights.test_llama import exact, their_model

LLAMA = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
GPT2 = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
# A model of theirs, what peft is told to adapt, and how we say it.
CASES: dict[str, tuple[str, Any, tuple[str, ...]]] = {
    "gpt2": ("gpt2", GPT2, ()),
    "gpt2, c_attn alone": ("gpt2", ("c_attn",), ("qkv",)),
    "llama": ("llama", LLAMA, ()),
    "llama, q and v": ("llama, tied, one head of keys", ("q_proj", "v_proj"), ("q", "v")),
    "mistral, up in the last block": ("mistral", ("model.layers.1.mlp.up_proj",), ("blocks.1.mlp.up",)),
    "qwen2": ("qwen2", "all-linear", ()),
    "qwen3, k and down": ("qwen3", ("k_proj", "down_proj"), ("k", "down")),
}
RANK, ALPHA = 3, 5


def base_of(name: str) -> Any:
    if name != "gpt2":
        return their_model(name)
    config = GPT2Config(n_embd=24, n_layer=2, n_head=4, n_positions=32, vocab_size=61, bos_token_id=0, eos_token_id=0)
    for drop in ("resid_pdrop", "embd_pdrop", "attn_pdrop"):
        setattr(config, drop, 0.0)
    model = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(0.1, 0.3, generator=torch.Generator().manual_seed(weight.numel()))
    return model


def adapted(name: str, folder: Path) -> Any:
    """With adapters that do something, and the base as a folder."""
    theirs, targets, _ = CASES[name]
    model = base_of(theirs)
    model.save_pretrained(folder)
    wanted = list(targets) if isinstance(targets, tuple) else targets
    config = peft.LoraConfig(
        r=RANK, lora_alpha=ALPHA, target_modules=wanted, fan_in_fan_out=theirs == "gpt2", task_type="CAUSAL_LM"
    )
    found = peft.get_peft_model(model, config).eval()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for key, weight in found.named_parameters():
            if "lora_" in key:
                weight.normal_(0.0, 0.3, generator=generator)
    return found


def ours(name: str, folder: Path, theirs: Any, **options: Any) -> Model:
    config = read_config(folder)
    preset = Preset("theirs", config).override(lora=RANK, lora_alpha=ALPHA, lora_targets=CASES[name][2])
    model = Model(preset, optimizer=None, **options)
    base = {key: weight for key, weight in model.params.items() if not key.endswith(("lora_a", "lora_b"))}
    read_weights(folder, config, base)
    for key, view in their_adapters(preset, model.params).items():
        view[...] = dict(theirs.named_parameters())[key.replace(".weight", ".default.weight")].detach().numpy()
    return model


def in_float64(theirs: Any, config: Any) -> Any:
    theirs.double()
    if config.positions == "rotary":
        exact(theirs.base_model.model, config)
    return theirs


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_peft(name: str, tmp_path: Path) -> None:
    theirs = adapted(name, tmp_path)
    model = ours(name, tmp_path, theirs, batch=2, time=9, backend="reference", precision="float64")
    theirs = in_float64(theirs, model.config)
    tokens, targets = np.random.default_rng(0).integers(0, 61, (2, 2, 9))
    targets[:, ::3] = -1
    logits = theirs(torch.from_numpy(tokens)).logits
    loss = F.cross_entropy(logits.flatten(end_dim=-2), torch.from_numpy(targets).flatten(), ignore_index=-1)
    trained = {key: weight for key, weight in theirs.named_parameters() if weight.requires_grad}
    gradients = {
        key.replace(".default.weight", ".weight"): gradient for key, gradient in torch_gradients(loss, trained).items()
    }

    found = {"loss": model.forward_backward(tokens, targets), "logits": model.logits(tokens)}
    assert not disagreements("hugging face", found, {"loss": loss.item(), "logits": logits.detach()})
    assert set(model.grads) == {key for key in model.params if key.endswith(("lora_a", "lora_b"))}
    assert not disagreements("hugging face", their_adapters(model.preset, model.grads), gradients)


@pytest.mark.parametrize("name", CASES)
def test_what_peft_saved_is_read_and_given_back_bit_by_bit(name: str, tmp_path: Path) -> None:
    """Into a run on top of an imported base, sampled like peft's; out again; and merged as peft merges."""
    theirs = adapted(name, tmp_path / "base")
    theirs.save_pretrained(str(tmp_path / "adapter"))
    made = import_folder(tmp_path / "base", tmp_path / "run").run
    run = import_adapter(tmp_path / "adapter", made, tmp_path / "adapted").run
    assert open_run(run.folder).preset().lora_targets in (CASES[name][2], _long(CASES[name][2]))
    model, _, _ = run.model("best", backend="reference", precision="float64", time=9)
    tokens = np.random.default_rng(1).integers(0, 61, (1, 9))
    expected = in_float64(theirs, model.config)(torch.from_numpy(tokens)).logits.detach()
    assert not disagreements("hugging face", {"logits": model.logits(tokens)}, {"logits": expected})

    export_run(run, tmp_path / "back", "best")
    first, again = load_file(tmp_path / "adapter" / TENSORS), load_file(tmp_path / "back" / TENSORS)
    assert first.keys() == again.keys()
    assert all(np.array_equal(first[key], again[key]) for key in first)
    reloaded = peft.PeftModel.from_pretrained(base_of(CASES[name][0]), tmp_path / "back").eval()
    assert {k for k, _ in reloaded.named_parameters()} == {k for k, _ in theirs.named_parameters()}
    found = in_float64(reloaded, model.config)(torch.from_numpy(tokens)).logits.detach()
    assert torch.equal(found, expected)

    export_run(run, tmp_path / "merged", "best", merge=True)
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    with torch.inference_mode():
        written = whole.generate(torch.from_numpy(tokens), max_new_tokens=20, do_sample=False, pad_token_id=0)[0, 9:]
        close = torch.tensor(model.logits(tokens)).float()
        assert torch.allclose(whole(torch.from_numpy(tokens)).logits, close, rtol=1e-4, atol=1e-4)
    assert model.generate(tokens[0].tolist(), 20, temperature=0) == written.tolist()


def _long(targets: tuple[str, ...]) -> tuple[str, ...]:
    groups = {"q": "attn", "k": "attn", "v": "attn", "qkv": "attn", "down": "mlp"}
    return tuple(f"{groups[each]}.{each}" if each in groups else each for each in targets)


def test_rank_stabilised_adapters_are_scaled_as_peft_scales_them(tmp_path: Path) -> None:
    model = base_of("llama")
    model.save_pretrained(tmp_path / "base")
    config = peft.LoraConfig(r=4, lora_alpha=6, use_rslora=True, target_modules=["q_proj"])
    found = peft.get_peft_model(model, config)
    found.save_pretrained(str(tmp_path / "adapter"))
    read = read_adapter(tmp_path / "adapter", Preset("theirs", read_config(tmp_path / "base")))
    assert read.fields["lora_alpha"] / 4 == pytest.approx(6 / 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base, a run of it, and an adapter that we have written for it."""
    made: Path = tmp_path_factory.mktemp("adapters")
    base_of("llama").save_pretrained(made / "base")
    import_folder(made / "base", made / "run")
    preset = Preset("theirs", read_config(made / "base")).override(lora=2)
    model = Model(preset, time=1, backend="reference", optimizer=None)
    write_adapter(made / "adapter", preset, model.weights(), None)
    return made


def described(change: dict[str, Any]) -> Any:
    def made(adapter: Path) -> None:
        fields = json.loads((adapter / CONFIG).read_text()) | change
        (adapter / CONFIG).write_text(json.dumps(fields))

    return made


def tensors(change: Any) -> Any:
    def made(adapter: Path) -> None:
        found = load_file(adapter / TENSORS)
        change(found)
        save_file(found, adapter / TENSORS)

    return made


Q = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
REFUSED: dict[str, tuple[Any, str]] = {
    "another method": (described({"peft_type": "IA3"}), "only LORA can be read"),
    "DoRA": (described({"use_dora": True}), "use_dora=True, which tapeless does not have"),
    "a head besides": (described({"modules_to_save": ["lm_head"]}), "modules_to_save"),
    "biases": (described({"bias": "all"}), "without biases"),
    "ranks that differ": (described({"rank_pattern": {"q_proj": 4}}), "rank_pattern"),
    "rank 0": (described({"r": 0}), "r=0: it must be a whole number from 1"),
    "another rank": (described({"r": 3}), "of another rank than adapter_config.json says"),
    "no alpha": (described({"lora_alpha": None}), "has no lora_alpha"),
    "another base": (tensors(lambda t: t.update({Q: np.zeros((2, 30), np.float32)})), "for another base"),
    "one of a pair": (tensors(lambda t: t.pop(Q)), "an adapter is a pair of matrices"),
    "an unknown module": (
        tensors(lambda t: t.update({"base_model.model.lm_head.lora_A.weight": t[Q]})),
        "no place for: what can be adapted is q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj",
    ),
    "numbers that are none": (tensors(lambda t: t.update({Q: np.full((2, 24), np.nan, np.float32)})), "not a finite"),
    "no tensors": (lambda adapter: (adapter / TENSORS).unlink(), "there is no file"),
    "other weights": (
        lambda adapter: (adapter / "tapeless.json").write_text(json.dumps({"base_sha256": "0" * 64})),
        "was trained on top of other weights than those of",
    ),
    "an unknown type of its base": (
        lambda adapter: (adapter / "tapeless.json").write_text('{"base_sha256": "", "frozen_precision": "int8"}'),
        "must have the frozen_precision float32 or bfloat16, or none, not 'int8'",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_adapter_for_this_base_is_refused_in_a_sentence(name: str, folder: Path, tmp_path: Path) -> None:
    change, words = REFUSED[name]
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    for file in (folder / "adapter").iterdir():
        (adapter / file.name).write_bytes(file.read_bytes())
    import_adapter(adapter, open_run(folder / "run"), tmp_path / "good")
    change(adapter)
    with pytest.raises(TapelessError, match=words) as caught:
        import_adapter(adapter, open_run(folder / "run"), tmp_path / "out")
    assert str(caught.value).endswith(".")
    assert not (tmp_path / "out").exists()


def test_an_adapter_on_bfloat16_finds_its_base_in_float32(folder: Path, tmp_path: Path) -> None:
    run = open_run(folder / "run")
    preset = Preset("theirs", read_config(folder / "base")).override(lora=2, frozen_precision="bfloat16")
    model = Model(preset, time=1, backend="reference", precision="float32", optimizer=None)
    weights = all_weights(run.checkpoint("best")[0])
    digest = write_base(tmp_path, as_held(weights, model.program.weights, "bfloat16"))
    write_adapter(tmp_path / "adapter", preset, model.weights(), digest)
    made = import_adapter(tmp_path / "adapter", run, tmp_path / "one").run
    assert made.preset().frozen_precision == "bfloat16"
    assert (tmp_path / "one" / FILE).read_bytes() == (tmp_path / FILE).read_bytes()
    loaded, _, _ = made.model("best", backend="reference", precision="float64", time=1)
    assert not np.array_equal(loaded.read("head.weight"), weights["head.weight"])
    for name, array in weights.items():
        model.write(name, array)
        assert np.array_equal(loaded.read(name), model.read(name))
    exported = export_run(made, tmp_path / "again", "best")
    assert "trained beside matrices in bfloat16" in exported.messages[-1]
    assert "--merge" in exported.messages[-1]
    import_adapter(tmp_path / "again", run, tmp_path / "two")


def test_an_adapter_that_we_wrote_knows_its_base(folder: Path, tmp_path: Path) -> None:
    run = import_adapter(folder / "adapter", open_run(folder / "run"), tmp_path / "one").run
    export_run(run, tmp_path / "adapter", "best")
    import_adapter(tmp_path / "adapter", open_run(folder / "run"), tmp_path / "two")  # the same weights again
    export_run(run, tmp_path / "merged", "best", merge=True)
    other = base_of("llama, tied, one head of keys")
    other.save_pretrained(tmp_path / "other")
    import_folder(tmp_path / "other", tmp_path / "third")
    with pytest.raises(TapelessError, match="for another base"):
        import_adapter(tmp_path / "adapter", open_run(tmp_path / "third"), tmp_path / "out")
    with pytest.raises(TapelessError, match="no adapters to merge"):
        export_run(open_run(folder / "run"), tmp_path / "none", "best", merge=True)
