"""What a pattern may cost is bounded from what it says; patterns that tokenizers have are taken, also odd ones."""

import random
import time

import pytest
from tokenizers import Regex, pre_tokenizers

from tapeless.tasks.data.patterns import Endless, check_pattern

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# In the manner of published ones: GPT-2, Llama 3, Qwen, o200k, with possessive repetitions, CLIP, BLOOM, DeepSeek,
# Kimi, EXAONE, and digits in threes from behind.
TAKEN = [
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+" + TAIL,
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lo}\p{M}]*[\p{Ll}\p{Lo}\p{M}]+" + CONTRACTIONS + "?" + TAIL,
    r"[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
    r"<\|startoftext\|>|<\|endoftext\|>|'s|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
    r" ?[^(\s|[.,!?…。，、।۔،])]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+" + TAIL,
    r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{M}&&[^\p{Han}]]+" + TAIL,
    r"(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}",
    r"\d{1,3}(?=(?:\d{3})*\b)",
    r" {2,}",
    r"(?>a+)+b",
    r"(?:ab){2,5}?c",
    r"[]a]+|[^]]b{,3}|{a}|x{2",
    r"(?<name>a)(?i)b|c(?-i:d)|\x{1F98A}|\u00e9|(?<=a)b(?<!c)",
    "",
]
REFUSED = {
    r"(a+)+$": "can match in several ways",
    r"(?:a|a)*b": "can match in several ways",
    r"(\w+\s?)*!": "can match in several ways",
    r"(?=(a+)+$)": "can match in several ways",
    r"(?:a+)+(?!b?)": "can match in several ways",
    r"((a+)+b)*": "can match in several ways",
    r"(a{1,2}){1,40}b": "ways to match at one place",
    r"(?:\w?\w?){11}[!]": "ways to match at one place",
    r"((a{0,999}){0,999}){0,999}b": "can match in several ways",
    r"a*b*c*d": "3 repetitions in a row",
    r"a+?.*?b": "2 repetitions in a row",
    r"(a)\1": "is not understood from its character",
    r"(?<n>a|\(\g<n>\))": "is not understood",
    r"(?(1)a|b)": "is not understood",
    r"(?x: a +)": "is not understood",
    "(" * 2000 + ")" * 2000: "is not understood",
    "[" * 2000: "is not understood",
    "(a": "is not understood",
    "a)": "is not understood",
    "*a": "is not understood",
    "a{99999}": "is not understood",
    "a" * 20_000: "has 20,000 characters",
}


@pytest.mark.parametrize("pattern", TAKEN)
def test_what_tokenizers_have_is_taken_and_means_something_to_the_package(pattern):
    check_pattern(pattern)
    Regex(pattern)


@pytest.mark.parametrize("pattern", REFUSED, ids=[pattern[:30] for pattern in REFUSED])
def test_what_could_take_forever_is_refused_quickly(pattern):
    began = time.process_time()
    with pytest.raises(Endless, match=REFUSED[pattern]):
        check_pattern(pattern)
    assert time.process_time() - began < 1


def test_what_is_taken_ends_on_texts_made_to_be_slow():
    """Random patterns of few letters; those that are taken are tried on texts on which a wrong one would not end: the
    package itself gives up after some ten million steps back, and panics."""
    rng = random.Random(5)

    def made(depth):
        if not depth or rng.random() < 0.3:
            return rng.choice("aab.") if rng.random() < 0.8 else "[ab]"
        inner = "".join(made(depth - 1) for _ in range(rng.randint(1, 3)))
        if rng.random() < 0.3:
            inner += "|" + made(depth - 1)
        return rng.choice(("(?:%s)", "(?>%s)", "(?=%s)", "(%s)")) % inner + rng.choice(
            ("", "", "*", "+", "?", "*?", "++", "{2,3}", "{1,4}")
        )

    taken, refused = 0, 0
    texts = ["a" * 60, "a" * 60 + "c", "ab" * 30 + "c", "aab" * 20]
    while taken < 300:
        pattern = made(3) + rng.choice(("", "c", "$", "b+c"))
        try:
            check_pattern(pattern)
        except Endless:
            refused += 1
            continue
        try:
            split = pre_tokenizers.Split(Regex(pattern), "isolated")
        except Exception:  # what only looks cannot be repeated; it raises nothing more precise
            continue
        taken += 1
        began = time.process_time()
        for text in texts:
            split.pre_tokenize_str(text)
        assert time.process_time() - began < 1, pattern
    assert refused > 50
