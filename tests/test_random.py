from __future__ import annotations

import pytest
import torch
from scipy import stats

from distdiff import SampleGenerator, rand, randn
from distdiff.random import _splitmix_numpy, _splitmix_torch, stream
from distdiff.row_wise import RowWise

LIKE = torch.empty(0, dtype=torch.float64)


@pytest.mark.parametrize("splitmix", [_splitmix_numpy, _splitmix_torch])
def test_splitmix_gives_the_published_known_answers(splitmix):
    golden = 0x9E3779B97F4A7C15
    states = torch.tensor([k * golden % 2**64 - 2**64 * (k * golden % 2**64 >= 2**63) for k in range(1, 5)])
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC]
    assert [int(word) % 2**64 for word in splitmix(states)] == expected


def test_numpy_and_torch_hash_alike_and_leave_the_state_alone():
    states = torch.randint(-(2**63), 2**63 - 1, (3, 5, 7))
    before = states.clone()
    assert torch.equal(_splitmix_numpy(states), _splitmix_torch(states))
    assert torch.equal(states, before)


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_prepared_for_several_calls_is_the_noise_of_these_calls(dtype):
    like, shapes = torch.empty(0, dtype=dtype), [(3, 2, 3), (3, 7), (3, 1, 9), (3, 4)]
    plain, prepared = SampleGenerator([5, 6, 7]), SampleGenerator([5, 6, 7])
    randn((3, 2), generator=plain, like=like)
    randn((3, 2), generator=prepared, like=like)
    prepared.prepare(3, 7, dtype)  # the third call asks for more, the fourth comes after them
    for shape in shapes:
        assert torch.equal(*(randn(shape, generator=one, like=like) for one in (plain, prepared)))
    assert plain.calls == prepared.calls


def test_calls_rows_and_positions_are_independent_normals():
    generator = SampleGenerator(range(400))
    sets = [randn((400, 251), generator=generator, like=LIKE) for _ in range(20)]
    first, second = sets[:2]
    chances = [stats.kstest(x.flatten().numpy(), "norm").pvalue for x in sets]
    assert stats.kstest(chances, "uniform").pvalue > 0.01
    assert abs(float(torch.corrcoef(torch.stack([first.flatten(), second.flatten()]))[0, 1])) < 0.01
    assert abs(float((first[1:] * first[:-1]).mean())) < 0.01
    assert abs(float((first[:, 1:] * first[:, :-1]).mean())) < 0.01


def test_uniform_numbers_are_uniform_inside_the_open_interval():
    u = rand((100, 300), generator=SampleGenerator(range(100)), like=LIKE)
    assert float(u.min()) > 0
    assert float(u.max()) < 1
    assert stats.kstest(u.flatten().numpy(), "uniform").pvalue > 0.01


def test_all_bits_of_a_seed_count():
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
        inner = torch.randn(2, 500, generator=generator)
        with pytest.warns(UserWarning, match="randn drew noise without a row a sample"):
            plain = torch.randn(7, 3, generator=generator)
    assert stats.kstest(((normal - 3) / 2).flatten().numpy(), "norm").pvalue > 0.01
    shares = torch.bincount(picks.flatten(), minlength=3) / picks.numel()
    torch.testing.assert_close(shares, weights[0], atol=0.015, rtol=0)
    assert plain.shape == (7, 3)
    assert inner.shape == (2, 500)


@pytest.mark.parametrize(
    "draw",
    [
        lambda n, g: torch.randn(n, 3, generator=g),
        lambda n, g: torch.randn(size=(n, 3), generator=g, dtype=torch.float64),
        lambda n, g: torch.randn(1, n, 3, generator=g)[0],
        lambda n, g: torch.rand((2 * n, 3), generator=g).reshape(n, 2, 3),
        lambda n, g: torch.randn_like(input=torch.empty(n, 3), generator=g),
        lambda n, g: torch.normal(mean=torch.zeros(n, 3), std=torch.ones(3), generator=g),
        lambda n, g: torch.empty(n, 3).normal_(1.0, 2.0, generator=g),
        lambda n, g: torch.empty(n, 3).uniform_(-1, 1, generator=g),
        lambda n, g: torch.randint(10**6, (n, 3), generator=g),
        lambda n, g: torch.randint(5, 10**6, size=(n, 3), generator=g),
        lambda n, g: torch.bernoulli(torch.full((n, 64), 0.5), generator=g),
        lambda n, g: torch.multinomial(torch.ones(n, 99), num_samples=8, replacement=True, generator=g),
        lambda n, g: torch.multinomial(input=torch.ones(n, 10**5), num_samples=1, generator=g),
        lambda n, g: torch.ones(n, 99).multinomial(num_samples=8, replacement=True, generator=g),
    ],
)
def test_row_wise_torch_functions_do_not_depend_on_the_batch(draw):
    with RowWise():
        whole = draw(7, SampleGenerator(range(7)))
        parts = torch.cat([draw(3, SampleGenerator(range(3))), draw(4, SampleGenerator(range(3, 7)))])
    assert torch.equal(whole, parts)
    assert len(whole.flatten(1).unique(dim=0)) == 7


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_uniform_numbers_never_reach_one_in_any_precision(dtype):
    like = torch.empty(0, dtype=dtype)
    u = rand((100, 3000), generator=SampleGenerator(range(100)), like=like)
    assert float(u.max()) < 1
    assert float(u.min()) >= 0


def test_every_purpose_has_a_stream_of_its_own():
    seeds = [
        stream(seed, purpose) for seed in (0, 1, 2**32, 2**40) for purpose in ("data", "weights", "held-out", "floor")
    ]
    assert len({float(torch.rand((), generator=torch.Generator().manual_seed(seed))) for seed in seeds}) == len(seeds)
