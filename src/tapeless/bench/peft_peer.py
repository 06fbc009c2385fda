"""The peer of adapters: the same model of transformers, adapted by peft, as its own documentation does it.

Scaled-dot-product attention, fused AdamW over the adapters alone, optionally torch.compile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tapeless.bench.race import Work
from tapeless.errors import TapelessError
from tapeless.models.adapters import adapters_of
from tapeless.models.presets import preset
from tapeless.weights.hugging_face import family_of
from tapeless.weights.peft import their_targets


def prepare(name: str, work: Work) -> tuple[Callable[[], Any], dict[str, Any], None]:
    try:
        import peft
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM
    except ImportError:
        raise TapelessError(
            f"the peer {name} needs PyTorch, transformers and peft: pip install 'tapeless[test]'."
        ) from None
    torch.set_num_threads(work.threads)
    torch.manual_seed(0)
    chosen = preset(work.preset).override(**work.fields)
    adapters, config = adapters_of(chosen), chosen.architecture
    assert adapters is not None, "who asks has adapters"
    described = family_of(config).described(config)
    ends = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    wanted = AutoConfig.for_model(**described | ends, attn_implementation="sdpa", use_cache=False)
    alpha: Any = adapters.scale * adapters.rank
    lora = peft.LoraConfig(
        r=adapters.rank,
        lora_alpha=alpha,
        target_modules=their_targets(chosen),
        fan_in_fan_out=described["model_type"] == "gpt2",
        task_type="CAUSAL_LM",
    )
    model: Any = peft.get_peft_model(AutoModelForCausalLM.from_config(wanted), lora)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, weight_decay=0.01, fused=True)
    run: Any = torch.compile(model) if name == "peft-compile" else model
    inputs, targets = torch.randint(config.vocab, (2, work.batch, work.time))

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        logits = run(input_ids=inputs).logits
        loss = torch.nn.functional.cross_entropy(logits.view(-1, config.vocab), targets.view(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        return float(loss.item())

    step()
    step()
    return step, {"torch": torch.__version__, "peft": peft.__version__}, None
