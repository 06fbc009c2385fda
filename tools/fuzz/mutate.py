"""Changes to files: blindly to bytes, and knowingly to JSON, TOML and lines of fields."""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Callable, Sequence
from copy import deepcopy
from random import Random
from typing import Any

Mutation = Callable[[Random, bytes], bytes]

NUMBERS = (
    0,
    1,
    -1,
    2,
    3,
    7,
    8,
    127,
    128,
    255,
    256,
    257,
    512,
    1023,
    1024,
    65535,
    65536,
    2**24,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**32,
    2**48,
    2**53,
    2**62,
    2**63 - 1,
    2**63,
    2**64,
    -(2**31),
    -(2**63),
    10**19,
    10**30,
    10**308,
    10**400,
    10**4000,
)
FLOATS = (0.0, -0.0, 0.5, 1.0, 1e-5, -1.5, 1e308, -1e308, 5e-324, 1e19, float("nan"), float("inf"), float("-inf"))
TEXTS = (
    "",
    " ",
    "a",
    "\0",
    "\n",
    "\t",
    "\ud800",
    "a\udfffb",
    "\ufeff",
    "\U0001f600",
    "é",
    "../../etc/passwd",
    "/",
    ".",
    "/dev/zero",
    "/dev/null",
    "~nobody-here",
    "[/bold]",
    "[red]",
    "x" * 300,
    "NaN",
    "true",
    "None",
    "bytes",
    "bpe",
    "operations",
    "labelled",
    "stdlib",
    "cpu",
    "reference",
    "float32",
    "float64",
    "none",
    "tokenizer.json",
    "-1",
    "0",
    "gpt2-4x256",
    "ops-102k",
    "sunfish",
    "cllm",
    "adam",
    "sgd",
    "step",
    "evaluation",
    "stop",
    "spike",
    "last",
    "all",
)
# What JSON and TOML can say, and Python's own writers would not.
WRITTEN = (
    "9" * 5000,
    "-" + "9" * 4299,
    "1e999",
    "-1e999",
    "1E+400",
    "[" * 3000,
    "{" * 3000,
    "[" * 90 + "]" * 90,
    '{"a":' * 90 + "1" + "}" * 90,
    '{"a":' * 3000,
    "{a=" * 200,
    "{a=" * 200 + "1" + "}" * 200,
    "[" * 2000 + "]" * 2000,
    '"\\ud800"',
    '"\\udc00\\ud800"',
    "NaN",
    "-Infinity",
    "nan",
    "-inf",
    "1979-05-27T07:32:00Z",
    "07:32:00",
    "0x7f",
    "1_000",
    "''",
    '""',
    "true",
    "null",
    "[]",
    "{}",
    "[[]]",
    '"""',
    "'''",
    "\\u0000",
    "0" * 200,
    "1" + "0" * 400,
)
BYTES = (
    b"\0",
    b"\xff",
    b"\n",
    b"\r",
    b"\r\n",
    b"\t",
    b">",
    b"#",
    b"##gff-version 2\n",
    b"##FASTA\n",
    b"\xef\xbb\xbf",
    b"\xff\xfe",
    b"\xc3",
    b"\xed\xa0\x80",
    b"\xf0\x9f\x98\x80",
    b"\x1f\x8b",
    b"PK\x03\x04",
    b"\x93NUMPY",
    b"{",
    b"}",
    b"[",
    b"]",
    b'"',
    b"'",
    b",",
    b":",
    b"(",
    b")",
    b"\\",
    b"O",
    b"|O",
    b"<f8",
    b">c16",
    b"|V0",
    b"<U9",
    b"(1L,)",
    b"1_0",
    b"True",
    b"None",
    b"-",
    b"+",
    b"~",
    b"9" * 30,
    b" " * 70,
    b"BF16",
    b"F64",
    b"=",
    b"%00",
    b"%",
    b"\t\t",
    *(struct.pack(code, value) for value in (0, 1, 2**31 - 1, 20240520, 20240801) for code in ("<I", ">I", "<Q")),
)


def some_bytes(rng: Random, data: bytes) -> bytes:
    """One to a few blind changes."""
    for _ in range(_few(rng)):
        data = rng.choice(BLIND)(rng, data)
    return data


def _few(rng: Random) -> int:
    return 1 if rng.random() < 0.5 else rng.randint(2, 6)


def _span(rng: Random, data: bytes) -> tuple[int, int]:
    first = rng.randint(0, len(data))
    length = rng.choice((1, 2, 4, 8, 16, 64, 1024))
    return first, min(first + rng.randint(0, length), len(data))


def _flip(rng: Random, data: bytes) -> bytes:
    if not data:
        return data
    at = rng.randrange(len(data))
    return data[:at] + bytes((data[at] ^ 1 << rng.randrange(8),)) + data[at + 1 :]


def _other(rng: Random, data: bytes) -> bytes:
    first, last = _span(rng, data)
    return data[:first] + rng.randbytes(last - first) + data[last:]


def _cut(rng: Random, data: bytes) -> bytes:
    return data[: rng.randint(0, len(data))]


def _remove(rng: Random, data: bytes) -> bytes:
    first, last = _span(rng, data)
    return data[:first] + data[last:]


def _repeat(rng: Random, data: bytes) -> bytes:
    first, last = _span(rng, data)
    return data[:last] + data[first:last] * rng.choice((1, 2, 50)) + data[last:]


def _move(rng: Random, data: bytes) -> bytes:
    first, last = _span(rng, data)
    at = rng.randint(0, len(data))
    return data[:at] + data[first:last] + data[at:]


def _insert(rng: Random, data: bytes) -> bytes:
    at = rng.randint(0, len(data))
    return data[:at] + rng.choice(BYTES) + data[at:]


def _overwrite(rng: Random, data: bytes) -> bytes:
    word = rng.choice(BYTES)
    at = rng.randint(0, len(data))
    return data[:at] + word + data[at + len(word) :]


def _digits(rng: Random, data: bytes) -> bytes:
    """Another number where one stands."""
    places = [at for at, byte in enumerate(data[:4096]) if 48 <= byte <= 57]
    if not places:
        return data
    first = last = rng.choice(places)
    while last < len(data) and 48 <= data[last] <= 57:
        last += 1
    return data[:first] + str(rng.choice(NUMBERS)).encode() + data[last:]


BLIND: tuple[Mutation, ...] = (_flip, _other, _cut, _remove, _repeat, _move, _insert, _overwrite, _digits)


def some_json(rng: Random, data: bytes) -> bytes:
    """A document with values exchanged, removed, repeated or nested; now and then also what no writer would write."""
    document = json.loads(data)
    for _ in range(_few(rng)):
        document = _changed(rng, document)
    if rng.random() < 0.02:
        document = _nested(rng, document)
    mark = "\x01here\x01"
    raw = rng.random() < 0.2
    if raw:
        document = _placed(rng, document, mark)
    text = json.dumps(document, ensure_ascii=rng.random() < 0.9, indent=rng.choice((None, 2)))
    if raw:
        text = text.replace(json.dumps(mark), rng.choice(WRITTEN))
    if rng.random() < 0.05:
        text = _doubled(rng, text)
    written = text.encode("utf-8", "surrogatepass")
    return some_bytes(rng, written) if rng.random() < 0.15 else written


def _value(rng: Random) -> Any:
    kind = rng.random()
    if kind < 0.4:
        return rng.choice(NUMBERS)
    if kind < 0.55:
        return rng.choice(FLOATS)
    if kind < 0.75:
        return rng.choice(TEXTS)
    return deepcopy(rng.choice((None, True, False, [], {}, [[]], {"a": 1}, [1, 2], ["a"], {"": None}, [None] * 70)))


def _places(document: Any) -> list[tuple[Any, Any]]:
    """Every container with a key or index in it."""
    places: list[tuple[Any, Any]] = []
    level = [document]
    while level:
        each = level.pop()
        inside = each.items() if isinstance(each, dict) else enumerate(each) if isinstance(each, list) else ()
        for key, value in inside:
            places.append((each, key))
            if isinstance(value, dict | list):
                level.append(value)
        if len(places) > 400:
            break
    return places


def _changed(rng: Random, document: Any) -> Any:
    places = _places(document)
    if not places or rng.random() < 0.01:
        return _value(rng)
    container, key = rng.choice(places)
    kind = rng.random()
    if kind < 0.5:
        container[key] = _value(rng)
    elif kind < 0.65:
        del container[key]
    elif kind < 0.8:
        other, place = rng.choice(places)
        if place in other if isinstance(other, dict) else place < len(other):
            container[key] = deepcopy(other[place])
    elif kind < 0.9 and isinstance(container, dict):
        container[rng.choice((*TEXTS, key + "x", key[:-1]))] = container[key]
    elif isinstance(container, list):
        container.insert(rng.randint(0, len(container)), _value(rng))
    else:
        container[rng.choice(TEXTS)] = _value(rng)
    return document


def _placed(rng: Random, document: Any, mark: str) -> Any:
    places = _places(document)
    if not places:
        return mark
    container, key = rng.choice(places)
    container[key] = mark
    return document


def _nested(rng: Random, document: Any) -> Any:
    for _ in range(rng.choice((1, 10, 63, 64, 65, 100, 300))):
        document = [document] if rng.random() < 0.5 else {"a": document}
    return document


def _doubled(rng: Random, text: str) -> str:
    """A key given twice."""
    at = text.find("{")
    comma = text.find(",", at)
    return text if comma < 0 else text[: at + 1] + text[at + 1 : comma + 1] + text[at + 1 :]


def some_toml(rng: Random, data: bytes) -> bytes:
    lines = data.decode().split("\n")
    for _ in range(_few(rng)):
        at = rng.randrange(len(lines))
        key = lines[at].split(" = ")[0]
        kind = rng.random()
        if kind < 0.55 and key:
            lines[at] = f"{key} = {_written(rng)}"
        elif kind < 0.7:
            del lines[at]
        elif kind < 0.8:
            lines.insert(rng.randint(0, len(lines)), lines[at])
        elif kind < 0.9:
            lines.insert(at, f"{rng.choice((*WORDS, 'model', 'preset', 'data'))} = {_written(rng)}")
        else:
            lines[at] = rng.choice(("[model]", "[[model]]", "[a.b]", "preset.a = 1", "#", "", *WRITTEN[5:14]))
        if not lines:
            lines = [""]
    text = "\n".join(lines).encode("utf-8", "surrogatepass")
    return some_bytes(rng, text) if rng.random() < 0.15 else text


WORDS = (
    "layers",
    "channels",
    "heads",
    "vocab",
    "context",
    "steps",
    "epochs",
    "batch",
    "time",
    "lr",
    "a",
    '"é"',
    "threads",
)


def _written(rng: Random) -> str:
    kind = rng.random()
    if kind < 0.45:
        return str(rng.choice(NUMBERS))
    if kind < 0.6:
        return str(rng.choice(FLOATS))
    if kind < 0.8:
        return json.dumps(rng.choice(TEXTS), ensure_ascii=rng.random() < 0.5)
    return rng.choice(WRITTEN)


def some_lines(rng: Random, data: bytes) -> bytes:
    """Lines and their fields exchanged, repeated, removed."""
    lines = data.split(b"\n")
    for _ in range(_few(rng)):
        at = rng.randrange(len(lines))
        kind = rng.random()
        if kind < 0.15:
            del lines[at]
        elif kind < 0.3:
            lines.insert(rng.randint(0, len(lines)), lines[at])
        elif kind < 0.4:
            other = rng.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        elif kind < 0.75:
            fields = lines[at].split(b"\t")
            fields[rng.randrange(len(fields))] = _field(rng)
            lines[at] = b"\t".join(fields)
        else:
            lines[at] = some_bytes(rng, lines[at])
        if not lines:
            lines = [b""]
    return rng.choice((b"\n", b"\n", b"\n", b"\r\n", b"\r")).join(lines)


def _field(rng: Random) -> bytes:
    if rng.random() < 0.4:
        return str(rng.choice(NUMBERS)).encode()
    if rng.random() < 0.5:
        return rng.choice(TEXTS).encode("utf-8", "surrogatepass")
    return rng.choice(
        (b"+", b"-", b".", b"?", b"exon", b"CDS", b"chr1", b"chr2", b"chr%31", b"ID=a", b"*", *BYTES[:12])
    )


def some_json_lines(rng: Random, data: bytes) -> bytes:
    lines = data.split(b"\n")
    for _ in range(_few(rng)):
        at = rng.randrange(len(lines))
        if lines[at].startswith(b"{") and rng.random() < 0.8:
            try:
                lines[at] = some_json(rng, lines[at]).replace(b"\n", b" ")
            except (ValueError, RecursionError):  # an earlier round left it no JSON
                lines[at] = some_bytes(rng, lines[at])
        else:
            return some_lines(rng, b"\n".join(lines))
    return b"\n".join(lines)


def some_safetensors(rng: Random, data: bytes) -> bytes:
    """The header as JSON, with its length made right again, or bytes anywhere."""
    if rng.random() < 0.3:
        return some_bytes(rng, data)
    length = int.from_bytes(data[:8], "little")
    header = some_json(rng, data[8 : 8 + length])
    rest = data[8 + length :]
    if rng.random() < 0.2:
        rest = some_bytes(rng, rest)
    return len(header).to_bytes(8, "little") + header + rest


SHAPES = (
    "()",
    "(1,)",
    "(-1,)",
    "(True,)",
    "(1.0,)",
    "3",
    "(2, 3)",
    "(0,)",
    "(0, 5)",
    "(9**9,)",
    "(",
    "(1,)*99",
    "{}",
    "(" * 150 + ")" * 150,
    "-" * 3000 + "1",
    "[" * 900,
    "(10,)",
    "(2,)",
)
TYPES = (
    "'<f8'",
    "'|O'",
    "'<f16'",
    "'<f2'",
    "'>i4'",
    "'|b1'",
    "'<c16'",
    "'<f3'",
    "'|u1'",
    "'<U4'",
    "'V'",
    "[('a', '<f8')]",
    "'<M8[s]'",
    "'f'",
    "''",
    "b'<f8'",
    "7",
    "None",
    "'<i8'",
    "'=u8'",
)


def some_npy(rng: Random, data: bytes) -> bytes:
    """The header's text, with its length made right again, or bytes anywhere."""
    if rng.random() < 0.3:
        return some_bytes(rng, data)
    length = int.from_bytes(data[8:10], "little")
    header = data[10 : 10 + length]
    if rng.random() < 0.7:
        one, other = rng.choice(NUMBERS), rng.choice(NUMBERS)
        shape = rng.choice((*SHAPES, f"({one},)", f"({one}, {other})"))
        descr = rng.choice(TYPES)
        order = rng.choice(("False", "False", "True", "1", "None", "'a'"))
        keys = rng.choice(((1, 1, 1, 0),) * 8 + ((1, 1, 0, 0), (1, 0, 1, 0), (0, 1, 1, 0), (1, 1, 1, 1)))
        parts = [f"'descr': {descr}", f"'fortran_order': {order}", f"'shape': {shape}", "'more': 1"]
        header = ("{" + ", ".join(part for part, on in zip(parts, keys, strict=True) if on) + ", }\n").encode()
    else:
        header = some_bytes(rng, header)
    rest = data[10 + length :]
    return data[:8] + (len(header) & 0xFFFF).to_bytes(2, "little") + header + rest


def zipped(inner: Mutation) -> Mutation:
    """A gzip file of what was changed, or a changed gzip file."""

    def mutation(rng: Random, data: bytes) -> bytes:
        if rng.random() < 0.7:
            packed = gzip.compress(inner(rng, data), 1, mtime=0)
            return packed + packed if rng.random() < 0.05 else packed
        return some_bytes(rng, gzip.compress(data, 1, mtime=0))

    return mutation


def mixed(choices: Sequence[Mutation]) -> Mutation:
    return lambda rng, data: rng.choice(choices)(rng, data)
