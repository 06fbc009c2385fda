"""Every kind of model beside PyTorch's autograd: loss, scores and the gradient of every weight."""

import numpy as np
import pytest

from tapeless.check.configurations import CONFIGURATIONS, Configuration
from tests.oracles import disagreements, leaves, masked, torch_gradients, torch_loss_and_logits

# Adapters have peft beside them: tests/weights/test_peft.py.
PLAIN = [configuration for configuration in CONFIGURATIONS if not configuration.fields.get("lora")]


@pytest.mark.parametrize("configuration", PLAIN, ids=lambda configuration: configuration.name)
def test_loss_scores_and_gradients_are_those_of_torch(configuration: Configuration):
    rng = np.random.default_rng(configuration.seed)
    model = configuration.model("float64")
    inputs, targets = configuration.batch_of(rng, model)
    configuration.scramble(rng, model)
    params = leaves(model.params)
    alone, logits = torch_loss_and_logits(model.config, params, inputs, targets, model.class_weights)
    rate, draws = model.preset.dropout, model.draws + 1
    drop = masked(model.config, rate, configuration.seed, draws)
    loss, _ = torch_loss_and_logits(model.config, params, inputs, targets, model.class_weights, drop)
    gradients = torch_gradients(loss, params)

    found = {
        "loss": model.forward_backward(inputs, targets),
        "loss alone": model.loss(inputs, targets),
        "logits": model.logits(inputs),
    }
    true = {"loss": loss.item(), "loss alone": alone.item(), "logits": logits.detach()}
    assert not disagreements("torch autograd", found, true)
    trained = {weight.name for weight in model.program.weights if weight.kind == "weight"}
    assert not disagreements("torch autograd", model.grads, {name: gradients[name] for name in trained})
