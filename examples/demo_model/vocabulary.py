"""The demo vocabulary: one id per printable ASCII character, special tokens at Gemma's ids."""

import re

VOCAB_SIZE = 128
SPECIALS: dict[int, str] = {
    0: "<pad>",
    1: "<eos>",
    2: "<bos>",
    3: "<unk>",
    46: "<|tool>",
    47: "<tool|>",
    48: "<|tool_call>",
    49: "<tool_call|>",
    50: "<|tool_response>",
    51: "<tool_response|>",
    52: '<|"|>',
    98: "<|think|>",
    100: "<|channel>",
    101: "<channel|>",
    105: "<|turn>",
    106: "<turn|>",
    125: "<|image>",
    126: "<|image|>",
    127: "<image|>",
}
CHARACTERS = "\n" + "".join(chr(code) for code in range(32, 127))
BOS, TURN_START, TURN_END, THINK = 2, 105, 106, 98
CHANNEL_START, CHANNEL_END = 100, 101


def token_table() -> list[str]:
    """Every token in id order; ids that nothing claims are `<unusedN>`."""
    characters, unused = iter(CHARACTERS), iter(range(VOCAB_SIZE))
    return [
        SPECIALS[i] if i in SPECIALS else next(characters, None) or f"<unused{next(unused)}>" for i in range(VOCAB_SIZE)
    ]


TOKENS = token_table()
IDS = {token: i for i, token in enumerate(TOKENS)}
_SPECIAL_SPLIT = re.compile("(" + "|".join(re.escape(s) for s in SPECIALS.values()) + ")")


def encode(text: str) -> list[int]:
    """Ids of a text that may spell special tokens."""
    if "<" not in text:
        return [IDS[character] for character in text]
    return [i for part in _SPECIAL_SPLIT.split(text) for i in _encode_part(part)]


def _encode_part(part: str) -> list[int]:
    return [IDS[part]] if part in IDS else [IDS[character] for character in part]


def decode(ids: list[int]) -> str:
    """The text of some ids, special tokens spelled out."""
    return "".join(TOKENS[i] for i in ids)
