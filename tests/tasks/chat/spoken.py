"""Templates in the manner of published ones, written anew, and small tokenizers that know their special tokens."""

from functools import cache

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

# Qwen2's and SmolLM2's: a header, the words, an end, and a system message where nobody gives one.
CHATML = """\
{%- if messages and messages[0].role != 'system' %}
    {{- '<|im_start|>system\\nYou help.<|im_end|>\\n' }}
{%- endif %}
{%- for turn in messages %}
    {{- '<|im_start|>' ~ turn.role ~ '\\n' ~ turn.content ~ '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
# Llama 3's: every header is two special tokens, words are trimmed, tools come as JSON.
LLAMA3 = """\
{{- bos_token }}
{%- set date = strftime_now('%Y') if strftime_now is defined else '2024' %}
{%- if tools is not none %}
    {{- '<|start_header_id|>system<|end_header_id|>\\n\\n' }}
    {%- for tool in tools %}{{- tool | tojson(indent=2) }}{{- '\\n' }}{%- endfor %}
    {{- 'It is ' + date + '.<|eot_id|>' }}
{%- endif %}
{%- for turn in messages %}
    {{- '<|start_header_id|>' + turn['role'] + '<|end_header_id|>\\n\\n' + turn['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
# Mistral's: no header before an answer, turns must alternate, and the system message joins the first of the user's.
MISTRAL = """\
{%- if messages[0]['role'] == 'system' %}
    {%- set system, rest = messages[0]['content'] + '\\n\\n', messages[1:] %}
{%- else %}
    {%- set system, rest = '', messages %}
{%- endif %}
{{- bos_token }}
{%- for turn in rest %}
    {%- if (turn.role == 'user') != loop.first and loop.index0 % 2 == 0 and turn.role != 'user' %}
        {{- raise_exception('user and assistant must take turns') }}
    {%- endif %}
    {%- if turn.role == 'user' %}
        {{- '[INST] ' + (system if loop.first else '') + turn.content + '[/INST]' }}
    {%- else %}
        {{- ' ' + turn.content + eos_token }}
    {%- endif %}
{%- endfor %}
"""
# Qwen3's: of earlier answers, the thoughts are forgotten; of the last one they stand there, be they empty.
THINKING = """\
{%- set seen = namespace(last=-1) %}
{%- for turn in messages %}{%- if turn.role == 'user' %}{%- set seen.last = loop.index0 %}{%- endif %}{%- endfor %}
{%- for turn in messages %}
    {%- set words = turn.content.split('</think>')[-1].lstrip('\\n') %}
    {%- if turn.role == 'assistant' and loop.index0 > seen.last %}
        {%- set thought = turn.content.split('</think>')[0] if '</think>' in turn.content else '' %}
        {{- '<|im_start|>assistant\\n<think>\\n' ~ thought.split('<think>')[-1].strip('\\n') }}
        {{- '\\n</think>\\n\\n' ~ words ~ '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' ~ turn.role ~ '\\n' ~ words ~ '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
# One whose author marks what the model generates, here without the newline behind it.
MARKED = """\
{% for turn in messages %}
{{ '<|im_start|>' + turn.role + '\\n' }}
{% if turn.role == 'assistant' %}
{% generation %}{{ turn.content + '<|im_end|>' }}{% endgeneration %}

{% else %}
{{ turn.content + '<|im_end|>' }}
{% endif %}
{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""
# Mistral 0.3's: the system message goes before the last question, so that all before it changes with every question.
MISTRAL3 = """\
{%- set system = messages[0].content if messages[0].role == 'system' else none %}
{%- set rest = messages if system is none else messages[1:] %}
{%- set asked = rest | selectattr('role', 'equalto', 'user') | list %}
{{- bos_token }}
{%- for turn in rest %}
    {%- if turn.role == 'user' and turn == asked[-1] and system is not none %}
        {{- '[INST] ' + system + '\n\n' + turn.content + '[/INST]' }}
    {%- elif turn.role == 'user' %}
        {{- '[INST] ' + turn.content + '[/INST]' }}
    {%- else %}
        {{- ' ' + turn.content | trim + eos_token }}
    {%- endif %}
{%- endfor %}
"""
# The same, but that only a question which nothing follows has it.
MISTRAL3_LAST = MISTRAL3.replace("turn == asked[-1]", "loop.last")
TEMPLATES = {
    "chatml": CHATML,
    "llama3": LLAMA3,
    "mistral": MISTRAL,
    "mistral3": MISTRAL3,
    "mistral3 last": MISTRAL3_LAST,
    "thinking": THINKING,
    "marked": MARKED,
}
TOKENS = {"bos_token": "<|begin_of_text|>", "eos_token": "<|endoftext|>"}
SPECIAL = (
    "<|endoftext|>",
    "<|begin_of_text|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "[INST]",
    "[/INST]",
)

HELLO = [
    {"role": "user", "content": "Hello, who are you?"},
    {"role": "assistant", "content": "A model. Größe: 日本 🎈"},
]
LONGER = [
    {"role": "system", "content": "You answer in one word."},
    {"role": "user", "content": "  Is 2 < 3?\n"},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": "def f(x):\n    return {'a': x}\n"},
    {"role": "assistant", "content": "Indeed.\n\n  - one\n  - two"},
]
CONVERSATIONS = {"hello": HELLO, "longer": LONGER}


@cache
def tokenizer_json() -> str:
    model = Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    model.train_from_iterator([turn["content"] for turn in HELLO + LONGER] * 3, trainer)
    text: str = model.to_str()
    return text
