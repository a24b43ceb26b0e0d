"""What cannot work is an error of one sentence that names the cause and the remedy."""

import copy
import pickle

import pytest
import torch
from foreign import LanguageModel, Mixer, Residual, gru
from torch import Tensor, nn

import latebloom as lb
from latebloom import DelayedAttention, at_step
from latebloom.delay import find_attention
from latebloom.errors import ConfigError

TOKENS = torch.arange(14).view(2, 7)


def hybrid() -> LanguageModel:
    return LanguageModel(Residual(gru()), Residual(Mixer()))


def delayed(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> DelayedAttention:
    return DelayedAttention(model, optimizer or torch.optim.SGD(model.parameters(), lr=0.1), until=at_step(2))


def test_models_without_attention_or_with_nothing_else() -> None:
    with pytest.raises(ConfigError, match=r"no softmax attention .* \(nothing mixes tokens\); name it with `where`"):
        delayed(LanguageModel(Residual(nn.Linear(16, 16))))
    with pytest.raises(ConfigError, match=r"no softmax attention .* \(blocks.0.body: GRU mixes tokens without"):
        delayed(LanguageModel(Residual(gru())))
    with pytest.raises(ConfigError, match=r"everything that mixes tokens in LanguageModel is attention \(blocks.0"):
        delayed(LanguageModel(Residual(Mixer())))


def test_an_optimizer_without_attention_and_attention_that_does_not_train() -> None:
    model = hybrid()
    with pytest.raises(ConfigError, match="the optimizer does not hold 6 of attention's parameters, so they would"):
        delayed(model, torch.optim.SGD(model.logits.parameters(), lr=0.1))
    model.blocks[1].requires_grad_(False)
    with pytest.raises(ConfigError, match=r"requires_grad is off for all of attention's parameters \(blocks.1.body\)"):
        delayed(model)


def test_a_model_on_the_meta_device() -> None:
    with torch.device("meta"):
        model = hybrid()
    message = "this LanguageModel is on the meta device; create the delay once it has weights"
    with pytest.raises(ConfigError, match=message):
        delayed(model)
    for example in (None, TOKENS):
        with pytest.raises(ConfigError, match=message):
            find_attention(model, example)
    assert lb.inspect(model).refusal == (
        "delay: this LanguageModel is on the meta device, and nothing is known of its classes by their names; inspect "
        "it once it has weights"
    )


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"where": []}, "where: the list is empty; name the modules to hold back, or leave `where` out"),
        ({"where": "block.1"}, "where: 'block.1' is not known; did you mean 'blocks.1'"),
        ({"where": 3}, "where: 3 is not possible; it must be a list of words"),
        ({"kinds": ()}, "kinds: the list is empty; choices: self, cross, sliding"),
        ({"kinds": "full"}, "kinds: 'full' is not known; choices: self, cross, sliding"),
        ({"allow": "nothing"}, "allow: 'nothing' is not known; choices: only attention, no gradient"),
        ({"steps": "9"}, "steps: '9' is not possible; it must be a whole number"),
    ],
)
def test_settings(settings, says) -> None:
    model = hybrid()
    with pytest.raises(ConfigError, match=says):
        DelayedAttention(model, torch.optim.SGD(model.parameters(), lr=0.1), until=at_step(2), **settings)


def test_what_was_found_in_another_model() -> None:
    found, model = find_attention(hybrid()), LanguageModel(Residual(gru()))
    with pytest.raises(ConfigError, match=r"where: attention was found in another model; \w+ has no blocks\.1\.body, "):
        DelayedAttention(model, until=at_step(2), automatic=False, where=found)


def test_a_single_name_needs_no_list() -> None:
    model = hybrid()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    DelayedAttention(model, optimizer, until=at_step(2), kinds="self", allow="no gradient").remove()  # type: ignore[arg-type]
    delay = DelayedAttention(model, optimizer, until=at_step(2), where="blocks.1.body")
    assert delay.found.matched == ("blocks.1.body",)


def test_a_function_is_not_a_model() -> None:
    with pytest.raises(ConfigError, match=r"model: a function is not a torch.nn.Module"):
        DelayedAttention(hybrid, until=at_step(2), automatic=False)  # type: ignore[arg-type]


class SeveralInputs(LanguageModel):
    """A model with inputs that cannot be guessed."""

    def forward(self, tokens: Tensor, speaker: Tensor, lengths: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(tokens) + speaker[:, None, None] * lengths.max()


class Vectorized(Mixer):
    """Attention inside `torch.vmap`, whose tensors cannot be used outside it."""

    def forward(self, x: Tensor) -> Tensor:
        def attend(x: Tensor) -> Tensor:
            q, k, v = self.c_attn(x).chunk(3, -1)
            return self.c_proj((q @ k.mT).softmax(-1) @ v)

        return torch.vmap(attend)(x)


def test_a_pass_that_cannot_be_followed_is_not_called_a_failed_one() -> None:
    model = LanguageModel(Residual(gru()), Residual(Vectorized()))
    with pytest.raises(
        ConfigError, match=r"what LanguageModel does cannot be followed \(.*\); name its attention with"
    ):
        delayed(model)
    delay = DelayedAttention(model, until=at_step(2), automatic=False, where="blocks.1.body")
    assert delay.found.besides == ["blocks.1.norm"]
    assert "attention  blocks.1.norm: LayerNorm acts through attention alone" in str(delay)


@pytest.mark.parametrize("batch", [1, 2])
def test_an_example_of_one_token(batch: int) -> None:
    with pytest.raises(ConfigError, match=r"LanguageModel has sequences of one token, .* `example` with more tokens"):
        DelayedAttention(hybrid(), until=at_step(2), automatic=False, example=torch.ones(batch, 1, dtype=torch.long))


def test_several_inputs_that_cannot_be_guessed() -> None:
    model = SeveralInputs(Residual(gru()), Residual(Mixer()))
    assert find_attention(model) is None
    refusal = "delay: no input for SeveralInputs could be guessed, so what it does is not known; give `example`"
    assert lb.inspect(model).refusal == refusal
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    delay = delayed(model, optimizer)
    for take in (copy.deepcopy, pickle.dumps):
        with pytest.raises(ConfigError, match="a copy of this SeveralInputs would not follow the switch, because"):
            take(model)
    with pytest.raises(ConfigError, match="SeveralInputs has not been called yet, and what it does is seen at"):
        optimizer.step()
    model(TOKENS, torch.ones(2), torch.ones(2))
    assert delay.found.matched == ("blocks.1.body",)
    inputs = TOKENS, torch.ones(2), torch.ones(2)
    assert torch.equal(copy.deepcopy(model)(*inputs), model(*inputs))
