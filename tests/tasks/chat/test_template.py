"""A template writes what transformers makes it write, and does nothing else."""

import json
import os
import signal

import pytest
from tokenizers import Tokenizer

from tapeless.errors import TapelessError
from tapeless.tasks.chat import template as templates
from tapeless.tasks.chat.template import Chat, chat_beside, plain_chat, published_chat
from tapeless.tasks.data.tokenizer import ByteTokenizer, load_tokenizer
from tests.tasks.chat.spoken import CONVERSATIONS, HELLO, LLAMA3, MARKED, TEMPLATES, TOKENS, tokenizer_json


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "tokenizer.json").write_text(tokenizer_json())
    return tmp_path


def theirs(template):
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(tokenizer_json()), chat_template=template, **TOKENS
    )


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_text_and_its_tokens_are_those_of_transformers(folder, name):
    ours, oracle = load_tokenizer(folder), theirs(TEMPLATES[name])
    chat = Chat(TEMPLATES[name], TOKENS, ())
    for messages in CONVERSATIONS.values():
        for count, invited in ((len(messages), False), (len(messages) - 1, True)):
            (view,) = chat.views(messages, [(count, invited)])
            how = {"add_generation_prompt": invited}
            assert view.text == oracle.apply_chat_template(messages[:count], tokenize=False, **how)
            wanted = oracle.apply_chat_template(messages[:count], tokenize=True, return_dict=True, **how)["input_ids"]
            assert ours.encode_marked(view.text)[0].tolist() == wanted


def test_tools_reach_the_template_as_in_transformers(folder):
    tools = [{"type": "function", "function": {"name": "größe", "parameters": {"a": [1, None, True]}}}]
    (view,) = Chat(LLAMA3, TOKENS, ()).views(HELLO, [(2, False)], tools)
    assert view.text == theirs(LLAMA3).apply_chat_template(HELLO, tools=tools, tokenize=False)


def test_what_a_template_marks_as_generated_is_known(folder):
    (view,) = Chat(MARKED, TOKENS, ()).views(HELLO, [(2, False)])
    assert [view.text[begin:end] for begin, end in view.marked or []] == [HELLO[1]["content"] + "<|im_end|>"]


def test_the_plain_one_ends_every_answer_and_begins_none_with_a_blank():
    chat = plain_chat(ByteTokenizer())
    assert chat.written([{"role": "system", "content": "s"}, *HELLO]) == (
        "System:\ns\n\nUser:\nHello, who are you?\n\nAssistant:\nA model. Größe: 日本 🎈<|endoftext|>\n"
    )
    assert chat.written(HELLO[:1], invited=True) == "User:\nHello, who are you?\n\nAssistant:\n"


ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}"
REFUSED = {
    ENDLESS + "{% endfor %}": "takes longer than 0.5 seconds",
    "{% for a in range(99999) %}{{ 'x' * 9999 }}{% endfor %}": "writes more than",
    "{{ 'x' * 99999999999 }}": "memory",
    "{% set s = namespace(t='xx') %}{% for a in range(99) %}{% set s.t = s.t ~ s.t %}{% endfor %}": "memory",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}": "outside its sandbox",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}": "outside its sandbox",
    "{{ messages.append(1) }}": "outside its sandbox",
    "{{ messages[0].update(a=1) }}": "outside its sandbox",
    "{{ (lambda: 1)() }}": "no Jinja that can be read",
    "{{ lipsum(2) }}": "outside its sandbox: it asks for a file",
    "{% include '/etc/passwd' %}": "does not take this conversation",
    "{% import 'os' as os %}": "does not take this conversation",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}": "calls itself without end",
    "{% for %}": "no Jinja that can be read, at line 1",
    "{{ raise_exception('only twice. Really.') }}": "does not take this conversation: only twice. Really",
    "{{ messages[7].content }}": "does not take this conversation",
}


@pytest.mark.parametrize("source", REFUSED, ids=lambda source: source[:40])
def test_a_template_that_loops_or_reaches_out_is_one_sentence(source, monkeypatch):
    monkeypatch.setattr(templates, "SECONDS", 0.5)
    with pytest.raises(TapelessError, match=REFUSED[source]) as caught:
        Chat(source, {}, ()).written(HELLO)
    said = str(caught.value)
    assert said.startswith("the model's chat template ")
    assert said.endswith(".")
    assert "\n" not in said


def test_the_process_opens_no_file():
    """Even what got out of the sandbox would find nothing to open."""
    chat = plain_chat(ByteTokenizer())
    chat.written(HELLO)
    child = chat._process[0]._child
    with open(f"/proc/{child.pid}/limits") as file:  # noqa: PTH123
        limits = {line[:26].strip(): line[26:].split()[0] for line in file}
    assert limits["Max open files"] == "0"
    assert limits["Max file size"] == "0"
    assert int(limits["Max address space"]) == 1 << 28


def test_after_a_refusal_or_a_kill_the_next_conversation_is_rendered(monkeypatch):
    monkeypatch.setattr(templates, "SECONDS", 0.5)
    chat = Chat("{% if messages[0].content == 'x' %}" + ENDLESS + "{% endfor %}{% endif %}fine", {}, ())
    with pytest.raises(TapelessError, match="takes longer"):
        chat.written([{"role": "user", "content": "x"}])
    assert chat.written(HELLO) == "fine"
    os.kill(chat._process[0]._child.pid, signal.SIGKILL)
    with pytest.raises(TapelessError, match=r"its process ended \(-9\)"):
        chat.written(HELLO)
    assert chat.written(HELLO) == "fine"


def test_without_jinja_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(templates, "find_spec", lambda name: None)
    with pytest.raises(TapelessError, match=r"pip install 'tapeless\[chat\]'"):
        plain_chat(ByteTokenizer()).written(HELLO)


def test_what_is_published_is_found_as_transformers_finds_it(folder):
    tokenizer = load_tokenizer(folder)
    assert not chat_beside(folder, tokenizer).own
    about = {
        "eos_token": {"content": "<|im_end|>", "special": True},
        "bos_token": "<|begin_of_text|>",
        "pad_token": None,
    }
    nobody: dict[str, object] = {"name": [], "template": "n"}
    several = [nobody, {"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    (folder / "tokenizer_config.json").write_text(json.dumps(about | {"chat_template": several}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [6, 99999, -1]}))
    found = chat_beside(folder / "tokenizer.json", tokenizer)
    assert (found.template, found.ends, found.own) == ("d", (0, 3, 6), True)
    assert found.tokens == {"eos_token": "<|im_end|>", "bos_token": "<|begin_of_text|>"}
    (folder / "chat_template.jinja").write_text("j")
    assert published_chat(folder, tokenizer).template == "j"


def test_what_is_kept_comes_back_and_what_is_damaged_is_refused(folder):
    tokenizer = load_tokenizer(folder)
    chat = Chat(LLAMA3, TOKENS, (0, 6))
    chat.save(folder)
    assert chat_beside(folder, tokenizer) == chat
    kept = json.loads((folder / "chat.json").read_text())
    for wrong in (
        {"template": 1},
        {"ends": [99999]},
        {"ends": [True]},
        {"tokens": {"a": 1}},
        {"own": None},
        {"format": 2},
    ):
        (folder / "chat.json").write_text(json.dumps(kept | wrong))
        with pytest.raises(TapelessError, match=r"chat\.json is damaged"):
            chat_beside(folder, tokenizer)


def test_a_published_template_that_is_none_is_refused(folder):
    tokenizer = load_tokenizer(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": {"a": 1}}))
    with pytest.raises(TapelessError, match="chat_template that is no text"):
        chat_beside(folder, tokenizer)
    (folder / "chat_template.jinja").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(TapelessError, match="not UTF-8"):
        chat_beside(folder, tokenizer)
