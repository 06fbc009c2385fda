"""Conversations, chat templates and adapters: files that come with somebody's weights or somebody's data."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from tapeless.model import Model
from tapeless.models.config import Preset
from tapeless.models.presets import preset
from tapeless.tasks.chat import template
from tapeless.tasks.chat.packing import PackedRows
from tapeless.tasks.chat.prepare import FILE, open_chats, prepare_chats, whole_chats
from tapeless.tasks.chat.template import Chat, chat_beside, published_chat
from tapeless.tasks.chat.turns import Speech
from tapeless.tasks.data.reading import Reading
from tapeless.tasks.data.tokenizer import load_tokenizer, train_bpe
from tapeless.weights import hugging_face, peft
from tools.fuzz.mutate import some_bytes

Read = Callable[[bytes], None]
Prepare = Callable[[Path], tuple[list[bytes], Read]]
LLAMA = {"layers": 2, "channels": 4, "heads": 2, "kv_heads": 1, "hidden": 8, "vocab": 7, "context": 5}
SAID = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
ANSWERED = [*SAID, {"role": "assistant", "content": "Ho."}, SAID[1], {"role": "assistant", "content": "Größe 日本"}]
ROWS: tuple[dict[str, object], ...] = (
    {"messages": ANSWERED, "tools": [{"name": "clock"}]},
    {"prompt": "What is 2 + 2?", "completion": "4."},
    {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
    {"prompt": SAID, "completion": [{"role": "assistant", "content": [{"type": "text", "text": "x"}]}]},
    {"messages": [SAID[1], {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}]},
)
LINES = b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)
TEMPLATE = """\
{%- if tools %}{{ tools | tojson }}{% endif %}
{%- for turn in messages %}
{{- '<|' ~ turn.role ~ '|>' ~ turn['content'] | trim ~ eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"""
FRAGMENTS = (
    "{% generation %}x{% endgeneration %}",
    "{{ raise_exception('no') }}",
    "{{ strftime_now('%Y') }}",
    "{{ messages }}",
    "{% for a in range(999) %}{{ a }}{% endfor %}",
    "{{ ''.__class__ }}",
    "{% include 'x' %}",
    "{% macro f() %}",
    "{{ f() }}",
    "{{ [].append(1) }}",
    "{{ 'a' * 9999999999 }}",
    "{{ 1 // 0 }}",
    "{{ messages[9].role }}",
    "{%- raw %}",
    "{{ x.y.z }}",
    "{{ messages | map(attribute='role') | list }}",
    "{% set a = a %}",
    "{{ '%d' % 'x' }}",
    "{#",
    "}}",
    "{% break %}",
    "{{ (1,) | tojson }}",
    "{{ messages | tojson }}",
    "{{ '\ud800' }}",
    "{{ 10 ** 99999 }}",
    "{{ messages | sum }}",
    "{{ cycler }}",
    "{{ lipsum(9) }}",
    "{{ self }}",
    "{{ loop.index }}",
    "{{ eos_token }}",
)


def some_template(rng: Random, data: bytes) -> bytes:
    """What Jinja knows, in the wrong place; or bytes anywhere."""
    for _ in range(rng.randint(1, 3)):
        if rng.random() < 0.1:
            data = some_bytes(rng, data)
        else:
            between = [found.end() for found in re.finditer(rb"[}%]\}", data)] or [0]
            at = rng.choice(between) if rng.random() < 0.9 else rng.randint(0, len(data))
            data = data[:at] + rng.choice(FRAGMENTS).encode("utf-8", "surrogatepass") + data[at:]
    return data


def conversations(name: str) -> Prepare:
    """As a run that is spoken with by the plain template reads them; in rows at last."""
    example = json.dumps(ROWS).encode() if name.endswith(".json") else LINES

    def prepared(folder: Path) -> tuple[list[bytes], Read]:
        tokenizer = load_tokenizer("bytes")
        speech = Speech(chat_beside("bytes", tokenizer), tokenizer)

        def read(data: bytes) -> None:
            (folder / name).write_bytes(data)
            found = whole_chats(str(folder / name), speech, Reading(), lambda what, done, total: None)
            rows = PackedRows(found.side(), 64, packed=True)
            rows.make(range(len(rows)), len(rows))

        return [example], read

    return prepared


def _prepared_folder(folder: Path) -> Path:
    (folder / "chats.jsonl").write_bytes(LINES)
    prepare_chats(str(folder / "chats.jsonl"), folder / "made")
    return folder / "made"


def about_conversations(folder: Path) -> tuple[list[bytes], Read]:
    made = _prepared_folder(folder)
    sound = (made / FILE).read_bytes()

    def read(data: bytes) -> None:
        (made / FILE).write_bytes(data)
        open_chats(made)

    return [sound], read


def prepared_conversations(folder: Path) -> tuple[list[bytes], Read]:
    made = _prepared_folder(folder)
    about, file = json.loads((made / FILE).read_bytes()), made / "training.safetensors"
    sound = file.read_bytes()

    def read(data: bytes) -> None:
        file.write_bytes(data)
        about["training"]["sha256"] = hashlib.sha256(data).hexdigest()
        (made / FILE).write_text(json.dumps(about))
        PackedRows(open_chats(made).training, 64, packed=True)

    return [sound], read


def chat_file(name: str) -> Prepare:
    """chat.json of a run, or what transformers keeps beside a tokenizer."""
    published: dict[str, Any] = {
        "chat_template": TEMPLATE,
        "eos_token": {"content": "<|endoftext|>"},
        "bos_token": None,
        "model_max_length": int(1e30),  # as transformers writes that there is no limit
    }
    several = published | {"chat_template": [{"name": "default", "template": TEMPLATE}]}
    kept = {"format": 1, "template": TEMPLATE, "tokens": {"eos_token": "<|endoftext|>"}, "ends": [256], "own": True}
    examples: dict[str, list[dict[str, Any]]] = {"chat.json": [kept]}
    examples["generation_config.json"] = [{"eos_token_id": 2}, {"eos_token_id": [2, 3]}]

    def prepared(folder: Path) -> tuple[list[bytes], Read]:
        tokenizer = train_bpe(iter(["the quick brown fox"]), 270)
        tokenizer.save(folder)

        def read(data: bytes) -> None:
            (folder / name).write_bytes(data)
            chat = chat_beside(folder, tokenizer) if name == "chat.json" else published_chat(folder, tokenizer)
            assert all(0 <= each < tokenizer.vocab for each in chat.ends)

        return [json.dumps(each).encode() for each in examples.get(name, [published, several])], read

    return prepared


def chat_template(folder: Path) -> tuple[list[bytes], Read]:
    """Rendered, all by one process: what it may take is less than a user's, so that none seems slow."""
    template.SECONDS = 0.5
    tokenizer = load_tokenizer("bytes")
    plain = chat_beside("bytes", tokenizer)
    plain.written(SAID)  # so that its process is there, for all

    def read(data: bytes) -> None:
        (folder / "chat_template.jinja").write_bytes(data)
        given = published_chat(folder, tokenizer)
        chat = Chat(given.template, {"eos_token": "<|endoftext|>"}, given.ends, _process=plain._process)
        Speech(chat, tokenizer).invitation(SAID)

    return [TEMPLATE.encode()], read


def _llama() -> Preset:
    return preset("llama-4x256").override(**LLAMA)


def adapter(name: str) -> Prepare:
    """A folder of peft's, or what we put beside it."""

    def prepared(folder: Path) -> tuple[list[bytes], Read]:
        adapted = _llama().override(lora=2)
        model = Model(adapted, backend="reference", precision="float32", time=1, optimizer=None)
        peft.write_adapter(folder / "adapter", adapted, model.weights(), "0" * 64)
        file = folder / "adapter" / name
        sound = file.read_bytes()

        def read(data: bytes) -> None:
            file.write_bytes(data)
            found = peft.read_adapter(folder / "adapter", _llama())
            assert all(np.isfinite(array).all() for array in found.weights.values())

        return [sound], read

    return prepared


def llama_config(folder: Path) -> tuple[list[bytes], Read]:
    small = _llama()
    model = Model(small, backend="reference", precision="float32", time=1, optimizer=None)
    hugging_face.write_folder(folder / "llama", small.architecture, model.params, None)
    file = folder / "llama" / "config.json"
    sound = json.loads(file.read_bytes())
    scaled = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 4}
    examples = [
        sound,
        sound | {"rope_scaling": {"rope_type": "llama3", **scaled}},
        sound | {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
        sound | {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 3},
    ]

    def read(data: bytes) -> None:
        file.write_bytes(data)
        config = hugging_face.read_config(folder / "llama")
        replace(small, architecture=config)

    return [json.dumps(each).encode() for each in examples], read
