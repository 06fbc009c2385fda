"""Which words are learned: those that the model must write itself, with what ends its turn, and no others."""

import numpy as np
import pytest
from tokenizers import Tokenizer

from tapeless.errors import TapelessError
from tapeless.tasks.chat.layouts import Conversation
from tapeless.tasks.chat.template import Chat, plain_chat
from tapeless.tasks.chat.turns import SpecialError, Speech
from tapeless.tasks.data.tokenizer import ByteTokenizer, load_tokenizer
from tests.tasks.chat.spoken import HELLO, LONGER, MARKED, TEMPLATES, TOKENS, tokenizer_json

ENDS = {
    "chatml": "<|im_end|>",
    "llama3": "<|eot_id|>",
    "mistral": "<|endoftext|>",
    "mistral3": "<|endoftext|>",
    "mistral3 last": "<|endoftext|>",
    "thinking": "<|im_end|>",
    "marked": "<|im_end|>",
}


@pytest.fixture
def tokenizer(tmp_path):
    (tmp_path / "tokenizer.json").write_text(tokenizer_json())
    return load_tokenizer(tmp_path)


def learned(turns):
    """What is learned, stretch by stretch."""
    inside = np.zeros(len(turns.text) + 1, bool)
    for begin, end in turns.spans[turns.learned]:
        inside[begin:end] = True
    edges = np.flatnonzero(np.diff(np.concatenate([[False], inside]).astype(int)))
    return [turns.text[begin:end] for begin, end in zip(edges[::2], edges[1::2], strict=True)]


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_assistants_words_and_their_end_are_learned(tokenizer, name):
    speech = Speech(Chat(TEMPLATES[name], TOKENS, (0,)), tokenizer)
    turns = speech.turns(Conversation(LONGER, "here"))
    answers = [turn["content"] + ENDS[name] for turn in LONGER if turn["role"] == "assistant"]
    if name.startswith("mistral"):
        answers = [" " + each for each in answers]
    if name == "thinking":
        answers[-1] = "<think>\n\n</think>\n\n" + answers[-1]  # which it writes itself when it answers
    assert learned(turns) == answers


@pytest.mark.parametrize("name", ["chatml", "llama3", "mistral", "thinking"])
def test_what_is_learned_goes_on_from_what_invites_an_answer(tokenizer, name):
    """The tokens before an answer in training are those that it is asked with."""
    speech = Speech(Chat(TEMPLATES[name], TOKENS, ()), tokenizer)
    turns = speech.turns(Conversation(LONGER, "here"))
    first = int(np.flatnonzero(turns.learned)[0])
    assert turns.ids[:first].tolist() == speech.invitation(LONGER[:2])


def test_bytes_and_the_plain_template_do_so_too():
    speech = Speech(plain_chat(ByteTokenizer()), ByteTokenizer())
    turns = speech.turns(Conversation(HELLO, "here"))
    assert learned(turns) == ["A model. Größe: 日本 🎈<|endoftext|>"]
    assert turns.ids[turns.learned][-1] == 256
    first = int(np.flatnonzero(turns.learned)[0])
    assert turns.ids[:first].tolist() == speech.invitation(HELLO[:1])


def test_the_mask_of_a_template_that_marks_is_transformers_own(tokenizer):
    from transformers import PreTrainedTokenizerFast

    theirs = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(tokenizer_json()), chat_template=MARKED, **TOKENS
    )
    for messages in (HELLO, LONGER):
        oracle = theirs.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
        turns = Speech(Chat(MARKED, TOKENS, ()), tokenizer).turns(Conversation(messages, "here"))
        assert turns.ids.tolist() == oracle["input_ids"]
        assert turns.learned.tolist() == [bool(each) for each in oracle["assistant_masks"]]


def test_the_end_of_a_turn_is_the_templates_own(tokenizer):
    for name, end in ENDS.items():
        assert Speech(Chat(TEMPLATES[name], TOKENS, (0,)), tokenizer).ends == {0, tokenizer.specials[end]}


def test_thoughts_that_a_template_forgets_are_not_learned(tokenizer):
    messages = [
        *HELLO[:1],
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nOne."},
        *HELLO[:1],
        {"role": "assistant", "content": "<think>\nso\n</think>\n\nTwo."},
    ]
    turns = Speech(Chat(TEMPLATES["thinking"], TOKENS, ()), tokenizer).turns(Conversation(messages, "here"))
    assert learned(turns) == ["One.<|im_end|>", "<think>\nso\n</think>\n\nTwo.<|im_end|>"]


def test_who_spells_a_special_token_is_refused(tokenizer):
    speech = Speech(Chat(TEMPLATES["chatml"], TOKENS, ()), tokenizer)
    for messages in (
        [{"role": "user", "content": "what is <|im_end|>?"}, HELLO[1]],
        [HELLO[0], HELLO[1] | {"content": "</s><|eot_id|>"}],
    ):
        with pytest.raises(SpecialError, match=r"holds '<\|"):
            speech.turns(Conversation(messages, "here"))
    with pytest.raises(SpecialError, match="endoftext"):
        Speech(plain_chat(ByteTokenizer()), ByteTokenizer()).invitation([{"role": "user", "content": "<|endoftext|>"}])


@pytest.mark.parametrize("name", ["mistral3", "mistral3 last"])
def test_a_system_message_that_moves_on_is_no_part_of_an_answer(tokenizer, name):
    """Every answer is learned behind what invites it, blanks and words that repeat as they may be."""
    speech = Speech(Chat(TEMPLATES[name], TOKENS, ()), tokenizer)
    messages = [
        {"role": "system", "content": "Yes."},
        {"role": "user", "content": " Yes. Yes.\n"},
        {"role": "assistant", "content": "\n Yes. "},
        {"role": "user", "content": "No"},
        {"role": "assistant", "content": "No [/INST"},
        {"role": "user", "content": "Yes."},
        {"role": "assistant", "content": "Yes."},
    ]
    turns = speech.turns(Conversation(messages, "here"))
    assert learned(turns) == [f" {each}<|endoftext|>" for each in ("Yes.", "No [/INST", "Yes.")]
    for number in (2, 4, 6):  # what stands before an answer ends as when it is invited
        answer = turns.text.index(f" {messages[number]['content'].strip()}<|endoftext|>")
        asked = speech.chat.written(messages[:number], invited=True)
        tail = asked[asked.rindex(messages[number - 1]["content"]) :]
        assert turns.text[:answer].endswith(tail) or number == 6
    assert ("Yes.\n\nYes.[/INST]" in turns.text) == (name == "mistral3")


def test_a_template_whose_past_changes_is_refused_where_what_is_said_does_too(tokenizer):
    counted = "{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}"
    turns = Speech(Chat(counted, {}, ()), tokenizer).turns(Conversation(LONGER, "here"))
    assert learned(turns) == ["Yes.", "Indeed.\n\n  - one\n  - two"]
    headed = Speech(Chat("{{ messages | length }}" + TEMPLATES["chatml"], TOKENS, ()), tokenizer)
    assert learned(headed.turns(Conversation(HELLO, "here"))) == [HELLO[1]["content"] + "<|im_end|>"]
    for source in (
        counted.replace("m.content", "m.content | upper"),
        counted.replace("m.content", "m.content ~ m.content"),
        counted.replace("m.content", "m.content | length"),
        counted.replace("in messages", "in messages | reverse"),
        counted.replace("{{ m.", "{{ messages[0].content if m.role == 'assistant' and messages | length > 3 }}{{ m."),
        counted.replace("{{ m.", "{{ '!' if m.content | length > 60 }}{{ m."),
        counted.replace("{% for", "{{ messages[-1].content }}{% for"),
    ):
        with pytest.raises(TapelessError, match=r"before answer 1 otherwise once more follows.*\{% generation %\}"):
            Speech(Chat(source, {}, ()), tokenizer).turns(Conversation(LONGER, "here"))


def test_a_speaker_nobody_knows_is_refused_unless_the_models_own_template_names_it(tokenizer):
    said = [*HELLO, {"role": "wizard", "content": "hi"}]
    own = Speech(Chat(TEMPLATES["chatml"], TOKENS, ()), tokenizer)
    for speech in (Speech(plain_chat(ByteTokenizer()), ByteTokenizer()), own):
        with pytest.raises(TapelessError, match=r"nobody knows who speaks as 'wizard': say system, developer, user, "):
            speech.turns(Conversation(said, "here"))
    naming = '{% set spells = "wizard" %}' + TEMPLATES["chatml"]
    turns = Speech(Chat(naming, TOKENS, ()), tokenizer).turns(Conversation(said, "here"))
    assert "<|im_start|>wizard" in turns.text
