from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgemma.errors import UsageError
from dgemma.noise import Noise

seeds = st.integers(0, 2**64 - 1)


def test_golden_values() -> None:
    noise = Noise(42)
    assert noise.initial(0, 4, 262144).tolist() == [215010, 49609, 227452, 103437]
    assert noise.renoise(1, 2, 4, 262144).tolist() == [184520, 16753, 234269, 192305]
    assert (noise.uniforms(1, 2, 4) * 2**24).tolist() == [13630556, 10039391, 11065221, 13033176]
    assert (noise.causal(5, 4) * 2**24).tolist() == [4262855, 1626271, 13067818, 10602929]
    assert Noise(2**64 - 1, 3).initial(0, 4, 262144).tolist() == [30622, 113985, 146827, 26686]


@given(seeds, st.integers(0, 40), st.integers(0, 40))
def test_shorter_draws_are_prefixes(seed: int, short: int, more: int) -> None:
    noise = Noise(seed)
    assert np.array_equal(noise.uniforms(3, 1, short + more)[:short], noise.uniforms(3, 1, short))
    assert np.array_equal(noise.initial(3, short + more, 99)[:short], noise.initial(3, short, 99))


@given(seeds, st.integers(0, 1000), st.integers(0, 30), st.integers(0, 30))
def test_causal_draws_belong_to_positions(seed: int, start: int, skip: int, count: int) -> None:
    noise = Noise(seed)
    assert np.array_equal(noise.causal(start, skip + count)[skip:], noise.causal(start + skip, count))


def test_every_part_of_the_key_matters() -> None:
    draws = [
        Noise(0).uniforms(0, 0, 64),
        Noise(1).uniforms(0, 0, 64),
        Noise(0, 1).uniforms(0, 0, 64),
        Noise(0).uniforms(1, 0, 64),
        Noise(0).uniforms(0, 1, 64),
        Noise(0).causal(0, 64),
        Noise(0).initial(0, 64, 2**24).astype(np.float32) * np.float32(2**-24),
        Noise(0).renoise(0, 0, 64, 2**24).astype(np.float32) * np.float32(2**-24),
    ]
    for index, one in enumerate(draws):
        for other in draws[index + 1 :]:
            assert not np.isin(one, other).sum() > 1
            assert abs(np.corrcoef(one, other)[0, 1]) < 0.5


def test_draws_look_uniform() -> None:
    uniforms = Noise(7).uniforms(0, 0, 100_000)
    assert uniforms.dtype == np.float32 and uniforms.min() >= 0 and uniforms.max() < 1
    counts = np.histogram(uniforms, 50, (0, 1))[0]
    assert ((counts - 2000) ** 2 / 2000).sum() < 94, "chi squared with 49 degrees of freedom, p = 1e-4"
    ids = Noise(7).initial(0, 100_000, 50)
    assert ids.dtype == np.int32 and ids.min() == 0 and ids.max() == 49
    assert ((np.bincount(ids) - 2000) ** 2 / 2000).sum() < 94


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_seeds_outside_64_bits_are_refused(seed: int) -> None:
    with pytest.raises(UsageError, match="seed"):
        Noise(seed)


def test_words_are_those_of_the_published_generator() -> None:
    words = philox([1, 2, 1, 5], [42, 1])
    assert (Noise(42, 5).uniforms(1, 2, 4) * 2**24).tolist() == [word >> 40 for word in words]
    words = philox([2, 0, 0, 5], [42, 3]) + philox([3, 0, 0, 5], [42, 3])
    assert (Noise(42, 5).causal(5, 4) * 2**24).tolist() == [word >> 40 for word in words[1:5]]


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox-4x64-10 in whole numbers; numpy's first block is that of counter + 1."""
    for _ in range(10):
        low, high = 0xD2E7470EE14C6C93 * counter[0], 0xCA5A826395121157 * counter[2]
        counter = [high >> 64 ^ counter[1] ^ key[0], high % 2**64, low >> 64 ^ counter[3] ^ key[1], low % 2**64]
        key = [(key[0] + 0x9E3779B97F4A7C15) % 2**64, (key[1] + 0xBB67AE8584CAA73B) % 2**64]
    return counter
