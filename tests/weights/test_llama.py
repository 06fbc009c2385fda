"""Llama, Mistral, Qwen2 and Qwen3 beside transformers: logits, gradients, greedy text, and folders there and back."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from safetensors import safe_open
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from tapeless import Model
from tapeless.check.definitions import turning_rates
from tapeless.errors import TapelessError
from tapeless.models.config import Preset
from tapeless.weights.hugging_face import family_of, read_config, read_weights, their_tensors, write_folder
from tapeless.weights.runs import export_run, import_folder
from tests.oracles import disagreements, torch_gradients

TINY: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 40,
    "vocab_size": 61,
    "max_position_embeddings": 96,
    "rms_norm_eps": 1e-3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "attn_implementation": "sdpa",
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 300.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
MODELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "llama": (LlamaConfig, {}),
    "llama, tied, one head of keys": (LlamaConfig, {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    "llama with biases and wide heads": (LlamaConfig, {"attention_bias": True, "mlp_bias": True, "head_dim": 10}),
    "llama 3": (LlamaConfig, {"rope_parameters": LLAMA3}),
    "llama, linear": (
        LlamaConfig,
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}, "num_key_value_heads": 4},
    ),
    "mistral": (MistralConfig, {"sliding_window": 5, "head_dim": 6}),
    "mistral without a window": (MistralConfig, {"sliding_window": None, "head_dim": 8}),
    "qwen2": (Qwen2Config, {"tie_word_embeddings": True}),
    # Its configuration has no such field, and its layers honour it all the same.
    "qwen2 with wide heads": (Qwen2Config, {"head_dim": 10}),
    "qwen3": (Qwen3Config, {"head_dim": 8, "tie_word_embeddings": True}),
    "qwen3, untied, with biases": (Qwen3Config, {"head_dim": 10, "attention_bias": True}),
}


def their_model(name: str) -> Any:
    """No weight is left at a value, like a norm's 1, that could hide a mistake."""
    make, fields = MODELS[name]
    model = AutoModelForCausalLM.from_config(make(**{**TINY, **fields})).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for key, weight in model.named_parameters():
            weight.normal_(1.2 if "norm" in key else 0.0, 0.2, generator=generator)
    return model


def saved(name: str, folder: Path, **options: Any) -> Any:
    model = their_model(name)
    model.to(options.pop("dtype", torch.float32)).save_pretrained(folder, **options)
    return model


def imported(folder: Path, **options: Any) -> Model:
    config = read_config(folder)
    model = Model(Preset("theirs", config), optimizer=None, **options)
    read_weights(folder, config, model.params)
    return model


class ExactAngles(torch.nn.Module):  # type: ignore[misc]
    """transformers makes its angles in float32, whatever the model is in; these are the same in float64."""

    def __init__(self, theirs: Any, config: Any) -> None:
        super().__init__()
        c = config
        bands = (c.rope_scaling, c.rope_factor, c.rope_low, c.rope_high, c.rope_old_context)
        rates = np.array(turning_rates(c.head_channels // 2, c.rope_base, *bands))
        assert np.abs(theirs.inv_freq.numpy() / rates - 1).max() < 1e-6
        self.rates = torch.from_numpy(rates)

    def forward(self, x: Any, position_ids: Any) -> tuple[Any, Any]:
        angles = (position_ids[..., None].double() * self.rates).repeat(1, 1, 2)
        return angles.cos(), angles.sin()


def exact(theirs: Any, config: Any) -> Any:
    """In float64 from end to end: also what transformers does in float32 in any case, its angles and norms."""
    theirs.double()
    theirs.model.rotary_emb = ExactAngles(theirs.model.rotary_emb, config)
    for module in theirs.modules():
        if type(module).__name__.endswith("RMSNorm"):
            shape, eps = module.weight.shape, module.variance_epsilon
            module.forward = lambda x, m=module, s=shape, e=eps: F.rms_norm(x, s, m.weight, e)
    return theirs


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_gradients_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    theirs = saved(name, tmp_path / "theirs")
    model = imported(tmp_path / "theirs", batch=2, time=20, backend="reference", precision="float64")
    theirs = exact(theirs, model.config)
    rng = np.random.default_rng(0)
    tokens, targets = rng.integers(0, 61, (2, 2, 20))
    targets[:, ::3] = -1
    logits = theirs(torch.from_numpy(tokens)).logits
    loss = F.cross_entropy(logits.flatten(end_dim=-2), torch.from_numpy(targets).flatten(), ignore_index=-1)
    gradients = torch_gradients(loss, dict(theirs.named_parameters()))

    found = {"loss": model.forward_backward(tokens, targets), "logits": model.logits(tokens)}
    assert not disagreements("hugging face", found, {"loss": loss.item(), "logits": logits.detach()})
    assert not disagreements("hugging face", their_tensors(model.config, model.grads), gradients)


@pytest.mark.parametrize("name", MODELS)
def test_greedy_text_is_that_of_transformers(name: str, tmp_path: Path) -> None:
    theirs = saved(name, tmp_path / "theirs")
    model = imported(tmp_path / "theirs", time=1, backend="cpu")
    prompt = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
    with torch.inference_mode():
        written = theirs.generate(prompt, max_new_tokens=50, do_sample=False, pad_token_id=0)[0, 8:].tolist()
    assert model.generate(prompt[0].tolist(), 50, temperature=0) == written


SAVED = [
    pytest.param(dtype, options, id=f"{dtype}{' in shards' if options else ''}")
    for dtype in ("float32", "float16", "bfloat16")
    for options in ({}, {"max_shard_size": "6KB"})
]


@pytest.mark.parametrize(("dtype", "options"), SAVED)
@pytest.mark.parametrize("name", ["llama 3", "mistral", "qwen2", "qwen2 with wide heads", "qwen3"])
def test_there_and_back_is_bit_by_bit_the_same(name: str, dtype: str, options: Any, tmp_path: Path) -> None:
    """Through a run, in the type it came in; and transformers finds nothing missing and nothing left over."""
    saved(name, tmp_path / "theirs", dtype=getattr(torch, dtype), **options)
    assert (tmp_path / "theirs" / "model.safetensors").exists() == (not options)
    made = import_folder(tmp_path / "theirs", tmp_path / "run")
    exported = export_run(made.run, tmp_path / "ours", "best", dtype)
    was, now = stored(tmp_path / "theirs"), stored(tmp_path / "ours")
    assert was.keys() == now.keys()
    assert all(now[key].dtype == tensor.dtype == getattr(torch, dtype) for key, tensor in was.items())
    assert all(torch.equal(now[key], tensor) for key, tensor in was.items())
    again, info = AutoModelForCausalLM.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert type(again).__name__ == exported.loader
    assert not any(info.values()), info
    before = AutoModelForCausalLM.from_pretrained(tmp_path / "theirs").float()
    tokens = torch.arange(40)[None]
    assert torch.equal(again.float()(tokens).logits, before(tokens).logits)


def stored(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            found |= {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    return found


def changed(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({key: value for key, value in config.items() if value != "absent"}))


BAD = [
    ({"model_type": "gemma"}, "model_type 'gemma': only 'gpt2', 'llama', 'mistral', 'qwen2', 'qwen3' can be read"),
    ({"architectures": ["GemmaForCausalLM"]}, "of model_type 'llama' only LlamaForCausalLM and LlamaModel can be read"),
    ({"architectures": ["LlamaForSequenceClassification"]}, "architectures=['LlamaForSequenceClassification']: of"),
    ({"architectures": 7}, "architectures=7: of model_type 'llama' only"),
    ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "of the kind 'yarn': only linear and llama3"),
    ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4}}, "has no factor: add it"),
    ({"rope_parameters": {"rope_type": "default", "rope_theta": -1.0}}, "rope_theta=-1.0: it must be a number above 0"),
    ({"rope_parameters": 7}, "rope_scaling=7: it must be a map, or null"),
    ({"rope_parameters": LLAMA3 | {"low_freq_factor": 5.0}}, "rope_low=5.0 must be below rope_high=4.0"),
    ({"hidden_act": "gelu"}, "hidden_act='gelu', which tapeless does not have: only silu can be read"),
    ({"hidden_size": "absent"}, "has no hidden_size: add it"),
    ({"num_key_value_heads": 3}, "cannot share num_key_value_heads=3"),
    ({"head_dim": 7}, "a head has 7: make it an even number"),
    ({"head_dim": 12}, "config.json and weights do not belong together"),
    ({"num_hidden_layers": 3}, "num_hidden_layers=3, 9 tensors each"),
    ({"num_hidden_layers": 1}, "which this model has no place for"),
    ({"attention_bias": True}, "lacks the tensor 'layers.0.self_attn.k_proj.bias' and 7 more"),
    ({"attention_bias": "yes"}, "attention_bias='yes': it must be true or false"),
    ({"tie_word_embeddings": True}, "its lm_head.weight differs from model.embed_tokens.weight"),
    ({"rms_norm_eps": 2}, "rms_norm_eps=2: it must be a number between 0 and 1"),
]


@pytest.mark.parametrize(("fields", "said"), BAD, ids=[said for _, said in BAD])
def test_what_cannot_be_read_is_one_sentence(fields: dict[str, Any], said: str, tmp_path: Path) -> None:
    saved("llama", tmp_path / "theirs")
    changed(tmp_path / "theirs", **fields)
    with pytest.raises(TapelessError) as caught:
        imported(tmp_path / "theirs", time=1, backend="reference")
    message = str(caught.value)
    assert said in message
    assert message.endswith(".")
    assert str(tmp_path) in message


def test_a_qwen_that_slides_is_refused(tmp_path: Path) -> None:
    saved("qwen2", tmp_path / "theirs")
    changed(tmp_path / "theirs", use_sliding_window=True)
    with pytest.raises(TapelessError, match="use_sliding_window=True, which tapeless does not have"):
        read_config(tmp_path / "theirs")


def test_older_spellings_of_rotary_positions_are_read(tmp_path: Path) -> None:
    saved("llama 3", tmp_path / "theirs")
    new = read_config(tmp_path / "theirs")
    older = {key: value for key, value in LLAMA3.items() if key != "rope_theta"}
    oldest = {"type" if key == "rope_type" else key: value for key, value in older.items()}
    for scaling in (older, oldest):
        changed(tmp_path / "theirs", rope_parameters="absent", rope_theta=300.0, rope_scaling=scaling)
        assert read_config(tmp_path / "theirs") == new


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"activation": "gelu", "mlp_bias": True}, "activation='gelu', and a Llama has activation='swiglu'"),
        ({"query_key_norm": True, "window": 4}, "window=4, and a Qwen3ForCausalLM has window=0"),
        (
            {"attention_bias": True, "window": 4},
            "attention_bias=True, and a MistralForCausalLM has attention_bias=False",
        ),
    ],
)
def test_what_has_no_place_there_is_one_sentence(fields: dict[str, Any], said: str) -> None:
    preset = Preset("any", Model("llama-4x256", time=1, backend="reference", layers=1, channels=8, vocab=9).config)
    with pytest.raises(TapelessError, match=f"this model has {said}: the Hugging Face layout has no place"):
        family_of(preset.override(**fields).architecture)


def test_a_type_that_cannot_hold_a_weight_is_refused(tmp_path: Path) -> None:
    model = Model("llama-4x256", time=1, backend="reference", layers=1, channels=8, vocab=9)
    model.params["norm.weight"][0] = 1e6
    with pytest.raises(TapelessError, match=r"norm.weight holds 1000000.0, more than the 65504 of float16"):
        write_folder(tmp_path / "out", model.config, model.params, None, "float16")
    with pytest.raises(TapelessError, match="unknown precision 'int8'"):
        write_folder(tmp_path / "out", model.config, model.params, None, "int8")
    assert not (tmp_path / "out").exists()
