"""config.json in both spellings; gaps and other models are errors."""

import copy

import pytest

from dgemma.config import GenerationDefaults, ModelConfig
from dgemma.errors import CheckpointError, UnsupportedError
from tiny_folder import config_dict, generation_dict


def test_both_spellings_agree() -> None:
    plain, saved = config_dict(), config_dict()
    del saved["text_config"]["global_head_dim"], saved["text_config"]["num_global_key_value_heads"]
    saved["text_config"]["per_layer_config"] = {"1": {"head_dim": 32, "num_key_value_heads": 1}}
    assert ModelConfig.from_dict(plain) == ModelConfig.from_dict(saved)


def test_values() -> None:
    config = ModelConfig.from_dict(config_dict() | {"unknown": 1})
    sliding, full = config.layers
    assert (sliding.head_dim, sliding.kv_heads, sliding.k_eq_v) == (16, 2, False)
    assert (full.head_dim, full.kv_heads, full.k_eq_v) == (32, 1, True)
    assert full.rope.kind == "proportional" and config.final_logit_softcapping == 30.0
    assert config.num_hidden_layers == 2


@pytest.mark.parametrize(
    "field", sorted(set(config_dict()["text_config"]) - {"num_global_key_value_heads", "hidden_activation"})
)
def test_no_field_is_guessed(field: str) -> None:
    raw = copy.deepcopy(config_dict())
    del raw["text_config"][field]
    with pytest.raises(CheckpointError, match=field):
        ModelConfig.from_dict(raw)


def test_another_model_names_the_supported_ones() -> None:
    with pytest.raises(UnsupportedError, match="'gemma4' is not supported") as caught:
        ModelConfig.from_dict(config_dict() | {"model_type": "gemma4"})
    assert "diffusion_gemma" in caught.value.remedy and caught.value.exit_code == 4


def test_bidirectional_encoder_is_refused() -> None:
    raw = config_dict()
    raw["text_config"]["use_bidirectional_attention"] = "all"
    with pytest.raises(UnsupportedError, match="bidirectional"):
        ModelConfig.from_dict(raw)


def test_generation_defaults() -> None:
    defaults = GenerationDefaults.from_dict(generation_dict())
    assert defaults.eos_token_ids == (1, 106, 50) and defaults.entropy_bound == 0.1
    assert GenerationDefaults.from_dict(generation_dict() | {"eos_token_id": 1}).eos_token_ids == (1,)
    raw = generation_dict()
    del raw["t_min"]
    with pytest.raises(CheckpointError, match="t_min"):
        GenerationDefaults.from_dict(raw)


WHOLE_FIELDS = sorted(key for key, value in config_dict()["text_config"].items() if type(value) is int)


@pytest.mark.parametrize("field", WHOLE_FIELDS)
def test_whole_numbers_may_be_written_as_floats(field: str) -> None:
    raw = config_dict()
    raw["text_config"][field] = float(raw["text_config"][field])
    found = ModelConfig.from_dict(raw)
    assert found == ModelConfig.from_dict(config_dict())
    assert type(getattr(found, field, 0)) is int
    raw["text_config"][field] += 0.5
    with pytest.raises(CheckpointError, match=field):
        ModelConfig.from_dict(raw)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("stability_threshold", 1.0),
        ("max_denoising_steps", 8.0),
        ("eos_token_id", [1.0, 106, 50.0]),
        ("pad_token_id", 0.0),
    ],
)
def test_whole_numbers_of_the_sampler(field: str, value: object) -> None:
    found = GenerationDefaults.from_dict(generation_dict() | {field: value})
    assert repr(found) == repr(GenerationDefaults.from_dict(generation_dict()))


@pytest.mark.parametrize(("value", "expected"), [(-1, None), (-1.0, None), (None, None), (0, 0), (7.0, 7)])
def test_no_padding(value: object, expected: int | None) -> None:
    assert GenerationDefaults.from_dict(generation_dict() | {"pad_token_id": value}).pad_token_id == expected


@pytest.mark.parametrize("value", [-2, 1.5, True, "0", float("inf"), float("nan")])
def test_no_padding_token(value: object) -> None:
    with pytest.raises(CheckpointError, match="pad_token_id must be an integer from -1 on"):
        GenerationDefaults.from_dict(generation_dict() | {"pad_token_id": value})


@pytest.mark.parametrize(("value", "shown"), [(None, "null"), (0, "0"), (-30.0, "-30.0"), ("30", "30"), (True, "True")])
def test_a_cap_that_is_none_is_refused(value: object, shown: str) -> None:
    """The reference divides by it, so that null is an error there; left out it is 30."""
    raw = config_dict()
    assert ModelConfig.from_dict(raw).final_logit_softcapping == 30.0
    raw["text_config"]["final_logit_softcapping"] = value
    with pytest.raises(CheckpointError, match=f"final_logit_softcapping must be a .*{shown}"):
        ModelConfig.from_dict(raw)
