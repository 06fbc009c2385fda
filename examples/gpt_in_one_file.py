"""A GPT trained from nothing in one file of NumPy, its backward pass written by hand.

Run `python examples/gpt_in_one_file.py`, and read from top to bottom:

    1. the weights      what the model is made of
    2. the operations   each forward directly above its backward
    3. the model        operations joined into blocks, blocks joined into a GPT
    4. the optimiser    Adam, which turns gradients into better weights
    5. the task         `Max(1,6,2)` -> `6`
    6. the training     all of the above in one loop

A gradient is called `d` + the name of what it belongs to: `dx` tells how the loss changes with each element
of `x`, and has its shape. A forward returns its result, and what its backward will need. A backward takes
the gradient of the result, and what was saved; it returns the gradient of the input. Gradients of weights
are added into `dw`, never assigned, because a weight that is used twice gets a gradient from each use.

In the shapes: B batch, T time, C channels, H heads, D = C/H head width, F hidden, V vocabulary.
"""

import argparse
import itertools
import time

import numpy as np

Arrays = dict[str, np.ndarray]


# 1. The weights ------------------------------------------------------------------------------------------
def initialise(
    rng: np.random.Generator, layers: int, channels: int, vocab: int, context: int, hidden: int | None = None
) -> Arrays:
    """The weights of a GPT-2, by name: small random matrices, so that no two channels start out alike."""
    C, F = channels, hidden or 4 * channels
    # Each block adds two branches to the stream of activations. Scaling down the last matrix of each branch
    # keeps the size of their sum independent of the number of layers.
    last = 0.02 / np.sqrt(2 * layers)
    w = {}
    w["tokens.weight"] = rng.normal(0, 0.02, (vocab, C))
    w["positions.weight"] = rng.normal(0, 0.01, (context, C))
    for b in [f"blocks.{n}" for n in range(layers)]:
        w[f"{b}.norm1.weight"], w[f"{b}.norm1.bias"] = np.ones(C), np.zeros(C)
        w[f"{b}.attn.qkv.weight"], w[f"{b}.attn.qkv.bias"] = rng.normal(0, 0.02, (C, 3 * C)), np.zeros(3 * C)
        w[f"{b}.attn.proj.weight"], w[f"{b}.attn.proj.bias"] = rng.normal(0, last, (C, C)), np.zeros(C)
        w[f"{b}.norm2.weight"], w[f"{b}.norm2.bias"] = np.ones(C), np.zeros(C)
        w[f"{b}.mlp.up.weight"], w[f"{b}.mlp.up.bias"] = rng.normal(0, 0.02, (C, F)), np.zeros(F)
        w[f"{b}.mlp.down.weight"], w[f"{b}.mlp.down.bias"] = rng.normal(0, last, (F, C)), np.zeros(C)
    w["norm.weight"], w["norm.bias"] = np.ones(C), np.zeros(C)
    return w


# 2. The operations ---------------------------------------------------------------------------------------
def embed(w, tokens):
    """x[b,t] = the row of the token at b,t + the row of position t  (B T) -> (B T C)"""
    return w["tokens.weight"][tokens] + w["positions.weight"][: tokens.shape[1]], tokens


def embed_backward(dw, dx, tokens):
    # A row gets a gradient from every place where it was used. `dw["tokens.weight"][tokens] += dx` would keep
    # only one of them when a token occurs twice; `np.add.at` adds them all.
    np.add.at(dw["tokens.weight"], tokens, dx)
    dw["positions.weight"][: tokens.shape[1]] += dx.sum(axis=0)


def linear(w, name, x):
    """y = x W + b  (B T in) -> (B T out)"""
    return x @ w[f"{name}.weight"] + w[f"{name}.bias"], x


def linear_backward(w, dw, name, dy, x):
    # W and b serve every position of every sequence, so their gradients are sums over B and T.
    dw[f"{name}.weight"] += x.reshape(-1, x.shape[-1]).T @ dy.reshape(-1, dy.shape[-1])  # dW = xᵀ dy
    dw[f"{name}.bias"] += dy.sum(axis=(0, 1))  # db = Σ dy
    return dy @ w[f"{name}.weight"].T  # dx = dy Wᵀ


def layer_norm(w, name, x):
    """y = γ x̂ + β  with x̂ = (x - mean) rstd  and rstd = 1 / sqrt(variance + 1e-5), over the channels"""
    centred = x - x.mean(axis=-1, keepdims=True)
    rstd = 1 / np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + 1e-5)
    xhat = centred * rstd
    return w[f"{name}.weight"] * xhat + w[f"{name}.bias"], (xhat, rstd)


def layer_norm_backward(w, dw, name, dy, saved):
    xhat, rstd = saved
    dw[f"{name}.weight"] += (dy * xhat).sum(axis=(0, 1))  # dγ = Σ dy x̂
    dw[f"{name}.bias"] += dy.sum(axis=(0, 1))  # dβ = Σ dy
    dxhat = dy * w[f"{name}.weight"]
    # x acts on x̂ directly, by the mean and by the variance: dx = rstd (dx̂ - mean(dx̂) - x̂ mean(dx̂ x̂))
    through_mean = dxhat.mean(axis=-1, keepdims=True)
    through_variance = xhat * (dxhat * xhat).mean(axis=-1, keepdims=True)
    return rstd * (dxhat - through_mean - through_variance)


def gelu(x):
    """y = x (1 + tanh u) / 2  with u = sqrt(2/π) (x + 0.044715 x³): a smooth max(x, 0)"""
    tanh = np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x * x * x))
    return 0.5 * x * (1 + tanh), (x, tanh)


def gelu_backward(dy, saved):
    # The product rule, and the derivative of tanh u is (1 - tanh²u) times the slope of u.
    x, tanh = saved
    slope = np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * x * x)
    return dy * (0.5 * (1 + tanh) + 0.5 * x * (1 - tanh * tanh) * slope)


def softmax(z):
    """p = exp(z) / Σ exp(z)  over the last axis; subtracting the maximum only prevents overflow"""
    exp = np.exp(z - z.max(axis=-1, keepdims=True))
    return exp / exp.sum(axis=-1, keepdims=True)


def softmax_backward(dp, p):
    # Raising one z raises its own p and lowers all the others: dz = p (dp - Σ p dp)
    return p * (dp - (p * dp).sum(axis=-1, keepdims=True))


def attention(qkv, heads):
    """y = softmax(q kᵀ / sqrt(D)) v  in each head, with the future hidden  (B T 3C) -> (B T C)"""
    B, T, D = qkv.shape[0], qkv.shape[1], qkv.shape[2] // (3 * heads)
    q, k, v = qkv.reshape(B, T, 3, heads, D).transpose(2, 0, 3, 1, 4)  # each (B H T D)
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(D)  # (B H T T): how strongly row t looks at column s
    future = np.triu(np.ones((T, T), dtype=bool), k=1)
    p = softmax(np.where(future, -np.inf, scores))
    y = p @ v
    return y.transpose(0, 2, 1, 3).reshape(B, T, heads * D), (q, k, v, p)


def attention_backward(dy, saved):
    q, k, v, p = saved
    B, H, T, D = q.shape
    dy = dy.reshape(B, T, H, D).transpose(0, 2, 1, 3)  # (B H T D)
    dp = dy @ v.swapaxes(-1, -2)  # from y = p v
    dv = p.swapaxes(-1, -2) @ dy
    dscores = softmax_backward(dp, p)  # 0 in the future, where p is 0
    dq = dscores @ k / np.sqrt(D)  # from scores = q kᵀ / sqrt(D)
    dk = dscores.swapaxes(-1, -2) @ q / np.sqrt(D)
    return np.stack([dq, dk, dv]).transpose(1, 3, 0, 2, 4).reshape(B, T, 3 * H * D)


def head(w, x):
    """logits = x Eᵀ  where E is tokens.weight, used a second time  (B T C) -> (B T V)"""
    return x @ w["tokens.weight"].T, x


def head_backward(w, dw, dlogits, x):
    dw["tokens.weight"] += np.einsum("btv,btc->vc", dlogits, x)  # dE = dlogitsᵀ x, the first of two
    return dlogits @ w["tokens.weight"]  # dx = dlogits E


def cross_entropy(logits, targets):
    """loss = mean of log Σ exp(z) - z[target]  over the positions that have a target; -1 is none"""
    counted = targets != -1
    z, target = logits[counted], targets[counted]  # (N V) and (N)
    z = z - z.max(axis=-1, keepdims=True)  # changes no loss, and exp cannot overflow
    logsumexp = np.log(np.exp(z).sum(axis=-1))
    return (logsumexp - z[np.arange(len(z)), target]).mean(), (counted, z, target)


def cross_entropy_backward(saved):
    counted, z, target = saved
    dz = softmax(z)  # dz = (softmax(z) - [1 at the target, else 0]) / N
    dz[np.arange(len(z)), target] -= 1
    dlogits = np.zeros((*counted.shape, z.shape[-1]))
    dlogits[counted] = dz / len(z)
    return dlogits


# 3. The model --------------------------------------------------------------------------------------------
def block(w, name, x, heads):
    """x + attention(norm1(x)) brings in what other positions know, then x + mlp(norm2(x)) works on it"""
    saved = {}
    branch, saved["norm1"] = layer_norm(w, f"{name}.norm1", x)
    branch, saved["qkv"] = linear(w, f"{name}.attn.qkv", branch)
    branch, saved["attention"] = attention(branch, heads)
    branch, saved["proj"] = linear(w, f"{name}.attn.proj", branch)
    x = x + branch
    branch, saved["norm2"] = layer_norm(w, f"{name}.norm2", x)
    branch, saved["up"] = linear(w, f"{name}.mlp.up", branch)
    branch, saved["gelu"] = gelu(branch)
    branch, saved["down"] = linear(w, f"{name}.mlp.down", branch)
    return x + branch, saved


def block_backward(w, dw, name, dx, saved):
    # The lines of `block` from last to first. A sum hands its gradient to both terms: `dx` goes on as it is,
    # and also through the branch, and where the branch began the two are added.
    dbranch = linear_backward(w, dw, f"{name}.mlp.down", dx, saved["down"])
    dbranch = gelu_backward(dbranch, saved["gelu"])
    dbranch = linear_backward(w, dw, f"{name}.mlp.up", dbranch, saved["up"])
    dx = dx + layer_norm_backward(w, dw, f"{name}.norm2", dbranch, saved["norm2"])
    dbranch = linear_backward(w, dw, f"{name}.attn.proj", dx, saved["proj"])
    dbranch = attention_backward(dbranch, saved["attention"])
    dbranch = linear_backward(w, dw, f"{name}.attn.qkv", dbranch, saved["qkv"])
    return dx + layer_norm_backward(w, dw, f"{name}.norm1", dbranch, saved["norm1"])


def forward(w: Arrays, tokens: np.ndarray, heads: int) -> tuple[np.ndarray, dict]:
    """From tokens (B T) to logits (B T V): at each position, a score for every token that may come next."""
    layers = sum(name.endswith(".norm1.weight") for name in w)
    saved: dict = {"blocks": [None] * layers}
    x, saved["embed"] = embed(w, tokens)
    for n in range(layers):
        x, saved["blocks"][n] = block(w, f"blocks.{n}", x, heads)
    x, saved["norm"] = layer_norm(w, "norm", x)
    logits, saved["head"] = head(w, x)
    return logits, saved


def forward_backward(w: Arrays, tokens: np.ndarray, targets: np.ndarray, heads: int) -> tuple[float, Arrays]:
    """The loss, and its gradient for every weight under that weight's name. Tokens and targets are (B T)."""
    logits, saved = forward(w, tokens, heads)
    loss, saved_loss = cross_entropy(logits, targets)

    dw = {name: np.zeros_like(weight) for name, weight in w.items()}
    dx = head_backward(w, dw, cross_entropy_backward(saved_loss), saved["head"])
    dx = layer_norm_backward(w, dw, "norm", dx, saved["norm"])
    for n in reversed(range(len(saved["blocks"]))):
        dx = block_backward(w, dw, f"blocks.{n}", dx, saved["blocks"][n])
    embed_backward(dw, dx, saved["embed"])
    return loss, dw


# 4. The optimiser ----------------------------------------------------------------------------------------
def adam(w: Arrays, dw: Arrays, mean: dict, square: dict, step: int, rate: float) -> None:
    """Move each weight against the running mean of its gradient, in units of the gradient's running size."""
    for name in w:
        mean[name] = 0.9 * mean[name] + 0.1 * dw[name]
        square[name] = 0.999 * square[name] + 0.001 * dw[name] ** 2
        # Both averages began at 0, which makes them too small at first; steps count from 1.
        true_mean, true_square = mean[name] / (1 - 0.9**step), square[name] / (1 - 0.999**step)
        w[name] -= rate * true_mean / (np.sqrt(true_square) + 1e-8)


# 5. The task ---------------------------------------------------------------------------------------------
VOCABULARY = ["pad", "end", *"0123456789", "First", "Second", "Last", "Max", "Min", "(", ")", ","]


def expressions() -> tuple[np.ndarray, np.ndarray]:
    """All 5,000 expressions as tokens (5000 8), indices into VOCABULARY, and their answers (5000)."""
    tokens, answers = [], []
    for a, b, c in itertools.product(range(10), repeat=3):
        results = {"First": a, "Second": b, "Last": c, "Max": max(a, b, c), "Min": min(a, b, c)}
        for name, result in results.items():
            symbols = [name, "(", str(a), ",", str(b), ",", str(c), ")"]
            tokens.append([VOCABULARY.index(symbol) for symbol in symbols])
            answers.append(VOCABULARY.index(str(result)))
    return np.array(tokens), np.array(answers)


# 6. The training -----------------------------------------------------------------------------------------
def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small GPT on expressions such as Max(1,6,2).")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)

    tokens, answers = expressions()
    targets = np.full_like(tokens, -1)  # only the last position, which has read everything, must answer
    targets[:, -1] = answers
    shuffled = rng.permutation(len(tokens))
    train, validate = shuffled[:4000], shuffled[4000:]  # no expression is in both

    heads, batch = 4, 32
    w = initialise(rng, layers=2, channels=64, vocab=len(VOCABULARY), context=tokens.shape[1])
    mean, square = dict.fromkeys(w, 0.0), dict.fromkeys(w, 0.0)
    step, steps, start = 0, options.epochs * len(train) // batch, time.perf_counter()
    for epoch in range(1, options.epochs + 1):
        losses = []
        for chosen in rng.permutation(train).reshape(-1, batch):
            loss, dw = forward_backward(w, tokens[chosen], targets[chosen], heads)
            # The rate rises while Adam's averages still rest on few gradients, then falls to 0 to settle.
            step += 1
            adam(w, dw, mean, square, step, rate=1e-3 * min(step / 100, 1 - step / steps))
            losses.append(loss)
        logits, _ = forward(w, tokens[validate], heads)
        predicted = logits[:, -1].argmax(axis=-1)
        right = predicted == answers[validate]
        average, accuracy, seconds = np.mean(losses), right.mean(), time.perf_counter() - start
        print(f"epoch {epoch}  train loss {average:.4f}  validation accuracy {accuracy:.1%}  {seconds:.0f} s")

    for n in [*np.flatnonzero(right)[:8], *np.flatnonzero(~right)[:8]]:
        question = "".join(VOCABULARY[token] for token in tokens[validate[n]])
        remark = "" if right[n] else f", but it is {VOCABULARY[answers[validate[n]]]}"
        print(f"{question} = {VOCABULARY[predicted[n]]}{remark}")


if __name__ == "__main__":
    main()
