"""The peer: the same models in PyTorch, as one who knows it well would write them.

nn.Module, scaled_dot_product_attention, fused AdamW, zero_grad(set_to_none=True), optionally torch.compile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tapeless.bench.race import Work
from tapeless.errors import TapelessError
from tapeless.models.config import Architecture
from tapeless.models.presets import preset
from tapeless.ops.positions.reference import sinusoid


def prepare(name: str, work: Work) -> tuple[Callable[[], Any], dict[str, Any], None]:
    try:
        import torch
    except ImportError:
        raise TapelessError(f"the peer {name} needs PyTorch: pip install 'tapeless[test]'.") from None
    torch.set_num_threads(work.threads)
    torch.manual_seed(0)
    config = preset(work.preset).override(**work.fields).architecture
    model = transformer(config)
    matrices = [weight for weight in model.parameters() if weight.ndim == 2]
    others = [weight for weight in model.parameters() if weight.ndim != 2]
    groups = [{"params": matrices, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-4, fused=True)
    run: Any = torch.compile(model) if name == "torch-compile" else model
    shape = (work.batch, work.time)
    inputs = torch.randn(*shape, config.features) if config.features else torch.randint(config.vocab, shape)
    targets = torch.randint(config.vocab, shape[:1] if config.readout == "last" else shape)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = run(inputs, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return float(loss.item())

    step()
    step()
    return step, {"torch": torch.__version__}, None


def transformer(c: Architecture) -> Any:
    import torch
    import torch.nn.functional as F  # noqa: N812
    from torch import nn

    activations = {"gelu": nn.GELU(approximate="tanh"), "relu": nn.ReLU(), "tanh": nn.Tanh()}

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(c.channels), nn.LayerNorm(c.channels)
            self.qkv = nn.Linear(c.channels, 3 * c.channels, bias=c.attention_bias)
            self.proj = nn.Linear(c.channels, c.channels, bias=c.attention_bias)
            self.mlp = nn.Sequential(
                nn.Linear(c.channels, c.width), activations[c.activation], nn.Linear(c.width, c.channels)
            )

        def attention(self, x: Any) -> Any:
            batch, time, channels = x.shape
            q, k, v = (
                part.view(batch, time, c.heads, channels // c.heads).transpose(1, 2)
                for part in self.qkv(x).chunk(3, dim=-1)
            )
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=c.causal)
            return self.proj(mixed.transpose(1, 2).reshape(batch, time, channels))

        def forward(self, x: Any) -> Any:
            if c.placement == "pre":
                x = x + self.attention(self.norm1(x))
                return x + self.mlp(self.norm2(x))
            x = self.norm1(x + self.attention(x))
            return self.norm2(x + self.mlp(x))

    class Transformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens: nn.Module = (
                nn.Linear(c.features, c.channels) if c.features else nn.Embedding(c.vocab, c.channels)
            )
            table = torch.tensor(sinusoid(c.context, c.channels), dtype=torch.float32)
            if c.positions == "learned":
                self.positions = nn.Parameter(table)
            else:
                self.register_buffer("positions", table)
            self.blocks = nn.Sequential(*(Block() for _ in range(c.layers)))
            self.norm: nn.Module = nn.LayerNorm(c.channels) if c.placement == "pre" else nn.Identity()
            self.head = nn.Linear(c.channels, c.vocab, bias=False)
            if c.tied:
                self.head.weight = self.tokens.weight

        def forward(self, inputs: Any, targets: Any) -> Any:
            x = self.tokens(inputs) + self.positions[: inputs.shape[1]]
            x = self.norm(self.blocks(x))
            if c.readout == "last":
                x = x[:, -1]
            if c.loss == "squared_error":
                return F.mse_loss(x, self.tokens(targets).detach())
            logits = self.head(x)
            return F.cross_entropy(logits.view(-1, c.vocab), targets.view(-1))

    return Transformer()
