"""Programs that are wrong but for one line: right ones, with one call dropped, exchanged, sent elsewhere, written for
added, or put in another place. Each says what the refusal must name: the buffer, the call, and the rule it breaks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tapeless.models import transformer
from tapeless.models.config import Optimizer
from tapeless.program.builder import Builder
from tapeless.program.call import Argument, Buffer, Call, Program, View, Weight, add, as_view, member_offsets, write
from tests.program.wiring import BASE, BATCH, CHANGES, TIME

Change = Callable[[Program], Program]

# By rule, what the sentence of its refusal says.
RULES = {
    "overlap": r"writes (dx over dy|y over x), which it reads",
    "read too early": r"is read before it is written",
    "not initialised": r"is added to before it is initialised",
    "recomputation": r"not computed before",
    "overwritten": r"is overwritten by .* (while|before|after) ",
    "read-only": r"it is (a constant|an input), which no call may write|only an update, in its phase, writes weights",
    "added to": r"each must be added to",
    "no derivative": r"no derivative",
    "no use": r"no loss depends on",
    "no backward": r"no backward",
    "no forward": r"no forward",
    "out of order": r"out of order",
    "left out": r"^no gradient",
    "wrong gradient": r"wrong gradient",
    "wrong scalar": r"wrong (causal|window|eps|rate|site|scale)",
    "random": r"^random: .*(again, as both have site|learns nothing)",
    "not the same": r"wrong starts: .* must be given the same",
    "region": r"is no part of the region|lie in the order of their weights",
    "meaning": r"^wrong meaning: .* (is declared as .*, but .* is|is given|it can be one)",
    "declared": r"^wrong (decay|matrices|sections): ",
    "update": r"updated again|used by no update|must be all|must be the result of",
}


@dataclass(frozen=True)
class Wrong:
    how: str  # drop, exchange, redirect, write for add, reorder
    what: str
    change: Change
    buffer: str  # that the sentence names
    call: str  # whose title and line it names
    rule: str
    program: str = "gpt"


def base(name: str) -> Program:
    """`gpt` has as many positions as words, so that gradients of two tables can be taken for each other."""
    if name == "shared bias":
        return shared_bias()
    if name in ("gpt", "muon"):
        optimizer = Optimizer("adamw" if name == "gpt" else "muon")
        return transformer.training(BASE.override(context=5, layers=1), BATCH, TIME, optimizer)
    return transformer.training(
        BASE.override(**CHANGES[name]), BATCH, TIME, Optimizer("sgd"), weighted=name == "signal"
    )


def shared_bias() -> Program:
    """Two linears, a relu between them, and one bias for both."""
    p = Builder()
    one, two, bias, other = p.weight("one", 2, 2), p.weight("two", 2, 2), p.weight("bias", 2), p.weight("other", 2)
    done, dtwo, dbias, dother = (p.gradient(weight) for weight in (one, two, bias, other))
    x, goals = p.buffer("input", "x", (3, 2)), p.buffer("constant", "goals", (3, 2))
    targets, count = p.buffer("input", "targets", (3,), "index"), p.buffer("input", "count", (1,), "scalar")
    loss = p.buffer("output", "loss", (1,), "statistic")
    h, a, y, z, dz, dy, da, dh = (p.workspace(name, 3, 2) for name in ("h", "a", "y", "z", "dz", "dy", "da", "dh"))
    gradients = p.region("gradient", "gradients")
    with p.phase("zero"):
        p.zero.forward(y=write(gradients))
    p.linear.forward(y=write(h), x=x, weight=one, bias=bias)
    p.relu.forward(y=write(a), x=h)
    p.linear.forward(y=write(y), x=a, weight=two, bias=bias)
    p.linear.forward(y=write(z), x=y, weight=two, bias=other)
    with p.phase("backward"):
        p.squared_error.backward(loss=write(loss), dx=write(dz), x=z, table=goals, targets=targets, count=count)
        p.linear.backward(dx=write(dy), dweight=add(dtwo), dbias=add(dother), dy=dz, x=y, weight=two)
        p.linear.backward(dx=write(da), dweight=add(dtwo), dbias=add(dbias), dy=dy, x=a, weight=two)
        p.relu.backward(dx=write(dh), dy=da, x=h)
        p.linear.backward(dweight=add(done), dbias=add(dbias), dy=dh, x=x, weight=one)
    transformer.write_update(p, Optimizer("sgd"), gradients, loss, master=False)
    return p.build()


# How a right program is changed. A place is the title of a call, and where there are several the end of the name of a
# buffer that it has: "linear.backward mlp.up.weight"; "again": the recomputation of it.


def at(p: Program, place: str) -> Call:
    title, *ends = place.split()
    again = "again" in ends
    end = next((each for each in ends if each != "again"), "")
    found = [
        call
        for call in p.calls
        if call.title == title
        and (call.phase == "recompute") == again
        and any(name.endswith(end) for a in call.arguments for name in (a.view.buffer.name, a.view.name))
    ]
    assert len(found) == 1, f"{place} is {len(found)} calls"
    return found[0]


def buffer(p: Program, name: str) -> Buffer:
    return next(each for each in p.buffers if each.name == name)


def changed(p: Program, old: Call, *new: Call) -> Program:
    index = next(n for n, call in enumerate(p.calls) if call is old)
    return Program((*p.calls[:index], *new, *p.calls[index + 1 :]), p.buffers)


def _arguments(call: Call, change: Callable[[Argument], Argument | None]) -> Call:
    made = [change(argument) for argument in call.arguments]
    return replace(call, arguments=tuple(argument for argument in made if argument is not None))


def drop(place: str) -> Change:
    return lambda p: changed(p, at(p, place))


def twice(place: str) -> Change:
    return lambda p: changed(p, at(p, place), at(p, place), at(p, place))


def leave_out(place: str, name: str) -> Change:
    return lambda p: changed(p, at(p, place), _arguments(at(p, place), lambda a: None if a.name == name else a))


def exchange(place: str, one: str, other: str) -> Change:
    def change(p: Program) -> Program:
        call = at(p, place)
        views = {one: call[other], other: call[one]}
        return changed(p, call, _arguments(call, lambda a: replace(a, view=views.get(a.name, a.view))))

    return change


def redirect(place: str, name: str, to: str | Callable[[Program], Buffer | View]) -> Change:
    """One argument to another buffer, by name."""

    def change(p: Program) -> Program:
        call, view = at(p, place), as_view(buffer(p, to) if isinstance(to, str) else to(p))
        return changed(p, call, _arguments(call, lambda a: replace(a, view=view) if a.name == name else a))

    return change


def as_mode(mode: str) -> Callable[[str, str], Change]:
    def access(place: str, name: str) -> Change:
        def change(p: Program) -> Program:
            call = at(p, place)
            return changed(p, call, _arguments(call, lambda a: replace(a, mode=mode) if a.name == name else a))

        return change

    return access


written, added = as_mode("write"), as_mode("add")


def before(place: str, other: str) -> Change:
    """The call stands before another."""

    def change(p: Program) -> Program:
        call, rest = at(p, place), [each for each in p.calls if each is not at(p, place)]
        rest.insert(next(n for n, each in enumerate(rest) if each is at(p, other)), call)
        return Program(tuple(rest), p.buffers)

    return change


def with_scalar(place: str, **scalars: Any) -> Change:
    def change(p: Program) -> Program:
        call = at(p, place)
        return changed(p, call, replace(call, scalars=tuple((dict(call.scalars) | scalars).items())))

    return change


def in_phase(place: str, phase: str) -> Change:
    return lambda p: changed(p, at(p, place), replace(at(p, place), phase=phase))


def both(*changes: Change) -> Change:
    def change(p: Program) -> Program:
        for each in changes:
            p = each(p)
        return p

    return change


# The few that are more than one of these.


def part_zeroed(p: Program) -> Program:
    """Only the first of the gradients: the rest is what the last step left there."""
    zero = at(p, "zero.forward")
    region = zero["y"].buffer
    return redirect("zero.forward", "y", lambda _: region.columns(0, region.members[0].elements))(p)


def second_region(p: Program) -> Program:
    zero = at(p, "zero.forward")
    second = replace(zero["y"].buffer, name="gradients again")
    return Program(redirect("zero.forward", "y", lambda _: second)(p).calls, (*p.buffers, second))


def late_weight(p: Program) -> Program:
    """`other` is declared after the region of the weights has been made, which is why that has it not."""
    weights = buffer(p, "weights")
    short = replace(weights, members=tuple(m for m in weights.members if m.name != "other"))
    calls = redirect("sgd.forward", "weights", lambda _: short)(p).calls
    return Program(calls, tuple(short if b == weights else b for b in p.buffers))


def other_order(p: Program) -> Program:
    one, other = (buffer(p, name) for name in ("blocks.0.norm1.dweight", "blocks.0.norm1.dbias"))
    places = {one: other, other: one}
    return Program(p.calls, tuple(places.get(b, b) for b in p.buffers))


def skip_dropped(p: Program) -> Program:
    """The norm's gradient goes to a buffer of its own, and from there on that is the stream's."""
    norm = at(p, "layernorm.backward norm2.weight")
    stream, spare = norm["dx"].buffer, replace(norm["dx"].buffer, name="spare")
    place = p.calls.index(norm)
    first = _arguments(norm, lambda a: replace(a, view=spare.all, mode="write") if a.name == "dx" else a)
    rest = (
        _arguments(call, lambda a: replace(a, view=spare.all) if a.view.buffer == stream else a)
        for call in p.calls[place + 1 :]
    )
    return Program((*p.calls[:place], first, *rest), (*p.buffers, spare))


def overwriting(name: str) -> Change:
    """One more relu, into what no call may write."""

    def change(p: Program) -> Program:
        relu = at(p, "relu.forward")
        extra = _arguments(relu, lambda a: replace(a, view=buffer(p, name).all) if a.name == "y" else a)
        return changed(p, relu, relu, extra)

    return change


def half(place: str, region: str) -> Change:
    """Of a region only its first vectors."""
    return redirect(place, region, lambda p: buffer(p, region).columns(0, 32))


def keys_of_dweight(p: Program) -> View:
    return buffer(p, "blocks.0.attn.qkv.dweight").columns(4, 8)


def forward_only(_: Program) -> Program:
    """positions_at is a forward alone; what it adds to passes through, the table's gradient would be lost."""
    p = Builder()
    table, words = p.weight("table", 4, 2), p.weight("words", 5, 2)
    p.gradient(table), p.gradient(words)
    x, dx = p.workspace("x", 1, 3, 2), p.workspace("dx", 1, 3, 2)
    tokens, targets = (p.buffer("input", name, (1, 3), "index") for name in ("tokens", "targets"))
    place, count = p.buffer("input", "at", (1,), "index"), p.buffer("input", "count", (1,), "scalar")
    loss = p.buffer("output", "loss", (1,), "statistic")
    with p.phase("zero"):
        p.zero.forward(y=write(p.region("gradient", "gradients")))
    p.embedding.forward(y=write(x), tokens=tokens, weight=words)
    p.positions_at.forward(y=add(x), table=table, position=place)
    with p.phase("backward"):
        p.squared_error.backward(loss=write(loss), dx=write(dx), x=x, table=words, targets=targets, count=count)
        p.embedding.backward(dweight=add(p.gradient(words)), dy=dx, tokens=tokens)
    return p.build()


def forward_alone(p: Program) -> Program:
    """A training step of which the forward was taken for an evaluation."""
    calls = p.phase("forward")
    used = {part for call in calls for a in call.arguments for part in (a.view.buffer, *a.view.buffer.parts)}
    return Program(calls, tuple(b for b in p.buffers if b in used or (b.kind == "weight" and not b.members)))


def decaying(change: Callable[[Program], tuple[tuple[int, int], ...]], place: str = "adamw.forward") -> Change:
    return lambda p: with_scalar(place, decayed=change(p))(p)


def span(p: Program, name: str) -> tuple[int, int]:
    members = buffer(p, "weights").members
    start = member_offsets(members)[0][next(n for n, each in enumerate(members) if each.name == name)]
    return start, start + buffer(p, name).elements


def decayed(p: Program) -> tuple[tuple[int, int], ...]:
    spans: tuple[tuple[int, int], ...] = dict(at(p, "adamw.forward").scalars)["decayed"]
    return spans


def stepped(change: Callable[[int, int, tuple[int, ...]], tuple[int, int, tuple[int, ...]] | None]) -> Change:
    """Muon is told other matrices."""

    def changed_matrices(p: Program) -> Program:
        matrices = [change(*each) for each in dict(at(p, "muon.forward").scalars)["matrices"]]
        return with_scalar("muon.forward", matrices=tuple(each for each in matrices if each))(p)

    return changed_matrices


def as_declared(p: Program) -> Program:
    members = buffer(p, "weights").members
    pairs = zip(members, member_offsets(members)[0], strict=True)
    matrices = tuple((start, m.shape[0], m.matrices) for m, start in pairs if isinstance(m, Weight) and m.matrices)
    return with_scalar("muon.forward", matrices=matrices)(p)


def declared(name: str, **fields: Any) -> Change:
    """A weight says something else of itself, wherever it is."""

    def change(p: Program) -> Program:
        old = buffer(p, name)
        new = replace(old, **fields)
        regions = {
            b.name: replace(b, members=tuple(new if m == old else m for m in b.members))
            for b in p.buffers
            if old in b.members
        } | {name: new}

        def seen(view: View) -> View:
            return replace(view, buffer=regions.get(view.buffer.name, view.buffer))

        calls = (_arguments(call, lambda a: replace(a, view=seen(a.view))) for call in p.calls)
        return Program(tuple(calls), tuple(regions.get(b.name, b) for b in p.buffers))

    return change


def numbers(place: str, **from_names: str) -> Change:
    """Scalars that are given one another's values."""

    def change(p: Program) -> Program:
        there = dict(at(p, place).scalars)
        return with_scalar(place, **{name: there[other] for name, other in from_names.items()})(p)

    return change


DROP, DROPPED = "dropout.forward attn.proj.dropped", "dropout.backward attn.dproj"
UP, DOWN, PROJ = (f"linear.backward {name}.weight" for name in ("mlp.up", "mlp.down", "attn.proj"))
NORM1, NORM2, NORM = (f"layernorm.backward {name}" for name in ("norm1.weight", "norm2.weight", "dnorm"))

# fmt: off
# With these it began: a verifier that looked at shapes, order and partners accepted every one of them.
FOUNDING = (
    Wrong("drop", "only part of the gradients zeroed", part_zeroed,
          "norm.dweight", "layernorm.backward", "not initialised"),
    Wrong("redirect", "zeroed through a second region", second_region,
          "gradients again", "zero.forward", "region"),
    Wrong("drop", "a forward-only op on the way to the loss", forward_only,
          "x", "positions_at.forward", "no derivative"),
    Wrong("reorder", "relu in phase recompute, without a backward",
          both(in_phase("relu.forward", "recompute"), drop("relu.backward")),
          "a", "relu.forward", "recomputation", "shared bias"),
    Wrong("redirect", "linear.backward with dx over its own dy", redirect(PROJ, "dx", "dstream"),
          "dstream", "linear.backward", "overlap"),
    Wrong("redirect", "linear.forward in place", redirect("linear.forward attn.proj.weight", "x", "blocks.0.attn.proj"),
          "blocks.0.attn.proj", "linear.forward", "overlap"),
    Wrong("write for add", "a second contribution written instead of added", written(NORM2, "dx"),
          "dstream", "layernorm.backward", "overwritten"),
    Wrong("drop", "an optional dx left out, to be read", leave_out(UP, "dx"),
          "blocks.0.dnorm2", "layernorm.backward", "read too early"),
    Wrong("drop", "an optional dx left out, to be added", leave_out("linear.backward blocks.0.mlp.up.weight", "dx"),
          "blocks.0.dnorm1", "linear.backward", "left out", "post-norm"),
    Wrong("drop", "the dbias of a shared bias left out", leave_out("linear.backward da", "dbias"),
          "dbias", "linear.backward", "left out", "shared bias"),
    Wrong("redirect", "the dbias of a shared bias sent to another's gradient",
          redirect("linear.backward da", "dbias", "dother"),
          "dother", "linear.backward", "wrong gradient", "shared bias"),
    Wrong("redirect", "the classifier's dweight sent to another weight",
          redirect("classifier.backward", "dweight", "positions.dweight"),
          "positions.dweight", "classifier.backward", "wrong gradient"),
    Wrong("exchange", "causal forward with non-causal backward", with_scalar("attention.backward", causal=False),
          "blocks.0.attn.dqkv[0:4]", "attention.backward", "wrong scalar"),
    Wrong("exchange", "dq and dk exchanged", exchange("attention.backward", "dq", "dk"),
          "blocks.0.attn.dqkv", "attention.backward", "wrong gradient"),
    Wrong("redirect", "a wrong dy", redirect("gelu.backward", "dy", "blocks.0.mlp.act"),
          "blocks.0.mlp.act", "gelu.backward", "wrong gradient"),
    Wrong("drop", "the residual's skip gradient dropped", skip_dropped,
          "spare", "linear.backward", "wrong gradient"),
    Wrong("redirect", "a constant overwritten", overwriting("goals"),
          "goals", "relu.forward", "read-only", "shared bias"),
    Wrong("reorder", "the norm taken before the backward is done", before("global_norm.forward", "embedding.backward"),
          "tokens.dweight", "global_norm.forward", "wrong gradient"),
    Wrong("reorder", "the update applied twice", twice("adamw.forward"),
          "weights", "adamw.forward", "update"),
    Wrong("reorder", "a weight declared after its region", late_weight,
          "other", "linear.forward", "region", "shared bias"),
    Wrong("reorder", "gradients in another order than weights", other_order,
          "blocks.0.norm1.dbias", "zero.forward", "region"),
)

WRONG = (
    *FOUNDING,
    Wrong("drop", "nothing zeroed", drop("zero.forward"),
          "tokens.dweight", "classifier.backward", "not initialised"),
    Wrong("drop", "tokens not embedded", drop("embedding.forward"),
          "x", "positions.forward", "not initialised"),
    Wrong("drop", "a residual not added up", drop("residual.forward attn.proj"),
          "blocks.0.sum1", "layernorm.forward", "read too early"),
    Wrong("drop", "the branch not computed", drop("linear.forward mlp.down.weight"),
          "blocks.0.mlp.down", "residual.forward", "read too early"),
    Wrong("drop", "the loss not taken", drop("classifier.backward"),
          "dnorm", "layernorm.backward", "read too early"),
    Wrong("drop", "a norm without its backward", drop(NORM1),
          "blocks.0.norm1", "layernorm.forward", "no backward"),
    Wrong("drop", "an activation without its backward", drop("gelu.backward"),
          "blocks.0.mlp.dup", "linear.backward", "read too early"),
    Wrong("drop", "attention without its backward", drop("attention.backward"),
          "blocks.0.attn.dqkv", "linear.backward", "read too early"),
    Wrong("drop", "a product without its backward", drop(PROJ),
          "blocks.0.attn.dmix", "attention.backward", "read too early"),
    Wrong("drop", "the positions' table without its gradient", drop("positions.backward"),
          "x", "positions.forward", "no backward"),
    Wrong("drop", "the tied table without its gradient as words", drop("embedding.backward"),
          "x", "embedding.forward", "no backward"),
    Wrong("drop", "the last position's gradient dropped", drop("last_position.backward blocks.0.norm1.dlast"),
          "dstream", "last_position.backward", "wrong gradient", "one answer"),
    Wrong("drop", "a norm's dweight left out", leave_out(NORM2, "dweight"),
          "blocks.0.norm2.dweight", "layernorm.backward", "left out"),
    Wrong("drop", "a norm's dbias left out", leave_out(NORM1, "dbias"),
          "blocks.0.norm1.dbias", "layernorm.backward", "left out"),
    Wrong("drop", "the norm of the gradients not taken", drop("global_norm.forward"),
          "gradient_norm", "clip.forward", "read too early"),
    Wrong("drop", "nothing clipped", drop("clip.forward"),
          "scale", "adamw.forward", "read too early"),
    Wrong("drop", "nothing updated", drop("adamw.forward"),
          "gradient_norm", "global_norm.forward", "update"),
    Wrong("drop", "the features' product without its backward", drop("linear.backward input.weight"),
          "x", "linear.forward", "no backward", "signal"),
    Wrong("exchange", "dk and dv exchanged", exchange("attention.backward", "dk", "dv"),
          "blocks.0.attn.dqkv", "attention.backward", "wrong gradient"),
    Wrong("exchange", "q and k exchanged in the backward alone", exchange("attention.backward", "q", "k"),
          "blocks.0.attn.mix", "attention.forward", "no backward"),
    Wrong("exchange", "q and k exchanged in the forward alone", exchange("attention.forward", "q", "k"),
          "blocks.0.attn.mix", "attention.forward", "no backward"),
    Wrong("exchange", "a norm's dweight and dbias exchanged", exchange(NORM1, "dweight", "dbias"),
          "blocks.0.norm1.dbias", "layernorm.backward", "wrong gradient"),
    Wrong("exchange", "mean and rstd exchanged in the backward", exchange(NORM2, "mean", "rstd"),
          "blocks.0.norm2", "layernorm.forward", "no backward"),
    Wrong("exchange", "weight and bias of a norm exchanged in the forward alone",
          exchange("layernorm.forward norm.bias", "weight", "bias"),
          "norm.bias", "layernorm.forward", "meaning"),
    Wrong("exchange", "dy and x exchanged", exchange("gelu.backward", "dy", "x"),
          "blocks.0.mlp.act", "gelu.forward", "no backward"),
    Wrong("exchange", "attention's result and its gradient exchanged", exchange("attention.backward", "dy", "y"),
          "blocks.0.attn.mix", "attention.forward", "no backward"),
    Wrong("exchange", "weight and dweight exchanged", exchange("linear.backward dh", "weight", "dweight"),
          "one", "linear.backward", "read-only", "shared bias"),
    Wrong("redirect", "a residual with the stream of another", redirect("residual.forward sum2", "x", "x"),
          "dstream", "linear.backward", "wrong gradient"),
    Wrong("redirect", "a dbias sent to another bias", redirect(PROJ, "dbias", "blocks.0.mlp.down.dbias"),
          "blocks.0.mlp.down.dbias", "linear.backward", "wrong gradient"),
    Wrong("redirect", "a dweight sent to another weight", redirect(PROJ, "dweight", "blocks.0.mlp.up.dweight"),
          "blocks.0.mlp.up.dweight", "linear.backward", "wrong gradient"),
    Wrong("redirect", "the queries' dweight sent to the keys' columns",
          redirect("linear.backward attn.dq", "dweight", keys_of_dweight),
          "blocks.0.attn.qkv.dweight[4:8]", "linear.backward", "wrong gradient", "one answer"),
    Wrong("redirect", "the backward with another's weight", redirect(DOWN, "weight", "blocks.0.mlp.up.weight"),
          "blocks.0.mlp.down", "linear.forward", "no backward"),
    Wrong("redirect", "the backward with another's input", redirect(UP, "x", "blocks.0.sum1"),
          "blocks.0.mlp.up", "linear.forward", "no backward"),
    Wrong("redirect", "a norm's backward with another's input", redirect(NORM2, "x", "x"),
          "blocks.0.norm2", "layernorm.forward", "no backward"),
    Wrong("redirect", "a norm's backward with another's mean", redirect(NORM2, "mean", "blocks.0.norm1.mean"),
          "blocks.0.norm2", "layernorm.forward", "no backward"),
    Wrong("redirect", "the head told of the stream in front of its norm",
          redirect("classifier.backward", "x", "blocks.0.sum2"),
          "norm", "layernorm.forward", "no use"),
    Wrong("redirect", "attention's dy from behind the projection", redirect("attention.backward", "dy", "dstream"),
          "dstream", "attention.backward", "wrong gradient"),
    Wrong("redirect", "the words' gradient from the normed stream",
          redirect("embedding.backward", "dy", "blocks.0.dnorm1"),
          "blocks.0.dnorm1", "embedding.backward", "wrong gradient"),
    Wrong("redirect", "dx over what another backward needs",
          both(redirect(DOWN, "dx", "blocks.0.mlp.up"), redirect("gelu.backward", "dy", "blocks.0.mlp.up")),
          "blocks.0.mlp.up", "linear.backward", "overwritten"),
    Wrong("redirect", "the update scaled by the limit", redirect("adamw.forward", "scale", "limit"),
          "limit", "adamw.forward", "meaning"),
    Wrong("redirect", "the norm of the weights taken", redirect("global_norm.forward", "gradients", "weights"),
          "weights", "global_norm.forward", "update"),
    Wrong("redirect", "an input overwritten", overwriting("x"),
          "x", "relu.forward", "read-only", "shared bias"),
    Wrong("redirect", "computed again from another input",
          redirect("layernorm.forward again blocks.1.norm2", "x", "blocks.0.sum1"),
          "blocks.1.norm2", "layernorm.forward", "recomputation", "recomputed"),
    Wrong("redirect", "the update of half the weights",
          both(half("sgd.forward", "weights"), half("sgd.forward", "gradients")),
          "weights", "sgd.forward", "update", "shared bias"),
    Wrong("redirect", "the norm of half the gradients", half("global_norm.forward", "gradients"),
          "gradients", "global_norm.forward", "update", "shared bias"),
    Wrong("redirect", "the features' gradient from the normed stream",
          redirect("linear.backward input.weight", "dy", "blocks.0.dnorm1"),
          "blocks.0.dnorm1", "linear.backward", "wrong gradient", "signal"),
    Wrong("redirect", "the squared error of the stream in front of its norm",
          redirect("squared_error.backward", "x", "blocks.0.sum2"),
          "norm", "layernorm.forward", "no use", "embedding space"),
    Wrong("write for add", "the stream's gradient written by the first norm", written(NORM1, "dx"),
          "dstream", "layernorm.backward", "overwritten"),
    Wrong("write for add", "the tied table's gradient written by the embedding",
          written("embedding.backward", "dweight"),
          "tokens.dweight", "embedding.backward", "added to"),
    Wrong("write for add", "the head's dweight written", written("classifier.backward", "dweight"),
          "tokens.dweight", "classifier.backward", "added to"),
    Wrong("write for add", "a bias' gradient written", written(UP, "dbias"),
          "blocks.0.mlp.up.dbias", "linear.backward", "added to"),
    Wrong("write for add", "a shared weight's gradient written by the second to come",
          written("linear.backward da", "dweight"),
          "dtwo", "linear.backward", "added to", "shared bias"),
    Wrong("write for add", "positions written over tokens", written("positions.forward", "y"),
          "x", "positions.forward", "overwritten"),
    Wrong("write for add", "a post-norm branch written over the skip's gradient",
          written("linear.backward blocks.0.mlp.up.weight", "dx"),
          "blocks.0.dsum2", "linear.backward", "overwritten", "post-norm"),
    Wrong("write for add", "the last position's gradient written over the others'",
          written("last_position.backward blocks.0.norm1.dlast", "dx"),
          "blocks.0.dnorm1", "last_position.backward", "overwritten", "one answer"),
    Wrong("write for add", "added to where nothing is yet", added(NORM, "dx"),
          "dstream", "layernorm.backward", "not initialised"),
    Wrong("write for add", "a gradient added to a value",
          both(redirect(UP, "dx", "blocks.0.sum2"), added(UP, "dx"), redirect(NORM2, "dy", "blocks.0.sum2")),
          "blocks.0.sum2", "linear.backward", "wrong gradient"),
    Wrong("reorder", "the projection's backward behind that of attention", before("attention.backward", PROJ),
          "blocks.0.attn.dmix", "attention.backward", "read too early"),
    Wrong("reorder", "the activation's backward first", before("gelu.backward", DOWN),
          "blocks.0.mlp.dact", "gelu.backward", "read too early"),
    Wrong("reorder", "zeroed after the backward", before("zero.forward", "global_norm.forward"),
          "tokens.dweight", "classifier.backward", "not initialised"),
    Wrong("reorder", "updated before the backward", before("adamw.forward", NORM1),
          "scale", "adamw.forward", "read too early"),
    Wrong("reorder", "clipped before the norm is taken", before("clip.forward", "global_norm.forward"),
          "gradient_norm", "clip.forward", "read too early"),
    Wrong("reorder", "the norm's input used before it is added up",
          before("layernorm.forward norm2.weight", "residual.forward attn.proj"),
          "blocks.0.sum1", "layernorm.forward", "read too early"),
    Wrong("reorder", "positions added before there are words", before("positions.forward", "embedding.forward"),
          "x", "positions.forward", "not initialised"),
    Wrong("reorder", "a backward done twice", twice(UP),
          "blocks.0.dnorm2", "linear.backward", "no forward"),
    Wrong("reorder", "a forward done twice", twice("positions.forward"),
          "tokens.dweight", "embedding.backward", "out of order"),
    Wrong("drop", "random numbers that nothing counts", drop("count_draws.forward"),
          "dropout.draws", "dropout.forward", "update", "dropped"),
    Wrong("exchange", "a mask of another site in the backward", with_scalar(DROPPED, rate=0.4, site=7),
          "blocks.0.attn.dproj", "dropout.backward", "wrong scalar", "dropped"),
    Wrong("exchange", "another rate in the backward", with_scalar(DROPPED, rate=0.5, site=1),
          "blocks.0.attn.dproj", "dropout.backward", "wrong scalar", "dropped"),
    Wrong("exchange", "one mask for two branches",
          both(with_scalar(DROPPED, rate=0.4, site=2), with_scalar(DROP, rate=0.4, site=2),
               with_scalar(f"{DROP} again", rate=0.4, site=2)),
          "blocks.0.mlp.down.dropped", "dropout.forward", "random", "dropped"),
    Wrong("exchange", "another mask where a block is computed again",
          with_scalar(f"{DROP} again", rate=0.4, site=3),
          "blocks.0.attn.proj.dropped", "dropout.forward", "recomputation", "dropped"),
    Wrong("redirect", "the update's number in place of the draws", redirect(DROP, "draws", "step"),
          "step", "dropout.forward", "meaning", "dropped"),
    Wrong("drop", "dropped on the way, and not on the way back", drop("dropout.backward dx"),
          "dx", "positions.backward", "read too early", "dropped"),
    Wrong("reorder", "counted between forward and backward", before("count_draws.forward", "dropout.backward dx"),
          "dropout.draws", "dropout.backward", "overwritten", "dropped"),
    Wrong("drop", "dropped in a list that learns nothing", forward_alone,
          "x.dropped", "dropout.forward", "random", "dropped"),
    Wrong("reorder", "the blocks' backwards exchanged",
          before("layernorm.backward blocks.0.norm2.weight", "linear.backward blocks.1.attn.proj.weight"),
          "blocks.0.dsum2", "layernorm.backward", "out of order", "post-norm"),
    Wrong("drop", "a turn of the queries without its backward", drop("rope.backward q_dturned"),
          "blocks.0.attn.dq_norm", "rmsnorm.backward", "read too early", "llama"),
    Wrong("drop", "a norm of the keys without its backward", drop("rmsnorm.backward k_norm.weight"),
          "blocks.0.attn.dqkv", "linear.backward", "read too early", "llama"),
    Wrong("drop", "keys not turned", drop("rope.forward k_turned"),
          "blocks.0.attn.k_turned", "attention.forward", "read too early", "llama"),
    Wrong("drop", "no angles", drop("angles.forward"),
          "rotary.cos", "rope.forward", "read too early", "llama"),
    Wrong("drop", "a backward that knows no documents", leave_out("attention.backward", "starts"),
          "starts", "attention.backward", "not the same", "llama"),
    Wrong("drop", "a forward that knows no documents", leave_out("attention.forward", "starts"),
          "starts", "attention.backward", "not the same", "llama"),
    Wrong("exchange", "a backward with a wider window", with_scalar("attention.backward", window=3),
          "blocks.0.attn.q_dturned", "attention.backward", "wrong scalar", "llama"),
    Wrong("exchange", "documents' beginnings for their places", redirect("attention.backward", "starts", "places"),
          "places", "attention.backward", "meaning", "llama"),
    Wrong("exchange", "cosine and sine exchanged in the backward", exchange("rope.backward q_dturned", "cos", "sin"),
          "rotary.sin", "rope.backward", "meaning", "llama"),
    Wrong("exchange", "dgate and dup exchanged", exchange("swiglu.backward", "dgate", "dup"),
          "blocks.0.mlp.dgate_up", "swiglu.backward", "wrong gradient", "llama"),
    Wrong("exchange", "gate and up exchanged in the backward alone", exchange("swiglu.backward", "gate", "up"),
          "blocks.0.mlp.act", "swiglu.forward", "no backward", "llama"),
    Wrong("redirect", "the queries' norm with the weight of the keys'",
          redirect("rmsnorm.backward q_norm.weight", "weight", "blocks.0.attn.k_norm.weight"),
          "blocks.0.attn.q_norm", "rmsnorm.forward", "no backward", "llama"),
    Wrong("redirect", "the keys' norm trains the queries'",
          redirect("rmsnorm.backward k_norm.weight", "dweight", "blocks.0.attn.q_norm.dweight"),
          "blocks.0.attn.q_norm.dweight", "rmsnorm.backward", "wrong gradient", "llama"),
    Wrong("redirect", "attention over keys that are not turned",
          redirect("attention.forward", "k", "blocks.0.attn.k_norm"),
          "blocks.0.attn.k_turned", "rope.forward", "overwritten", "llama"),
    Wrong("write for add", "an RMSNorm written over the stream's gradient",
          written("rmsnorm.backward blocks.0.norm2.weight", "dx"),
          "dstream", "rmsnorm.backward", "overwritten", "llama"),
    Wrong("exchange", "another scale in an adapter's backward", with_scalar("adapt.backward mlp.down.dlow", scale=1.0),
          "blocks.0.mlp.down.dlow", "adapt.backward", "wrong scalar", "adapted"),
    Wrong("drop", "an adapter's branch without its way back", drop("adapt.backward mlp.down.dlow"),
          "blocks.0.mlp.down.dlow", "linear.backward", "read too early", "adapted"),
    Wrong("drop", "an adapter's dx left out",
          both(leave_out("linear.backward qkv.lora_a", "dx"), written("linear.backward attn.qkv.weight", "dx")),
          "blocks.0.dnorm1", "linear.backward", "left out", "adapted"),
    Wrong("write for add", "a frozen matrix's dx written over its adapter's",
          written("linear.backward attn.qkv.weight", "dx"),
          "blocks.0.dnorm1", "linear.backward", "overwritten", "adapted"),
    Wrong("write for add", "an adapter that takes the place of what it adapts", written("adapt.forward mlp.down", "y"),
          "blocks.0.mlp.down", "adapt.forward", "overwritten", "adapted"),
    Wrong("redirect", "the values adapted by what the queries' A made",
          redirect("adapt.forward qkv.low[1:2]", "low", lambda p: buffer(p, "blocks.0.attn.qkv.low").columns(0, 1)),
          "blocks.0.attn.qkv", "adapt.forward", "no backward", "adapted"),
    Wrong("redirect", "the gradient of the values' B added to the queries'",
          redirect("adapt.backward qkv.dlow[1:2]", "dweight",
                   lambda p: buffer(p, "blocks.0.attn.qkv.dlora_b").columns(0, 4)),
          "blocks.0.attn.qkv.dlora_b", "adapt.backward", "wrong gradient", "adapted"),
    Wrong("reorder", "x @ A's backward before B's",
          before("linear.backward qkv.lora_a", "adapt.backward qkv.dlow[1:2]"),
          "blocks.0.attn.qkv.dlow", "linear.backward", "read too early", "adapted"),
    Wrong("reorder", "the keys' turn taken back before attention's backward",
          before("rope.backward k_dturned", "attention.backward"),
          "blocks.0.attn.k_dturned", "rope.backward", "read too early", "llama"),
    # Of these the gradients are right, and what is meant is not.
    Wrong("exchange", "Muon takes rows for widths", stepped(lambda start, rows, widths: (start, sum(widths), (rows,))),
          "blocks.0.attn.qkv.weight", "muon.forward", "declared", "muon"),
    Wrong("exchange", "queries, keys and values for one matrix",
          stepped(lambda start, rows, widths: (start, rows, (sum(widths),))),
          "blocks.0.attn.qkv.weight", "muon.forward", "declared", "muon"),
    Wrong("exchange", "queries, keys and values declared as one matrix, and stepped so",
          both(declared("blocks.0.attn.qkv.weight", matrices=(12,)), as_declared),
          "blocks.0.attn.qkv.weight", "attention.forward", "declared", "muon"),
    Wrong("exchange", "the feed-forward declared as two matrices, and stepped so",
          both(declared("blocks.0.mlp.up.weight", matrices=(1, 3)), as_declared),
          "blocks.0.mlp.up.weight", "gelu.forward", "declared", "muon"),
    Wrong("exchange", "the features' product declared as a matrix of a layer",
          declared("input.weight", matrices=(4,)), "input.weight", "linear.forward", "declared", "signal"),
    Wrong("exchange", "a bias declared as a matrix", declared("blocks.0.mlp.up.bias", meaning="matrix"),
          "blocks.0.mlp.up.bias", "linear.forward", "meaning"),
    Wrong("exchange", "a norm's scale declared as a matrix", declared("norm.weight", meaning="matrix"),
          "norm.weight", "layernorm.forward", "meaning"),
    Wrong("exchange", "a bias that decays", decaying(lambda p: (*decayed(p), span(p, "blocks.0.attn.qkv.bias"))),
          "blocks.0.attn.qkv.bias", "adamw.forward", "declared"),
    Wrong("exchange", "everything decays", decaying(lambda p: ((0, buffer(p, "weights").elements),)),
          "positions.weight", "adamw.forward", "declared"),
    Wrong("exchange", "half of a matrix decays",
          decaying(lambda p: tuple((a, b - 4) if (a, b) == span(p, "blocks.0.attn.qkv.weight") else (a, b)
                                   for a, b in decayed(p))),
          "blocks.0.attn.qkv.weight", "adamw.forward", "declared"),
    Wrong("drop", "a matrix that does not decay", decaying(lambda p: decayed(p)[:-1]),
          "blocks.0.mlp.down.weight", "adamw.forward", "declared"),
    Wrong("drop", "nothing decays", with_scalar("adamw.forward", decayed=()),
          "tokens.weight", "adamw.forward", "declared"),
    Wrong("exchange", "sections of the update begin elsewhere",
          lambda p: with_scalar("adamw.forward", sections=tuple(
              start and start + 16 for start in dict(at(p, "adamw.forward").scalars)["sections"]))(p),
          "weights", "adamw.forward", "declared"),
    Wrong("exchange", "the betas exchanged", numbers("adamw.forward", beta1="beta2", beta2="beta1"),
          "weights", "adamw.forward", "meaning"),
    Wrong("exchange", "eps in place of the decay", numbers("adamw.forward", decay="eps"),
          "weights", "adamw.forward", "meaning"),
    Wrong("exchange", "the momentum of Muon for Adam's", numbers("muon.forward", momentum="beta1"),
          "weights", "muon.forward", "meaning", "muon"),
    Wrong("redirect", "clipped at the rate", redirect("clip.forward", "limit", "lr"),
          "lr", "clip.forward", "meaning"),
    Wrong("redirect", "clipped at the largest number", redirect("clip.forward", "limit", "largest"),
          "largest", "clip.forward", "meaning"),
    Wrong("redirect", "updated by the limit", redirect("adamw.forward", "lr", "limit"),
          "limit", "adamw.forward", "meaning"),
    Wrong("redirect", "updates counted where random numbers are", redirect("sgd.forward", "step", "dropout.draws"),
          "dropout.draws", "sgd.forward", "meaning", "dropped"),
    Wrong("exchange", "both moments exchanged", exchange("adamw.forward", "m", "v"),
          "v", "adamw.forward", "meaning"),
    Wrong("exchange", "what has moved told as what is there", exchange("adamw.forward", "moved", "norms"),
          "weight_norms", "adamw.forward", "meaning"),
    Wrong("redirect", "documents' beginnings for their places, in both directions",
          both(redirect("attention.forward", "starts", "places"), redirect("attention.backward", "starts", "places")),
          "places", "attention.forward", "meaning", "llama"),
    Wrong("redirect", "turned by where the document begins", redirect("angles.forward", "places", "starts"),
          "starts", "angles.forward", "meaning", "llama"),
    Wrong("exchange", "cosine and sine exchanged where they are made", exchange("angles.forward", "cos", "sin"),
          "rotary.sin", "angles.forward", "meaning", "llama"),
    Wrong("redirect", "the inputs are the targets", redirect("classifier.backward", "targets", "tokens"),
          "tokens", "classifier.backward", "meaning"),
    Wrong("redirect", "the targets are embedded, in both directions",
          both(redirect("embedding.forward", "tokens", "targets"), redirect("embedding.backward", "tokens", "targets")),
          "targets", "embedding.forward", "meaning"),
    Wrong("redirect", "the loss divided by the limit", redirect("classifier.backward", "count", "limit"),
          "limit", "classifier.backward", "meaning"),
    Wrong("exchange", "seed and counter exchanged", exchange(DROPPED, "seed", "draws"),
          "dropout.draws", "dropout.backward", "meaning", "dropped"),
    Wrong("redirect", "positions taken for the words that are scored",
          redirect("classifier.backward", "weight", "positions.weight"),
          "positions.weight", "classifier.backward", "meaning"),
)
# fmt: on
