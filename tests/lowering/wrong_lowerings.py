"""Lowered programs that are wrong but for one thing, made from right ones: each says the reason that the refusal must
name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from tapeless.lowering import Rules, lower, lowered_for
from tapeless.lowering.gpu import FUSIONS
from tapeless.lowering.relu import RELU_IN_LINEAR
from tapeless.models import transformer
from tapeless.models.config import Optimizer
from tapeless.program.call import Argument, Buffer, Call
from tapeless.program.lowered import FusedCall, LoweredProgram, fused
from tests.program.wiring import BASE, CHANGES

Change = Callable[[LoweredProgram], LoweredProgram]
ALL = Rules((*FUSIONS, RELU_IN_LINEAR), omits=True)

# By what is wrong, what the refusal says.
REASONS = {
    "missing": r"is carried out by no call",
    "twice": r"carried out\s+twice, or out of order",
    "parts": r"parts, but is said to carry out",
    "spans": r"calls are said to carry out \d+ spans|there is no call \d+ to be carried out",
    "another": r"is another application",
    "phase": r"its phase '\w+' is not asked for",
    "argument": r"lowering: \w+ of .* is (none of|\S+, but)",
    "mode": r"(writes|adds|reads) \w+ \(.*\), but .* (writes|adds|reads) it",
    "given": r"leaves out \w+ \(.*\), which is given",
    "no input": r"is left out, but it is no input",
    "not the same": r"wrong starts",
    "derived": r"reads or leaves something else than its parts do together",
    "read later": r"unwritten, and a later call reads it",
    "from outside": r"unwritten, which it reads from outside",
    "kept": r"unwritten, which is \w+",
    "over": r"writes \S+ over \S+, which (is not like it|is kept|is still read|a later call reads)",
    "not initialised": r"added to before it is initialised|is read before it is written",
    "overwritten": r"is overwritten by",
}


@dataclass(frozen=True)
class Wrong:
    what: str
    change: Change
    reason: str
    program: str = "llama"


@cache
def right(name: str) -> LoweredProgram:
    """The list that a whole step runs; of "… planned" the one that is planned, which zeroes and adds."""
    name, _, planned = name.partition(" ")
    fields = CHANGES["llama"] | {"query_key_norm": False} if name == "rotated" else CHANGES[name.replace("_", " ")]
    program = transformer.training(BASE.override(**fields), 2, 3, Optimizer("sgd"), weighted=name == "signal")
    lowered = lower(program, ALL)
    return lowered if planned else lowered_for(lowered)


def number_of(p: LoweredProgram, title: str, end: str = "", skip: int = 0) -> int:
    """Of the call, or fused call, that has this title and a buffer whose name ends so."""
    found = [
        number
        for number, call in enumerate(p.calls)
        if call.title == title and any(a.view.buffer.name.endswith(end) for part in call.parts for a in part.arguments)
    ]
    return found[skip]


def fused_at(p: LoweredProgram, *ops: str) -> int:
    """Of the first fused call with parts of all these ops."""
    return next(
        n for n, c in enumerate(p.calls) if isinstance(c, FusedCall) and {*ops} <= {part.op for part in c.parts}
    )


def instead(p: LoweredProgram, at: int, *new: tuple[tuple[int, int], Call], count: int = 1) -> LoweredProgram:
    calls, spans = list(p.calls), list(p.spans)
    calls[at : at + count] = [call for _, call in new]
    spans[at : at + count] = [span for span, _ in new]
    return replace(p, calls=tuple(calls), ranges=tuple(spans))


def remade(call: Call, parts: Sequence[Call], between: Sequence[Buffer] | None = None, over: Any = None) -> FusedCall:
    """A fused call of other parts, sound in itself."""
    assert isinstance(call, FusedCall)
    inside = call.between if between is None else between
    return fused(call.op, parts, inside, call.places if over is None else over)


def one(title: str, change: Callable[[Call], Call | None], end: str = "", skip: int = 0) -> Change:
    """One plain call changed, or left out."""

    def apply(p: LoweredProgram) -> LoweredProgram:
        at = number_of(p, title, end, skip)
        new = change(p.calls[at])
        return instead(p, at, *([(p.spans[at], new)] if new else []))

    return apply


def part(ops: tuple[str, ...], index: int, change: Callable[[Call], Call]) -> Change:
    """One part of a fused call changed."""

    def apply(p: LoweredProgram) -> LoweredProgram:
        at = fused_at(p, *ops)
        parts = list(p.calls[at].parts)
        parts[index] = change(parts[index])
        return instead(p, at, (p.spans[at], remade(p.calls[at], parts)))

    return apply


def shape(
    ops: tuple[str, ...], change: Callable[[list[Call], tuple[int, int]], tuple[list[Call], tuple[int, int]]]
) -> Change:
    """The parts and the span of a fused call changed."""

    def apply(p: LoweredProgram) -> LoweredProgram:
        at = fused_at(p, *ops)
        parts, span = change(list(p.calls[at].parts), p.spans[at])
        return instead(p, at, (span, remade(p.calls[at], parts)))

    return apply


def about(ops: tuple[str, ...], change: Callable[[LoweredProgram, FusedCall], FusedCall]) -> Change:
    """What a fused call says of itself changed."""

    def apply(p: LoweredProgram) -> LoweredProgram:
        at = fused_at(p, *ops)
        call = p.calls[at]
        assert isinstance(call, FusedCall)
        return instead(p, at, (p.spans[at], change(p, call)))

    return apply


# Changes of one call


def without(name: str) -> Callable[[Call], Call]:
    return lambda call: replace(call, arguments=tuple(each for each in call.arguments if each.name != name))


def mode(name: str, how: str) -> Callable[[Call], Call]:
    return lambda call: replace(
        call, arguments=tuple(replace(a, mode=how) if a.name == name else a for a in call.arguments)
    )


def exchanged(name: str, other: str) -> Callable[[Call], Call]:
    def change(call: Call) -> Call:
        views = {name: call[other], other: call[name]}
        return replace(call, arguments=tuple(replace(a, view=views.get(a.name, a.view)) for a in call.arguments))

    return change


def scalar(name: str, value: Any) -> Callable[[Call], Call]:
    return lambda call: replace(call, scalars=tuple((n, value if n == name else v) for n, v in call.scalars))


def nothing(call: Call) -> None:
    return None


def twice(title: str, end: str = "") -> Change:
    def apply(p: LoweredProgram) -> LoweredProgram:
        at = number_of(p, title, end)
        return instead(p, at, *[(p.spans[at], p.calls[at])] * 2)

    return apply


def reordered(p: LoweredProgram) -> LoweredProgram:
    at = fused_at(p, "residual")
    pairs = [(p.spans[n], p.calls[n]) for n in (at + 1, at)]
    return instead(p, at, *pairs, count=2)


def fused_dropped(*ops: str) -> Change:
    return lambda p: instead(p, fused_at(p, *ops))


def fused_twice(*ops: str) -> Change:
    def apply(p: LoweredProgram) -> LoweredProgram:
        at = fused_at(p, *ops)
        return instead(p, at, *[(p.spans[at], p.calls[at])] * 2)

    return apply


def also_alone(p: LoweredProgram) -> LoweredProgram:
    """What a fused call does already once more by itself, after it."""
    at = fused_at(p, "residual")
    (first, last), call = p.spans[at], p.calls[at]
    return instead(p, at, ((first, last), call), ((last, last), call.parts[-1]))


def swallowing(p: LoweredProgram) -> LoweredProgram:
    """A fused call that does the call after it, too, which stands there still."""
    at = fused_at(p, "residual")
    (first, last), call = p.spans[at], p.calls[at]
    more = [*call.parts, *p.calls[at + 1].parts]
    return instead(p, at, ((first, last + len(p.calls[at + 1].parts)), remade(call, more, ())))


def across(p: LoweredProgram) -> LoweredProgram:
    """The call after the next is fused in, and the one between is done behind it."""
    at = next(
        n
        for n, call in enumerate(p.calls)
        if isinstance(call, FusedCall) and len(p.calls[n + 1].parts) == len(p.calls[n + 2].parts) == 1
    )
    (first, last), call = p.spans[at], p.calls[at]
    parts = [*call.parts, *p.calls[at + 2].parts]
    return instead(
        p, at, ((first, last + 1), remade(call, parts, ())), ((last + 2, last + 2), p.calls[at + 1]), count=3
    )


def unwritten(pick: Callable[[LoweredProgram, FusedCall], Buffer]) -> Callable[[LoweredProgram, FusedCall], FusedCall]:
    """One more buffer that it says it need not write."""

    def change(p: LoweredProgram, call: FusedCall) -> FusedCall:
        return remade(call, call.parts, (*call.between, pick(p, call)))

    return change


def read_buffer(p: LoweredProgram, call: FusedCall) -> Buffer:
    return next(a.view.buffer for a in call.reads if a.view.buffer.kind == "workspace" and a.view.whole)


def left_buffer(p: LoweredProgram, call: FusedCall) -> Buffer:
    return next(a.view.buffer for a in call.writes if a.mode == "write" and a.view.buffer.kind == "workspace")


def kind_of(kind: str) -> Callable[[LoweredProgram, FusedCall], Buffer]:
    return lambda p, call: next(a.view.buffer for a in call.arguments if a.view.buffer.kind == kind)


def saying(
    change: Callable[[tuple[Argument, ...]], tuple[Argument, ...]],
) -> Callable[[LoweredProgram, FusedCall], FusedCall]:
    return lambda p, call: replace(call, arguments=change(call.arguments))


def first_mode(how: str, before: str) -> Callable[[tuple[Argument, ...]], tuple[Argument, ...]]:
    def change(arguments: tuple[Argument, ...]) -> tuple[Argument, ...]:
        at = next(n for n, each in enumerate(arguments) if each.mode == before)
        return (*arguments[:at], replace(arguments[at], mode=how), *arguments[at + 1 :])

    return change


def over(*pairs: tuple[str, str]) -> Callable[[LoweredProgram, FusedCall], FusedCall]:
    """By the ends of their names."""

    def change(p: LoweredProgram, call: FusedCall) -> FusedCall:
        found = []
        for names in pairs:
            inside = [a.view.buffer for each in call.parts for a in each.arguments] + list(p.buffers)
            above, below = (next(b for b in inside if b.name.endswith(name)) for name in names)
            found.append((above, below))
        return replace(call, places=tuple(found))

    return change


def zeroing_left_out(p: LoweredProgram) -> LoweredProgram:
    return instead(p, 0)


def zeroing_too(p: LoweredProgram) -> LoweredProgram:
    return instead(p, 0, ((0, 0), p.original.calls[0]), (p.spans[0], p.calls[0]))


def every(how: str, before: str) -> Change:
    """All writes of gradients of this mode."""

    def changed(call: Call) -> Call:
        arguments = tuple(
            replace(a, mode=how)
            if a.mode == before and a.view.buffer.kind == "gradient" and call.phase != "zero"
            else a
            for a in call.arguments
        )
        return replace(call, arguments=arguments)

    def apply(p: LoweredProgram) -> LoweredProgram:
        calls = []
        for call in p.calls:
            parts = [changed(each) for each in call.parts]
            calls.append(remade(call, parts) if isinstance(call, FusedCall) else parts[0])
        return replace(p, calls=tuple(calls))

    return apply


def asked(**fields: Any) -> Change:
    return lambda p: replace(p, **{name: value(p) if callable(value) else value for name, value in fields.items()})


def last_span(p: LoweredProgram) -> tuple[tuple[int, int], ...]:
    at = len(p.original.calls)
    return (*p.spans[:-1], (at, at))


def attention_without_starts(direction: str) -> Change:
    """With the input said to be left out, but read in the other direction."""
    return lambda p: replace(one(f"attention.{direction}", without("starts"))(p), omitted=frozenset({"starts"}))


NORM, BACK, ROPE = ("residual", "rmsnorm"), ("rmsnorm", "swiglu"), ("rope",)
GELU, LAYER, LORA, RELU = ("linear", "gelu"), ("residual", "layernorm"), ("adapt",), ("relu", "linear")

WRONG = [
    # A call left out, done twice, or in another place
    Wrong("a call left out", one("attention.forward", nothing), "missing"),
    Wrong("the classifier left out", one("classifier.backward", nothing), "missing"),
    Wrong("the embedding's backward left out", one("embedding.backward", nothing), "missing", "gpt"),
    Wrong("the update left out", one("sgd.forward", nothing), "missing"),
    Wrong("the clip left out", one("clip.forward", nothing), "missing"),
    Wrong("a fused call left out", fused_dropped(*NORM), "missing"),
    Wrong("a fused backward left out", fused_dropped(*BACK), "missing"),
    Wrong("RoPE left out", fused_dropped(*ROPE), "missing", "rotated"),
    Wrong("a call done twice", twice("attention.backward"), "twice"),
    Wrong("the update done twice", twice("sgd.forward"), "twice"),
    Wrong("a gradient added twice", twice("embedding.backward"), "twice", "gpt"),
    Wrong("a fused call done twice", fused_twice(*NORM), "twice"),
    Wrong("a fused backward done twice", fused_twice(*BACK), "twice"),
    Wrong("fused and alone", also_alone, "twice"),
    Wrong("the call behind fused in and done", swallowing, "twice"),
    Wrong("two calls exchanged", reordered, "twice"),
    Wrong("fused across a call", across, "another", "post-norm"),
    # A fused call of other parts
    Wrong("its last part left out", shape(NORM, lambda parts, span: (parts[:-1], span)), "parts"),
    Wrong("its first part left out", shape(BACK, lambda parts, span: (parts[1:], span)), "parts"),
    Wrong("a part in the middle left out", shape(BACK, lambda parts, span: ([*parts[:2], *parts[3:]], span)), "parts"),
    Wrong("a part done twice", shape(NORM, lambda parts, span: ([*parts, parts[-1]], span)), "parts"),
    Wrong(
        "its last part left out, and not said to be done",
        shape(BACK, lambda parts, span: (parts[:-1], (span[0], span[1] - 1))),
        "missing",
    ),
    Wrong(
        "its first part left out, and not said to be done",
        shape(BACK, lambda parts, span: (parts[1:], (span[0] + 1, span[1]))),
        "missing",
    ),
    Wrong("parts exchanged", shape(NORM, lambda parts, span: (parts[::-1], span)), "another"),
    Wrong(
        "a part in place of another",
        shape(BACK, lambda parts, span: ([parts[0], parts[0], *parts[2:]], span)),
        "another",
    ),
    Wrong(
        "RoPE of queries for that of keys",
        shape(ROPE, lambda parts, span: ([parts[0]] * 2, span)),
        "argument",
        "rotated",
    ),
    Wrong("the adapters without the linear", shape(LORA, lambda parts, span: (parts[1:], span)), "parts", "adapted"),
    Wrong("a ReLU alone", shape(RELU, lambda parts, span: (parts[:1], span)), "parts", "post-norm"),
    # A part that is another call
    Wrong("another epsilon", part(NORM, 1, scalar("eps", 0.5)), "another"),
    Wrong("another rate of an adapter", part(LORA, 2, scalar("scale", 3.0)), "another", "adapted"),
    Wrong("not causal", one("attention.forward", scalar("causal", False)), "another"),
    Wrong("another op", one("positions.forward", lambda call: replace(call, op="positions_at")), "another", "gpt"),
    Wrong("another activation", part(GELU, 1, lambda call: replace(call, op="relu")), "another", "gpt"),
    Wrong("in another phase", one("attention.forward", lambda call: replace(call, phase="recompute")), "another"),
    Wrong("queries for keys", one("attention.forward", exchanged("q", "k")), "argument", "gpt"),
    Wrong("one weight for another", part(NORM, 1, exchanged("y", "rstd")), "argument"),
    Wrong("gradients exchanged", one("attention.backward", exchanged("dq", "dk")), "argument", "gpt"),
    Wrong("one of a residual's inputs for the other", part(LAYER, 0, exchanged("x", "branch")), "argument", "gpt"),
    # Writes and adds
    Wrong(
        "a gradient added to that nobody has zeroed",
        one("linear.backward", mode("dweight", "add")),
        "not initialised",
        "post-norm",
    ),
    Wrong(
        "a gradient written that holds another part",
        one("embedding.backward", mode("dweight", "write")),
        "overwritten",
        "gpt",
    ),
    Wrong("written where several batches are added up", every("write", "add"), "overwritten", "gpt planned"),
    Wrong("all gradients added to, and none zeroed", every("add", "write"), "not initialised", "gpt"),
    Wrong("zeroing left out, and added to", zeroing_left_out, "not initialised", "gpt planned"),
    Wrong("zeroing left out of a model that answers once", zeroing_left_out, "not initialised", "one_answer planned"),
    Wrong("zeroed and written", zeroing_too, "overwritten", "gpt"),
    Wrong("the stream written and not added to", one("positions.forward", mode("y", "write")), "mode", "gpt"),
    Wrong("the stream's gradient written", part(LAYER, 0, mode("y", "add")), "mode", "gpt"),
    Wrong("an adapter that writes", part(LORA, 2, mode("y", "write")), "mode", "adapted"),
    Wrong("attention that adds", one("attention.backward", mode("dq", "add")), "mode"),
    # Inputs
    Wrong("an input dropped that is given", one("attention.forward", without("starts")), "given"),
    Wrong("dropped in the backward alone", one("attention.backward", without("starts")), "given"),
    Wrong("left out, and read in the backward", attention_without_starts("forward"), "not the same"),
    Wrong("left out, and read in the forward", attention_without_starts("backward"), "not the same"),
    Wrong("a bias dropped", part(GELU, 0, without("bias")), "given", "gpt"),
    Wrong("a weight's gradient dropped", part(BACK, 0, without("dweight")), "given"),
    Wrong("a gradient that goes on dropped", one("classifier.backward", without("dx")), "given"),
    Wrong("a weight said to be no input", asked(omitted=frozenset({"tokens.weight"})), "no input"),
    Wrong("nothing said to be an input", asked(omitted=frozenset({"nothing"})), "no input"),
    # What a fused call says of itself
    Wrong("a read not said", about(NORM, saying(lambda a: tuple(x for x in a if x.mode != "read"))), "derived"),
    Wrong("a write not said", about(NORM, saying(lambda a: a[:-1])), "derived"),
    Wrong("nothing said", about(BACK, saying(lambda a: ())), "derived"),
    Wrong("said to add where it writes", about(BACK, saying(first_mode("add", "write"))), "derived"),
    Wrong("said to write where it reads", about(NORM, saying(first_mode("write", "read"))), "derived"),
    Wrong("a buffer said to be read that is not", about(NORM, saying(lambda a: (*a, a[0]))), "derived"),
    Wrong("the sum not written, which the stream is", about(NORM, unwritten(left_buffer)), "read later"),
    Wrong("what GELU is of not written", about(GELU, unwritten(left_buffer)), "read later", "gpt"),
    Wrong("rotated queries not written", about(ROPE, unwritten(left_buffer)), "read later", "rotated"),
    Wrong("an adapted product not written", about(LORA, unwritten(left_buffer)), "read later", "adapted"),
    Wrong("what it reads not written", about(NORM, unwritten(read_buffer)), "from outside"),
    Wrong("a gradient not written", about(BACK, unwritten(kind_of("gradient"))), "kept"),
    Wrong("a weight not written", about(NORM, unwritten(kind_of("weight"))), "kept"),
    # What lies where something lay
    Wrong("over a buffer that is live", about(NORM, over(("norm2", "sum1"))), "over"),
    Wrong("over what is of another shape", about(BACK, over(("mlp.dgate_up", "mlp.act"))), "over"),
    Wrong("over itself", about(BACK, over(("mlp.dgate_up", "mlp.dgate_up"))), "over"),
    Wrong("a weight over another", about(BACK, over(("norm2.dweight", "norm2.weight"))), "over"),
    Wrong("the other way round", about(BACK, over(("mlp.gate_up", "mlp.dgate_up"))), "over"),
    Wrong(
        "the gradient over the activation that is read later", about(BACK, over(("mlp.act", "blocks.0.norm2"))), "over"
    ),
    # The list as a whole
    Wrong("a phase that is not asked for", asked(phases=("forward",)), "phase"),
    Wrong(
        "a phase without its calls",
        asked(phases=None, calls=lambda p: p.calls[:-1], ranges=lambda p: p.spans[:-1]),
        "missing",
    ),
    Wrong("fewer spans than calls", asked(ranges=lambda p: p.spans[:-1]), "spans"),
    Wrong("a call that there is not", asked(ranges=last_span), "spans"),
]
