"""A GGUF file, read back by the package's own reader and walked as llama.cpp does, computes what the model does."""

import json
import sys
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from tapeless import Model
from tapeless.errors import TapelessError
from tapeless.tasks.chat.template import Chat
from tapeless.weights.gguf import write_gguf
from tapeless.weights.hugging_face import write_folder
from tapeless.weights.peft import write_adapter
from tapeless.weights.runs import import_adapter, import_folder
from tapeless.weights.vocabulary import NUMBERS, read_vocabulary
from tests.screens import document, refusal, screen
from tests.tasks.chat.spoken import CHATML, LLAMA3, SPECIAL, TOKENS, tokenizer_json

SMALL: dict[str, Any] = {"layers": 2, "channels": 24, "heads": 4, "vocab": 400, "context": 32}
GROUPED = SMALL | {"kv_heads": 2, "hidden": 40}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2-4x256", SMALL),
    "llama": ("llama-4x256", GROUPED | {"head_width": 8, "tied": False}),
    "llama, tied and slowed down": (
        "llama-4x256",
        GROUPED | {"rope_scaling": "llama3", "rope_factor": 8.0, "rope_old_context": 16, "head_width": 8, "tied": True},
    ),
    "llama, linear": ("llama-4x256", GROUPED | {"rope_scaling": "linear", "rope_factor": 4.0}),
    "llama with biases": ("llama-4x256", GROUPED | {"attention_bias": True, "projection_bias": True, "mlp_bias": True}),
    "mistral": ("llama-4x256", GROUPED | {"window": 12}),
    "qwen2": ("qwen2.5-0.5b", GROUPED),
    "qwen3": ("qwen3-0.6b", GROUPED | {"head_width": 8}),
}
RNG = np.random.default_rng(7)


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(tokenizer_json())
    return path


def made(kind):
    name, fields = KINDS[kind]
    model = Model(name, time=10, backend="reference", precision="float64", optimizer=None, **fields)
    for title, array in model.params.items():  # nothing is 0 or 1 behind which a mistake could hide
        model.write(title, (array + 0.1 * RNG.normal(size=array.shape)).astype(np.float32))
    return model


def read(path):
    reader = GGUFReader(path)
    values = {name: field.contents() for name, field in reader.fields.items()}
    return values, {each.name: each.data.reshape([int(n) for n in each.shape[::-1]]) for each in reader.tensors}


def walked(values, tensors, ids):
    """The logits, as llama.cpp computes them from a file: its own order of channels, its own keys, in float64."""
    kind = values["general.architecture"]
    of = {name.removeprefix(f"{kind}."): value for name, value in values.items() if name.startswith(f"{kind}.")}
    t = {name: array.astype(np.float64) for name, array in tensors.items()}
    x = t["token_embd.weight"][ids]
    if kind == "gpt2":
        x = x + t["position_embd.weight"][: len(ids)]
    heads, shared = of["attention.head_count"], of.get("attention.head_count_kv", of["attention.head_count"])
    for block in range(of["block_count"]):

        def linear(x, name, block=block):
            bias = t.get(f"blk.{block}.{name}.bias", 0.0)
            return x @ t[f"blk.{block}.{name}.weight"].T + bias

        h = norm(of, t, x, f"blk.{block}.attn_norm")
        if kind == "gpt2":
            q, k, v = (part.reshape(len(ids), heads, -1) for part in np.split(linear(h, "attn_qkv"), 3, axis=1))
        else:
            q, k, v = (
                linear(h, f"attn_{name}").reshape(len(ids), count, -1)
                for name, count in (("q", heads), ("k", shared), ("v", shared))
            )
            if kind == "qwen3":
                q, k = (norm(of, t, part, f"blk.{block}.attn_{name}_norm") for part, name in ((q, "q"), (k, "k")))
            q, k = (turned(of, t, kind, part) for part in (q, k))
            k, v = (np.repeat(part, heads // shared, axis=1) for part in (k, v))
        scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(q.shape[-1])
        scores += np.triu(np.full(scores.shape[1:], -np.inf), 1)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        x = x + linear(np.einsum("hij,jhd->ihd", weights, v).reshape(len(ids), -1), "attn_output")
        h = norm(of, t, x, f"blk.{block}.ffn_norm")
        if kind == "gpt2":
            u = linear(h, "ffn_up")
            u = 0.5 * u * (1 + np.tanh(np.sqrt(2 / np.pi) * (u + 0.044715 * u**3)))
        else:
            gate = linear(h, "ffn_gate")
            u = gate / (1 + np.exp(-gate)) * linear(h, "ffn_up")
        x = x + linear(u, "ffn_down")
    return norm(of, t, x, "output_norm") @ t.get("output.weight", t["token_embd.weight"]).T


def norm(of, t, x, name):
    if "attention.layer_norm_epsilon" in of:
        x = x - x.mean(axis=-1, keepdims=True)
        eps, bias = of["attention.layer_norm_epsilon"], t[f"{name}.bias"]
    else:
        eps, bias = of["attention.layer_norm_rms_epsilon"], 0.0
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps) * t[f"{name}.weight"] + bias


def turned(of, t, kind, x):
    """`llama` turns channels 2j and 2j + 1 together, the others j and j + half."""
    width = of["rope.dimension_count"]
    rates = of["rope.freq_base"] ** -(np.arange(0, width, 2) / width) / t.get("rope_freqs.weight", 1.0)
    rates = rates / of.get("rope.scaling.factor", 1.0)
    angle = np.arange(len(x))[:, None, None] * rates
    first, second = (x[..., ::2], x[..., 1::2]) if kind == "llama" else np.split(x, 2, axis=-1)
    pair = first * np.cos(angle) - second * np.sin(angle), first * np.sin(angle) + second * np.cos(angle)
    return np.stack(pair, axis=-1).reshape(x.shape) if kind == "llama" else np.concatenate(pair, axis=-1)


@pytest.mark.parametrize("kind", KINDS)
def test_the_file_computes_what_the_model_does(tmp_path, spec, kind):
    model, path = made(kind), tmp_path / "m.gguf"
    write_gguf(path, "small", model.config, model.weights(), spec)
    values, tensors = read(path)
    assert values["general.architecture"] == (kind if kind in ("gpt2", "qwen2", "qwen3") else "llama")
    # Keys are float32, so that what is not exact in it differs a little.
    ids = RNG.integers(0, 400, 10)
    ours, theirs = model.logits(ids[None])[0], walked(values, tensors, ids)
    assert np.abs(ours - theirs).max() / np.abs(ours).max() < 3e-6
    assert values["general.name"] == "small"
    context = f"{values['general.architecture']}.context_length"
    assert values[context] == (12 if kind == "mistral" else 32), "beyond its window llama.cpp would see too much"


def test_adapters_are_folded_in(tmp_path, spec, monkeypatch):
    monkeypatch.chdir(tmp_path)
    base = made("llama")
    write_folder(tmp_path / "base", base.config, base.params, spec)
    adapted = Model("llama-4x256", time=1, backend="reference", optimizer=None, lora=2, **KINDS["llama"][1])
    weights = {
        name: 0.3 * RNG.normal(size=array.shape) for name, array in adapted.weights().items() if ".lora_" in name
    }
    write_adapter(tmp_path / "adapter", adapted.preset, weights, None)
    run = import_folder(tmp_path / "base", tmp_path / "run").run
    tuned = import_adapter(tmp_path / "adapter", run, tmp_path / "tuned").run
    told = " ".join(screen("export", "tuned", "tuned.gguf", "--gguf").split())
    assert "the weights after step 0, with the adapters merged, are in tuned.gguf:" in told
    ids = RNG.integers(0, 400, 10)
    expected = tuned.model("best", backend="reference", time=10)[0].logits(ids[None])[0]
    before = base.logits(ids[None])[0]
    assert np.abs(expected - before).max() > 0.1
    values, tensors = read(tmp_path / "tuned.gguf")
    theirs = walked(values, tensors, ids)
    assert np.abs(expected - theirs).max() / np.abs(expected).max() < 3e-6


@pytest.mark.parametrize(("dtype", "code"), [("float16", 1), ("bfloat16", 32)])
def test_narrow_files_round_matrices_alone(tmp_path, spec, dtype, code):
    model, path = made("qwen2"), tmp_path / "m.gguf"
    write_gguf(path, "small", model.config, model.weights(), spec, dtype)
    wide = tmp_path / "wide.gguf"
    write_gguf(wide, "small", model.config, model.weights(), spec)
    values, tensors = read(wide)
    reader = GGUFReader(path)
    assert reader.fields["general.file_type"].contents() == code
    assert values["general.file_type"] == 0
    for each in reader.tensors:
        exact = tensors[each.name]
        if exact.ndim == 1:
            assert each.tensor_type.name == "F32"
            assert np.array_equal(each.data, exact)
        elif dtype == "float16":
            assert each.tensor_type.name == "F16"
            assert np.array_equal(each.data, exact.astype(np.float16))
        else:
            assert each.tensor_type.name == "BF16"
            bits = np.ascontiguousarray(each.data).view(np.uint16).astype(np.uint32) << 16
            assert np.abs(bits.view(np.float32) / exact - 1).max() <= 2**-8


def test_the_tokenizer_goes_along(tmp_path, spec):
    model, path = made("llama"), tmp_path / "m.gguf"
    chat = Chat(LLAMA3, TOKENS, (0, 6))
    write_gguf(path, "small", model.config, model.weights(), spec, chat=chat)
    values, _ = read(path)
    described = json.loads(tokenizer_json())
    vocab = described["model"]["vocab"]
    tokens, kinds = values["tokenizer.ggml.tokens"], values["tokenizer.ggml.token_type"]
    assert len(tokens) == len(kinds) == 400
    for token, number in vocab.items():
        assert tokens[number] == token
        assert kinds[number] == (3 if token in SPECIAL else 1)
    assert tokens[len(vocab) :] == [f"[PAD{number}]" for number in range(len(vocab), 400)]
    assert set(kinds[len(vocab) :]) <= {5}
    merges = [each if isinstance(each, str) else " ".join(each) for each in described["model"]["merges"]]
    assert values["tokenizer.ggml.merges"] == merges
    assert (values["tokenizer.ggml.model"], values["tokenizer.ggml.pre"]) == ("gpt2", "gpt-2")
    assert values["tokenizer.chat_template"] == LLAMA3
    assert (values["tokenizer.ggml.eos_token_id"], values["tokenizer.ggml.eot_token_id"]) == (0, 6)
    assert (values["tokenizer.ggml.bos_token_id"], values["tokenizer.ggml.add_bos_token"]) == (1, False)


def test_where_a_text_begins_and_ends_is_known_without_a_template(tmp_path, spec):
    """Else llama.cpp would take the token 11 for both, which is GPT-2's in no vocabulary but one."""
    model, path = made("llama"), tmp_path / "m.gguf"

    def written():
        path.unlink(missing_ok=True)
        write_gguf(path, "small", model.config, model.weights(), spec)
        values, _ = read(path)
        names = ("bos", "eos", "eot", "eom", "padding")
        return [values.get(f"tokenizer.ggml.{name}_token_id") for name in names], values

    assert written()[0] == [0, 0, None, None, None]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", "pad_token": "<|eot_id|>"}))
    assert written()[0] == [3, 3, None, None, 6]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(TOKENS))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [6, 0, 3, 999]}))
    ids, values = written()
    assert ids == [1, 0, 6, 3, None]
    assert (values["tokenizer.ggml.add_bos_token"], values.get("tokenizer.chat_template")) == (False, None)
    # A word that nobody added to the vocabulary as a token of its own.
    described = json.loads(tokenizer_json())
    described["model"]["vocab"]["<|end|>"] = number = len(described["model"]["vocab"])
    spec.write_text(json.dumps(described))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}))
    ids, values = written()
    assert ids[:2] == [number, number]
    assert values["tokenizer.ggml.token_type"][number] == 3


def tokenizer(splits, tmp_path, **model):
    vocab = {"<|endoftext|>": 0, "a": 1, "b": 2, "ab": 3, "▁": 4, "▁ab": 5, "<0x41>": 6, "<unk>": 7}
    built = Tokenizer(models.BPE(vocab, [("a", "b"), ("▁", "ab")], **model))
    splits(built)
    built.add_special_tokens(["<|endoftext|>"])
    path = tmp_path / "t.json"
    built.save(str(path))
    return path


def byte_level(*before, regex=True, prefix=False):
    def put(built):
        last = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex)
        built.pre_tokenizer = pre_tokenizers.Sequence([*before, last]) if before else last
        built.decoder = decoders.ByteLevel()

    return put


def split(pattern):
    from tokenizers import Regex

    return pre_tokenizers.Split(Regex(pattern), "isolated")


def test_ways_to_split_text_have_the_names_of_llama_cpp(tmp_path):
    for way, name in (
        (byte_level(), "gpt-2"),
        (byte_level(pre_tokenizers.Digits(individual_digits=True)), "smollm"),
        (byte_level(split(NUMBERS % "{1,3}"), regex=False), "llama-bpe"),
        (byte_level(split(NUMBERS % ""), regex=False), "qwen2"),
    ):
        assert read_vocabulary(tokenizer(way, tmp_path), 8, None)["tokenizer_pre"] == name
    for way, said in (
        (byte_level(split(r"\w+"), regex=False), "in a way of its own"),
        (byte_level(prefix=True), "puts a blank before every text"),
        (lambda built: setattr(built, "pre_tokenizer", pre_tokenizers.Whitespace()), "does not join bytes"),
        (
            lambda built: setattr(built, "normalizer", normalizers.Lowercase()),
            r"before it reads it \(Lower",
        ),
    ):
        with pytest.raises(TapelessError, match=f"cannot be written as GGUF: .*{said}"):
            read_vocabulary(tokenizer(way, tmp_path), 8, None)


def test_sentencepieces_pieces_have_scores_in_the_order_of_their_merges(tmp_path):
    def put(built):
        built.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        built.post_processor = processors.TemplateProcessing(
            single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
        )

    words = read_vocabulary(tokenizer(put, tmp_path, byte_fallback=True, unk_token="<unk>"), 9, None)
    assert (words["tokenizer_model"], words["tokenizer_pre"], words["token_merges"], words["add_space_prefix"]) == (
        "llama",
        "default",
        None,
        True,
    )
    assert words["token_types"] == ["CONTROL", *["NORMAL"] * 5, "BYTE", "UNKNOWN", "UNUSED"]
    assert words["token_scores"] is not None
    assert (
        words["token_scores"][3] > words["token_scores"][5] > max(words["token_scores"][number] for number in (1, 2, 4))
    )
    assert (words["bos_token_id"], words["add_bos_token"]) == (0, True)
    assert words["unk_token_id"] == 7


def test_bytes_have_a_merge_that_never_happens(tmp_path):
    words = read_vocabulary("bytes", 257, None)
    assert words["token_merges"] == ["ÿ ÿ"]
    assert words["token_types"] == ["NORMAL"] * 256 + ["CONTROL"]
    assert words["eos_token_id"] == 256


def test_the_command_writes_a_file_whole_or_not_at_all(tmp_path, spec, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = made("llama")
    chat = Chat(CHATML, TOKENS, (0, 3))
    write_folder(tmp_path / "folder", model.config, model.weights(), spec, chat=chat)
    import_folder(tmp_path / "folder", tmp_path / "run")
    assert "llama-cli -m m.gguf" in screen("export", "run", "m.gguf", "--gguf")
    assert document("export", "run", "n.gguf", "--gguf", "--precision", "float16")["file"] == "n.gguf"
    assert read(tmp_path / "m.gguf")[0]["tokenizer.chat_template"] == CHATML
    assert "exists already" in refusal("export", "run", "m.gguf", "--gguf")
    assert "is called ….gguf" in refusal("export", "run", "m", "--gguf")
    assert "unknown precision" in refusal("export", "run", "o.gguf", "--gguf", "--precision", "int8")
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert "pip install 'tapeless[gguf]'" in refusal("export", "run", "o.gguf", "--gguf")
    assert not list(tmp_path.glob("*o.gguf*"))


def test_what_llama_cpp_cannot_run_is_refused(tmp_path, spec):
    for name, fields, said in (
        ("qwen3-0.6b", {"attention_bias": True, "projection_bias": True}, "no biases in its attention"),
        ("qwen2.5-0.5b", {"rope_scaling": "llama3", "rope_factor": 2.0}, "does not know rope_scaling='llama3'"),
        ("qwen2.5-0.5b", {"head_width": 8}, "4 heads of 8 in 24 channels"),
        ("gpt2-4x256", {"positions": "sinusoidal"}, "sinusoidal"),
    ):
        small = GROUPED if name != "gpt2-4x256" else SMALL
        model = Model(name, time=4, backend="reference", precision="float32", optimizer=None, **{**small, **fields})
        with pytest.raises(TapelessError, match=said):
            write_gguf(tmp_path / "m.gguf", "small", model.config, model.weights(), spec)
    with pytest.raises(TapelessError, match="needs a tokenizer"):
        write_gguf(tmp_path / "m.gguf", "small", model.config, model.weights(), None)
    assert not (tmp_path / "m.gguf").exists()
