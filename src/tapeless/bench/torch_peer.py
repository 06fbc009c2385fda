"""The peer: the same models in PyTorch, as one who knows it well would write them.

nn.Module, scaled_dot_product_attention, fused AdamW, zero_grad(set_to_none=True), optionally torch.compile and
autocast to bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tapeless.bench.race import Work
from tapeless.errors import TapelessError
from tapeless.models.config import Architecture
from tapeless.models.parts.rotary import turning_rates
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
    model = transformer(config).to(work.backend)
    matrices = [weight for weight in model.parameters() if weight.ndim == 2]
    for weight in matrices:
        # As GPT-2's are. By PyTorch's default embeddings are large, a tied head's scores are in the tens, and most
        # probabilities are denormal: an Intel processor takes six times as long for products of such numbers.
        torch.nn.init.normal_(weight, std=0.02)
    others = [weight for weight in model.parameters() if weight.ndim != 2]
    groups = [{"params": matrices, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-4, fused=True)
    run: Any = torch.compile(model) if name.startswith("torch-compile") else model
    narrow = torch.autocast(work.backend, torch.bfloat16, enabled=name.endswith("bfloat16"))
    shape = (work.batch, work.time)
    inputs = torch.randn(*shape, config.features) if config.features else torch.randint(config.vocab, shape)
    targets = torch.randint(config.vocab, shape[:1] if config.readout == "last" else shape)
    inputs, targets = inputs.to(work.backend), targets.to(work.backend)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        with narrow:
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

    width = c.head_channels
    widths = [heads * width for heads in (c.heads, c.key_heads, c.key_heads)]
    if c.window:
        raise TapelessError("PyTorch's fast attention has no window: bench a model without one.")

    def norm(channels: int) -> Any:
        return (nn.RMSNorm if c.norm_kind == "rmsnorm" else nn.LayerNorm)(channels, eps=c.norm_eps)

    def turned(x: Any, cos: Any, sin: Any) -> Any:
        first, second = x.chunk(2, dim=-1)
        return x * cos + torch.cat([-second, first], dim=-1) * sin

    class TorchBlock(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = norm(c.channels), norm(c.channels)
            self.qkv = nn.Linear(c.channels, sum(widths), bias=c.attention_bias)
            self.proj = nn.Linear(widths[0], c.channels, bias=c.attention_bias and c.projection_bias)
            self.q_norm = norm(width) if c.query_key_norm else nn.Identity()
            self.k_norm = norm(width) if c.query_key_norm else nn.Identity()
            self.up = nn.Linear(c.channels, (2 if c.gated else 1) * c.width, bias=c.mlp_bias)
            self.down = nn.Linear(c.width, c.channels, bias=c.mlp_bias)

        def attention(self, x: Any, angles: Any) -> Any:
            batch, time, _ = x.shape
            q, k, v = (part.view(batch, time, -1, width).transpose(1, 2) for part in self.qkv(x).split(widths, dim=-1))
            q, k = self.q_norm(q), self.k_norm(k)
            if angles is not None:
                q, k = turned(q, *angles), turned(k, *angles)
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=c.causal, enable_gqa=c.key_heads < c.heads)
            return self.proj(mixed.transpose(1, 2).reshape(batch, time, -1))

        def mlp(self, x: Any) -> Any:
            if not c.gated:
                return self.down(activations[c.activation](self.up(x)))
            gate, up = self.up(x).chunk(2, dim=-1)
            return self.down(F.silu(gate) * up)

        def forward(self, x: Any, angles: Any) -> Any:
            if c.placement == "pre":
                x = x + self.attention(self.norm1(x), angles)
                return x + self.mlp(self.norm2(x))
            x = self.norm1(x + self.attention(x, angles))
            return self.norm2(x + self.mlp(x))

    class Transformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens: nn.Module = (
                nn.Linear(c.features, c.channels) if c.features else nn.Embedding(c.vocab, c.channels)
            )
            if c.positions == "rotary":
                angles = torch.outer(torch.arange(c.context), torch.tensor(turning_rates(c))).repeat(1, 2)
                self.register_buffer("cos", angles.cos().float())
                self.register_buffer("sin", angles.sin().float())
            else:
                table = torch.tensor(sinusoid(c.context, c.channels), dtype=torch.float32)
                if c.positions == "learned":
                    self.positions = nn.Parameter(table)
                else:
                    self.register_buffer("positions", table)
            self.blocks = nn.ModuleList(TorchBlock() for _ in range(c.layers))
            self.norm: nn.Module = norm(c.channels) if c.placement == "pre" else nn.Identity()
            self.head = nn.Linear(c.channels, c.vocab, bias=False)
            if c.tied:
                self.head.weight = self.tokens.weight

        def forward(self, inputs: Any, targets: Any) -> Any:
            x, time, angles = self.tokens(inputs), inputs.shape[1], None
            if c.positions == "rotary":
                angles = self.cos[:time], self.sin[:time]
            else:
                x = x + self.positions[:time]
            for block in self.blocks:
                x = block(x, angles)
            return self.end(x, targets)

        def end(self, x: Any, targets: Any) -> Any:
            x = self.norm(x)
            if c.readout == "last":
                x = x[:, -1]
            if c.loss == "squared_error":
                return F.mse_loss(x, self.tokens(targets).detach())
            logits = self.head(x)
            return F.cross_entropy(logits.view(-1, c.vocab), targets.view(-1))

    return Transformer()
