from __future__ import annotations

import pytest
import torch
from scipy import stats

from distdiff import SampleGenerator, rand, randn
from distdiff.random import RowWise, philox

LIKE = torch.empty(0, dtype=torch.float64)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_known_answers(counter, key, expected):
    words = philox(tuple(map(torch.tensor, counter)), tuple(map(torch.tensor, key)))
    assert tuple(int(w) for w in words) == expected


def test_rows_do_not_depend_on_their_batch():
    together = SampleGenerator([3, 1, 4, 1, 5])
    whole = [randn((5, 7), generator=together, like=LIKE), rand((5, 2, 3), generator=together, like=LIKE)]
    first, second = SampleGenerator([3, 1]), SampleGenerator([4, 1, 5])
    parts = [
        [randn((len(g.seeds), 7), generator=g, like=LIKE), rand((len(g.seeds), 2, 3), generator=g, like=LIKE)]
        for g in (first, second)
    ]
    for call in range(2):
        assert torch.equal(whole[call], torch.cat([part[call] for part in parts]))
    assert torch.equal(whole[0][1], whole[0][3])
    assert not torch.equal(whole[0][0], whole[0][1])


def test_calls_rows_and_positions_are_independent_normals():
    generator = SampleGenerator(range(400))
    first, second = (randn((400, 251), generator=generator, like=LIKE) for _ in range(2))
    assert stats.kstest(first.flatten().numpy(), "norm").pvalue > 0.01
    assert abs(float(torch.corrcoef(torch.stack([first.flatten(), second.flatten()]))[0, 1])) < 0.01
    assert abs(float((first[1:] * first[:-1]).mean())) < 0.01
    assert abs(float((first[:, 1:] * first[:, :-1]).mean())) < 0.01


def test_uniform_numbers_are_uniform_inside_the_open_interval():
    u = rand((100, 300), generator=SampleGenerator(range(100)), like=LIKE)
    assert float(u.min()) > 0
    assert float(u.max()) < 1
    assert stats.kstest(u.flatten().numpy(), "uniform").pvalue > 0.01


def test_large_seeds_use_both_key_words():
    a, b = (randn((1, 4), generator=SampleGenerator([seed]), like=LIKE) for seed in (5, 5 + 2**32))
    assert not torch.equal(a, b)


def test_torch_functions_accept_it_as_an_ordinary_generator():
    a, b = (torch.randn(3, generator=SampleGenerator([9, 2])) for _ in range(2))
    assert torch.equal(a, b)


def test_ordinary_generators_are_torchs_own():
    theirs = torch.randn(2, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert torch.equal(randn((2, 3), generator=torch.Generator().manual_seed(1), like=LIKE), theirs)


@pytest.mark.parametrize("seed", [-1, 2**63, 1.5])
def test_bad_seeds_are_named(seed):
    with pytest.raises(ValueError, match=r"seed must be a whole number in \[0, 2\*\*63\)"):
        SampleGenerator([0, seed])


def test_row_wise_torch_functions_have_the_right_distributions():
    generator = SampleGenerator(range(500))
    with RowWise():
        normal = torch.normal(torch.full((500, 40), 3.0), 2.0, generator=generator)
        weights = torch.tensor([0.2, 0.5, 0.3]).expand(500, 3)
        picks = torch.multinomial(weights, 40, replacement=True, generator=generator)
        plain = torch.randn(7, 3, generator=generator)  # not a multiple of the rows: an ordinary stream
    assert stats.kstest(((normal - 3) / 2).flatten().numpy(), "norm").pvalue > 0.01
    shares = torch.bincount(picks.flatten(), minlength=3) / picks.numel()
    torch.testing.assert_close(shares, weights[0], atol=0.015, rtol=0)
    assert plain.shape == (7, 3)
