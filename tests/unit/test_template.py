"""Chat templates: Gemma's turn format, the helper functions templates rely on, and clear refusals."""

import os
from pathlib import Path

import pytest

from dgemma.errors import CheckpointError, UnsupportedError, UsageError
from dgemma.template import ChatTemplate
from tiny_folder import write_json

USER = {"role": "user", "content": "Hi "}


def test_golden_render(folder: Path) -> None:
    template = ChatTemplate.from_folder(folder)
    assert template.render([USER]) == "<bos><|turn>user\nHi<turn|>\n<|turn>model\n"
    assert template.render([USER], add_generation_prompt=False) == "<bos><|turn>user\nHi<turn|>\n"
    turns = [{"role": "system", "content": "Be brief."}, USER, {"role": "assistant", "content": "Yo"}, USER]
    assert template.render(turns, enable_thinking=True) == (
        "<bos><|turn>system\n<|think|>\nBe brief.<turn|>\n<|turn>user\nHi<turn|>\n"
        "<|turn>model\nYo<turn|>\n<|turn>user\nHi<turn|>\n<|turn>model\n"
    )


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ {'b': 1, 'a': 'ü<'} | tojson }}", '{"b": 1, "a": "ü<"}'),
        ("{{ tools | tojson(indent=1) }}", '[\n {\n  "n": 1\n }\n]'),
        ("{% for m in [1, 2, 3] %}{% if m == 2 %}{% continue %}{% endif %}{{ m }}{% endfor %}", "13"),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}", "Hi "),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("{{ nothing is defined }}{{ enable_thinking }}", "FalseFalse"),
    ],
)
def test_helpers(source: str, expected: str) -> None:
    assert ChatTemplate.of(source, {}).render([USER], tools=[{"n": 1}]) == expected


def test_refusals() -> None:
    with pytest.raises(UsageError, match="roles must alternate"):
        ChatTemplate.of("{{ raise_exception('roles must alternate') }}", {}).render([USER])
    with pytest.raises(CheckpointError, match="does not compile"):
        ChatTemplate.of("{% if %}", {})
    with pytest.raises(CheckpointError, match="fails on these messages"):
        ChatTemplate.of("{{ messages[0].nothing.at.all }}", {}).render([USER])
    with pytest.raises(CheckpointError):
        ChatTemplate.of("{{ ''.__class__.__mro__ }}", {}).render([USER])
    with pytest.raises(UnsupportedError, match="'image'"):
        ChatTemplate.of("", {}).render([{"role": "user", "content": [{"type": "image"}]}])
    with pytest.raises(UsageError, match="role"):
        ChatTemplate.of("", {}).render([{"content": "x"}])


def test_where_the_template_is_found(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(CheckpointError, match="no chat template") as caught:
        ChatTemplate.from_folder(folder)
    assert "--raw" in caught.value.remedy
    write_json(folder / "tokenizer_config.json", {"chat_template": "one"})
    assert ChatTemplate.from_folder(folder).render([USER]) == "one"
    named = [{"name": "tool_use", "template": "other"}, {"name": "default", "template": "two"}]
    write_json(folder / "tokenizer_config.json", {"chat_template": named})
    assert ChatTemplate.from_folder(folder).render([USER]) == "two"


@pytest.mark.parametrize(
    ("raw", "size", "message"), [(b"\xff{{ x }}", 4, "cannot be read"), (b"x", 1 << 33, "larger than any")]
)
def test_a_damaged_or_absurd_file(folder: Path, raw: bytes, size: int, message: str) -> None:
    (folder / "chat_template.jinja").write_bytes(raw)
    os.truncate(folder / "chat_template.jinja", size)
    with pytest.raises(CheckpointError, match=message):
        ChatTemplate.from_folder(folder)
