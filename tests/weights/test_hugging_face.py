"""Our GPT-2 beside Hugging Face's, whose tensors are ours under other names: no transposition, no reshaping."""

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from transformers import GPT2Config, GPT2LMHeadModel

from tapeless import Model
from tapeless.models import transformer
from tapeless.models.presets import preset
from tests.oracles import disagreements, torch_gradients

NAMES = {
    "transformer.wte.": "tokens.",
    "transformer.wpe.": "positions.",
    "transformer.ln_f.": "norm.",
    "transformer.h.": "blocks.",
    ".ln_1.": ".norm1.",
    ".ln_2.": ".norm2.",
    ".attn.c_attn.": ".attn.qkv.",
    ".attn.c_proj.": ".attn.proj.",
    ".mlp.c_fc.": ".mlp.up.",
    ".mlp.c_proj.": ".mlp.down.",
}


def our_name(name: str) -> str:
    for theirs, ours in NAMES.items():
        name = name.replace(theirs, ours)
    return name


def their_gpt2() -> GPT2LMHeadModel:
    """Small, in float64, and with no weight left at a value, like a norm's 1, that could hide a mistake."""
    dropouts = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config = GPT2Config(n_layer=3, n_embd=48, n_head=4, vocab_size=101, n_positions=32, **dropouts)
    gpt2 = GPT2LMHeadModel(config).double().eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in gpt2.named_parameters():
            centre = 1.3 if ".ln_" in name and name.endswith("weight") else 0.0
            weight.normal_(centre, 0.3, generator=generator)
    return gpt2


def test_logits_and_gradients_are_those_of_hugging_face():
    gpt2 = their_gpt2()
    weights = {our_name(name): weight for name, weight in gpt2.named_parameters()}
    model = Model(
        "gpt2-124m",
        layers=3,
        channels=48,
        heads=4,
        vocab=101,
        context=32,
        batch=3,
        time=20,
        backend="reference",
        precision="float64",
        optimizer=None,
    )
    assert {name: weight.shape for name, weight in model.params.items()} == {
        name: tuple(weight.shape) for name, weight in weights.items()
    }
    for name, weight in weights.items():
        model.params[name][...] = weight.detach()

    rng = np.random.default_rng(0)
    tokens, targets = rng.integers(0, 101, (2, 3, 20))
    tokens[0, :2] = tokens[1, 0] = 100
    targets[:, ::3] = -1
    logits = gpt2(torch.from_numpy(tokens)).logits
    # Not by its `labels`: those it would shift, and it ignores −100 where we ignore −1.
    loss = F.cross_entropy(logits.flatten(end_dim=-2), torch.from_numpy(targets).flatten(), ignore_index=-1)
    gradients = torch_gradients(loss, weights)

    found = {"loss": model.forward_backward(tokens, targets), "logits": model.logits(tokens)}
    true = {"loss": loss.item(), "logits": logits.detach()}
    assert not disagreements("hugging face", found, true)
    assert not disagreements("hugging face", model.grads, gradients)


def test_the_124m_preset_has_the_weights_of_gpt2():
    with torch.device("meta"):  # shapes without memory
        gpt2 = GPT2LMHeadModel(GPT2Config())
    theirs = {our_name(name): tuple(weight.shape) for name, weight in gpt2.named_parameters()}
    program = transformer.training(preset("gpt2-124m"), batch=1, time=1, optimizer=None)
    assert {weight.name: weight.shape for weight in program.weights} == theirs
    assert program.parameters == sum(weight.numel() for weight in gpt2.parameters()) == 124_439_808
