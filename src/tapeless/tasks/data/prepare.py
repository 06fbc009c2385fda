"""From text to a folder of tokens: the split, the vocabulary, the shards."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import numpy as np

from tapeless.errors import TapelessError
from tapeless.files.disk import made_whole, write_file
from tapeless.inputs import check_seed
from tapeless.ops.contract import Array
from tapeless.tasks.data.corpus import Corpus, check_share, find_documents
from tapeless.tasks.data.documents import Documents
from tapeless.tasks.data.meta import DTYPES, FILE, FORMAT, VERSION, Meta, Shard, Split, dtype_for, write_dataclass
from tapeless.tasks.data.reading import Reading
from tapeless.tasks.data.shuffle import held_out, order, random_bits
from tapeless.tasks.data.tokenizer import Tokenizer, check_bpe_vocab, load_tokenizer, train_bpe
from tapeless.tasks.task import Progress

SHARD_TOKENS = 100_000_000
DEFAULT_BPE_VOCAB = 8192
AT_ONCE = 1 << 21  # bytes that are tokenised together, on all cores
LEARNED_FROM = 1 << 28  # bytes a vocabulary is learned from at most: the memory it takes grows with its words
DOCUMENTS = "documents.jsonl"


@dataclass(frozen=True)
class PreparedData:
    folder: Path
    meta: Meta


def prepare(
    source: str,
    out: Path,
    *,
    tokenizer: str = "bytes",
    vocab: int | None = None,
    validation: float = 0.1,
    seed: int = 0,
    reading: Reading | None = None,
    progress: Progress | None = None,
) -> PreparedData:
    """Tokenise a source into the new folder `out`, whole documents to train on and whole documents held out.

    `tokenizer` is bytes, bpe (learned here, from the documents to train on alone) or the path of a tokenizer.json.
    `reading` says how text is taken out of files that are not plain. `progress` is told the stage, the bytes done and
    the bytes there are.
    """
    progress = progress or (lambda stage, done, total: None)
    check_seed(seed)
    check_share(validation)
    size = learned_size(tokenizer, vocab)
    given = load_tokenizer(tokenizer) if size is None else None
    check_free(out)
    corpus = find_documents(str(source), reading, near=out.absolute().parent, progress=progress)
    try:
        sides = split_documents(corpus, validation, seed)
        chosen = given or _learned(corpus.documents, sides["training"], size or DEFAULT_BPE_VOCAB, progress)
        with made_whole(out) as folder:
            return PreparedData(out, _write(folder, corpus, sides, chosen, seed, progress))
    finally:
        corpus.close()


def learned_size(tokenizer: str, vocab: int | None) -> int | None:
    """How large a vocabulary is that is to be learned; None if one is given."""
    if tokenizer == "bpe":
        vocab = DEFAULT_BPE_VOCAB if vocab is None else vocab
        check_bpe_vocab(vocab)
    elif vocab is not None:
        raise TapelessError(f"vocab={vocab} is for a vocabulary learned here: leave it out, or choose tokenizer bpe.")
    return vocab


def check_free(out: Path) -> None:
    if "\0" in str(out):
        raise TapelessError(f"{str(out)!r} is no name of a folder: choose another.")
    if os.path.lexists(out):
        raise TapelessError(f"{out} exists already: choose another folder.")


def split_documents(corpus: Corpus, share: float, seed: int) -> dict[str, Array]:
    """The numbers of the documents to train on and of those held out, both in the corpus's order.

    Documents of the same text go together: what was trained on is not held out.
    """
    documents = corpus.documents
    if len(documents) == 1:
        documents.cut_in_two(1 - share)
        return {"training": np.array([0]), "validation": np.array([1])}
    text_of = documents.same_texts()
    weights = np.zeros(int(text_of.max()) + 1, np.int64)  # of each text, the bytes of its documents
    np.add.at(weights, text_of, documents.sizes)
    if len(weights) == 1:
        raise TapelessError(
            f"{corpus.source} holds {len(documents):,} times the same text, so nothing can be held out: give more, or "
            f"one of them."
        )
    is_held = held_out(weights, text_of[order(random_bits(seed), len(documents))].tolist(), share)[text_of]
    return {"training": np.flatnonzero(~is_held), "validation": np.flatnonzero(is_held)}


def _learned(documents: Documents, training: Array, vocab: int, progress: Progress) -> Tokenizer:
    """A vocabulary from the documents to train on; of very much text every n-th piece will do."""
    total = int(documents.sizes[training].sum())
    stride = -(-total // LEARNED_FROM)

    def texts() -> Iterator[str]:
        done = 0
        for number, (piece, _) in enumerate(documents.every_piece(training.tolist())):
            if number % stride == 0:
                yield piece.decode("utf-8")
            done += len(piece)
            progress("learning the vocabulary", done, total)

    return train_bpe(texts(), vocab)


def _write(
    folder: Path, corpus: Corpus, sides: Mapping[str, Array], tokenizer: Tokenizer, seed: int, progress: Progress
) -> Meta:
    dtype = dtype_for(tokenizer.vocab)
    splits, done = {}, 0
    for name, numbers in sides.items():
        size = int(corpus.documents.sizes[numbers].sum())
        told = partial(_report, progress, done, corpus.size)
        shards = _write_shards(folder, name, dtype, _encoded(corpus.documents, numbers, tokenizer, dtype, told))
        tokens = sum(shard.tokens for shard in shards)
        if tokens < 2:
            raise TapelessError(
                f"{corpus.source} leaves {tokens} tokens for {name}, and a target needs 2: give more text."
            )
        splits[name] = Split(len(numbers), size, tokens, shards)
        done += size
    tokenizer.save(folder)
    write_file(folder / DOCUMENTS, _document_lines(corpus.documents, sides))
    meta = Meta(
        source=corpus.source,
        seed=seed,
        tokenizer=tokenizer.name,
        vocab=tokenizer.vocab,
        end=tokenizer.end,
        dtype=dtype,
        skipped=corpus.skipped,
        examples=corpus.examples,
        **splits,
    )
    write_dataclass(folder / FILE, meta, FORMAT, VERSION)  # the last file: a folder without it is not whole
    return meta


def _report(progress: Progress, before: int, total: int, done: int) -> None:
    progress("tokenising", before + done, total)


def _encoded(
    documents: Documents, numbers: Array, tokenizer: Tokenizer, dtype: str, told: Callable[[int], None]
) -> Iterator[Array]:
    """The ids of the documents, each followed by the end where its text ends."""
    end, done = np.array([tokenizer.end]), 0
    for group in _groups(documents.every_piece(numbers.tolist())):
        encoded = tokenizer.encode_pieces([piece for piece, _ in group])
        ends = (end if last else end[:0] for _, last in group)
        parts = [part for pair in zip(encoded, ends, strict=True) for part in pair]
        yield np.concatenate(parts, dtype=DTYPES[dtype], casting="unsafe")
        done += sum(len(piece) for piece, _ in group)
        told(done)


def _groups(pieces: Iterable[tuple[bytes, bool]]) -> Iterator[list[tuple[bytes, bool]]]:
    """Pieces of about AT_ONCE bytes together."""
    group: list[tuple[bytes, bool]] = []
    size = 0
    for each in pieces:
        group.append(each)
        size += len(each[0])
        if size >= AT_ONCE:
            yield group
            group, size = [], 0
    if group:
        yield group


def _write_shards(folder: Path, name: str, dtype: str, arrays: Iterator[Array]) -> tuple[Shard, ...]:
    """The ids in files of SHARD_TOKENS at most."""
    shards = []
    for number, parts in groupby(_numbered(arrays), key=itemgetter(0)):
        file = f"{name}-{number:04}.bin"
        written = write_file(folder / file, (part.view(np.uint8).data for _, part in parts))
        shards.append(Shard(file, written.size // np.dtype(DTYPES[dtype]).itemsize, written.sha256))
    return tuple(shards)


def _numbered(arrays: Iterator[Array]) -> Iterator[tuple[int, Array]]:
    """The ids cut where a shard is full, each part with the number of its shard."""
    place = 0
    for array in arrays:
        rest = array
        while len(rest):
            number, filled = divmod(place, SHARD_TOKENS)
            part = rest[: SHARD_TOKENS - filled]
            yield number, part
            place += len(part)
            rest = rest[len(part) :]


def _document_lines(documents: Documents, sides: Mapping[str, Array]) -> Iterator[bytes]:
    """For each document, on which side of the split it is, and which bytes of which file it was."""
    for name, numbers in sides.items():
        for number in numbers.tolist():
            yield json.dumps({"split": name, **documents.place(number)}).encode() + b"\n"
