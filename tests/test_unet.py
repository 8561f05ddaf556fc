from __future__ import annotations

import pytest
import torch
from torch import nn

from distdiff import Denoiser
from distdiff.nn.unet import AdaptiveRMSNorm, Fork, Population, UNet, fork

TINY = {"width": 8, "multipliers": (1, 2), "blocks": 2, "heads": 2}


def awake(network: nn.Module) -> nn.Module:
    """No weight is zero, so that every part has an effect."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return network.eval().requires_grad_(False)


def inputs(n=3, m=4, channels=2, size=8):
    generator = torch.Generator().manual_seed(1)
    xt = torch.randn(n, channels, size, size, generator=generator)
    xi = torch.randn(n, m, channels, size, size, generator=generator)
    return xt, torch.rand(n, generator=generator), xi


@pytest.mark.parametrize(("branch_at", "noise_levels"), [*((k, 0) for k in range(5)), (1, 2), (3, 3)])
@pytest.mark.parametrize(("size", "patch", "refine"), [(8, 1, 0), (7, 1, 3), (12, 2, 0), (12, 2, 5)])
def test_draws_have_the_shape_of_the_images_and_differ(branch_at, noise_levels, size, patch, refine):
    late = {"branch_at": branch_at, "noise_levels": noise_levels}
    network = awake(UNet(2, noise_channels=2, patch=patch, refine=refine, **late, **TINY))
    xt, t, xi = inputs(size=size)
    draws = network(xt, t, xi)
    assert draws.shape == (3, 4, 2, size, size)
    assert (draws[:, 0] - draws[:, 1]).abs().mean() > 1e-3


@pytest.mark.parametrize(
    ("branch_at", "noise_levels", "refine"), [*((k, 0, 0) for k in range(5)), (3, 2, 0), (0, 0, 3), (3, 1, 3)]
)
def test_a_population_is_its_draws_one_by_one(branch_at, noise_levels, refine):
    late = {"branch_at": branch_at, "noise_levels": noise_levels}
    network = awake(UNet(2, noise_channels=2, classes=3, refine=refine, **late, **TINY))
    xt, t, xi = inputs()
    label = torch.tensor([0, 2, 1])
    together = network(xt, t, xi, label)
    for j in range(4):
        torch.testing.assert_close(network(xt, t, xi[:, j : j + 1], label)[:, 0], together[:, j], atol=1e-5, rtol=1e-4)
    for i in range(3):
        alone = network(xt[i : i + 1], t[i], xi[i : i + 1], label[i : i + 1])
        torch.testing.assert_close(alone[0], together[i], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("refine", "reach"), [(0, [6, 7]), (4, [4, 5, 6, 7, 8, 9])])
def test_refined_pixels_see_the_features_of_neighbouring_blocks(refine, reach):
    network = awake(UNet(1, patch=2, refine=refine, **TINY))
    xt, t, _ = inputs(n=1, channels=1, size=12)
    before = network(xt, t)
    push = torch.zeros(6, 6)
    push[3, 3] = 1.0  # the block of pixels 6 and 7
    network.output.register_forward_hook(lambda _, __, out: out + push)
    moved = (network(xt, t) - before).abs().amax((0, 1, 2, 4)) > 1e-6
    assert moved.nonzero().flatten().tolist() == reach


@pytest.mark.parametrize("branch_at", [0, 1, 2, 3, 4])
def test_the_trunk_runs_once_an_image(branch_at):
    network = awake(UNet(2, noise_channels=2, branch_at=branch_at, **TINY))
    rows: dict[str, int] = {}
    for name, part in network.named_modules():
        if isinstance(part, nn.Conv2d):
            part.register_forward_hook(lambda _, args, __, name=name: rows.update({name: len(args[0])}))
    network(*inputs())
    first, second = ([rows[f"decoder.{k}.{part}"] for k in range(4)] for part in ("first", "second"))
    shared = branch_at if branch_at else 0
    assert first == [3] * shared + [12] * (4 - shared)
    assert second == [3] * max(shared - 1, 0) + [12] * (4 - max(shared - 1, 0))
    trunk = {count for name, count in rows.items() if name.startswith(("encoder", "middle", "down"))}
    assert trunk == ({3} if branch_at else {12})
    assert rows["input"] == 3
    assert rows["output"] == 12


def test_half_of_the_output_is_dropped_with_noise_at_the_input_only():
    assert UNet(3, noise_channels=3, **TINY).output.out_channels == 6
    assert UNet(3, noise_channels=3, branch_at=4, **TINY).output.out_channels == 3
    assert UNet(3, **TINY).output.out_channels == 3


def test_the_split_input_is_a_convolution_of_the_concatenation():
    network = awake(UNet(2, noise_channels=2, **TINY))
    xt, _, xi = inputs(m=1)
    weight = torch.cat([network.input.weight, network.noise.weight], dim=1)
    whole = nn.functional.conv2d(torch.cat([xt, xi[:, 0]], dim=1), weight, network.input.bias, padding=1)
    noise, _ = network._noise(xi, Population(torch.zeros(1, 32)), xt.shape[-2:])
    torch.testing.assert_close(fork(network.input(xt), noise), whole, atol=1e-5, rtol=1e-5)


def test_a_fork_sees_means_of_the_noise_over_blocks_at_unit_variance():
    network = awake(UNet(2, noise_channels=2, branch_at=3, noise_levels=2, **TINY))
    seen = []
    network.noise.register_forward_hook(lambda _, args, __: seen.append(args[0]))
    xt, t, xi = inputs(n=400, m=1)
    network(xt, t, torch.ones_like(xi))
    network(xt, t, xi)
    flat, noise = seen
    for channel, value in enumerate([1, 1, 2, 2, 4, 4]):  # a mean over k x k ones, in units of its deviation 1 / k
        torch.testing.assert_close(flat[:, channel], torch.full_like(flat[:, channel], value))
    torch.testing.assert_close(noise[:, :2], xi[:, 0])
    corner = 2 * xi[:, 0, :, :2, :2].mean((-2, -1))  # drawn large bilinearly, the corner is its block's alone
    torch.testing.assert_close(noise[:, 2:4, 0, 0], corner)
    assert abs(float(noise[:, 4:, 0, 0].var()) - 1) < 0.15


def test_the_gain_multiplies_what_the_noise_adds():
    """By what the conditioning says of all pixels, and by what the features say of each."""
    network = awake(UNet(2, noise_channels=2, branch_at=3, noise_levels=1, **TINY))
    channels = network.noise.out_channels
    nn.init.zeros_(network.noise_gain.weight)
    nn.init.constant_(network.noise_gain.bias, 2.0)
    nn.init.eye_(network.noise_gate.weight[:, :, 0, 0])
    h = torch.randn(3, channels, 8, 8)
    torch.testing.assert_close(network._gain(Population(torch.zeros(3, 32)))(h), 3 + h)
    block, state = network.decoder[2], Population(torch.zeros(3, 32))
    x, noise = torch.randn(3, block.norm.modulation.out_features // 2, 8, 8), torch.randn(6, channels, 8, 8)
    scaled = block(x, state, Fork(noise, state, lambda h: torch.full_like(h, 3.0)))
    torch.testing.assert_close(scaled, block(x, state, Fork(3 * noise, state, None)))
    assert not torch.allclose(scaled, block(x, state, Fork(noise, state, None)), atol=1e-3)


def test_every_condition_has_an_effect():
    network = awake(UNet(2, classes=3, **TINY))
    xt, t, _ = inputs()
    first = network(xt, t, None, torch.tensor([0, 1, 2]))
    assert not torch.allclose(first, network(xt, t, None, torch.tensor([1, 1, 2])), atol=1e-4)
    assert not torch.allclose(first, network(xt, t / 2, None, torch.tensor([0, 1, 2])), atol=1e-4)
    network = awake(UNet(2, attributes=5, **TINY))
    on = torch.eye(5)[:3]
    assert not torch.allclose(network(xt, t, None, on), network(xt, t, None, 0 * on), atol=1e-4)


def test_norm_divides_by_the_root_mean_square_of_the_channels():
    norm = AdaptiveRMSNorm(6, 4)
    x = torch.randn(2, 6, 3, 3)
    expected = x / x.square().mean(1, keepdim=True).sqrt()
    torch.testing.assert_close(norm(x, Population(torch.randn(2, 4))), expected, atol=1e-4, rtol=1e-4)
    with torch.no_grad():
        norm.modulation.bias[:6] = 1.0
        norm.modulation.bias[6:] = 3.0
    torch.testing.assert_close(norm(x, Population(torch.randn(2, 4))), 2 * expected + 3, atol=1e-4, rtol=1e-4)


def test_channels_last_gives_the_same():
    network = awake(UNet(2, noise_channels=2, branch_at=3, **TINY))
    xt, t, xi = inputs()
    plain = network(xt, t, xi)
    network.to(memory_format=torch.channels_last)
    torch.testing.assert_close(network(xt.to(memory_format=torch.channels_last), t, xi), plain, atol=1e-5, rtol=1e-4)


def test_half_precision_stays_close():
    network = awake(UNet(2, noise_channels=2, **TINY))
    xt, t, xi = inputs()
    plain = network(xt, t, xi)
    with torch.autocast("cpu", torch.bfloat16):
        half = network(xt, t, xi)
    assert float((half - plain).norm() / plain.norm()) < 0.05


def test_it_learns_two_pictures_apart():
    """A tiny network, given the label, overfits two pictures: gradients reach what they must."""
    torch.manual_seed(0)
    network = UNet(1, classes=2, noise_channels=1, branch_at=3, **TINY)
    denoiser = Denoiser(network, noise_shape=(1, 8, 8))
    target = torch.stack([torch.ones(1, 8, 8), -torch.ones(1, 8, 8)])
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    for _ in range(60):
        loss = (denoiser.draw(torch.randn(2, 1, 8, 8), 0.99, 2, torch.tensor([0, 1])) - target[:, None]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.05


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"heads": 3}, "heads must be a divisor"),
        ({"attention": (2,)}, "attention must be levels of the network"),
        ({"branch_at": 1}, "branch_at must be 0 for a network without noise"),
        ({"branch_at": 5, "noise_channels": 1}, "branch_at must be 0, or a block of the decoder, 1 to 4, got 5"),
        ({"noise_levels": 1, "noise_channels": 1}, "noise_levels must be 0 unless branch_at is positive"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\)"),
        ({"classes": 2, "attributes": 2}, "one or the other"),
        ({"multipliers": ()}, "multipliers must be counts"),
        ({"patch": 0}, "patch must be a whole number"),
    ],
)
def test_bad_settings(settings, says):
    with pytest.raises(ValueError, match=says):
        UNet(1, **{**TINY, **settings})


def test_bad_inputs():
    xt, t, xi = inputs()
    with pytest.raises(ValueError, match="xi must be noise"):
        UNet(2, noise_channels=2, **TINY)(xt, t)
    with pytest.raises(ValueError, match="xi must be None for a network without noise"):
        UNet(2, **TINY)(xt, t, xi)
    with pytest.raises(ValueError, match="cond must be the label of each image"):
        UNet(2, classes=3, **TINY)(xt, t)
    with pytest.raises(ValueError, match="cond must be whole numbers of shape"):
        UNet(2, classes=3, **TINY)(xt, t, None, torch.zeros(2, dtype=torch.long))
    with pytest.raises(ValueError, match="cond must be"):
        UNet(2, attributes=3, **TINY)(xt, t, None, torch.zeros(3, 2))
