"""Picture sets: what real files of each format hold, how a picture is brought to its square, what is refused."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import datasets
import huggingface_hub
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader

from distdiff._check import BadArgument
from distdiff.data import image, named
from distdiff.data.image import load_images, to_float, to_uint8
from distdiff.data.named import CELEBA_ATTRIBUTES, CIFAR10_CLASSES, read_idx


@pytest.fixture(autouse=True)
def cache_and_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written to the home folder, and nobody is called."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(named, "DEBIAN_FASHION_MNIST", tmp_path / "absent")
    monkeypatch.setattr(image, "DEBIAN_FASHION_MNIST", tmp_path / "absent")


def noise(seed: int, height: int = 8, width: int = 8, channels: int = 3) -> np.ndarray:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)
    return pixels[..., 0] if channels == 1 else pixels


def save(path: Path, pixels: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def chw(pixels: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))


def class_folder(root: Path) -> Path:
    """Two cats (seeds 0, 1) and three dogs (10, 11, 12)."""
    for name, seeds in (("cat", (0, 1)), ("dog", (10, 11, 12))):
        for seed in seeds:
            save(root / name / f"{seed:02}.png", noise(seed))
    return root


def parquet(path: Path, count: int = 4, seed: int = 0, **columns: Sequence[object]) -> Path:
    """Pictures as `datasets` writes them, with a ClassLabel where the column is called label."""
    cells = [{"bytes": png(noise(seed + i)), "path": None} for i in range(count)]
    features = {"img": datasets.Image()}
    table = datasets.Dataset.from_dict({"img": cells, **columns})
    if "label" in columns:
        features["label"] = datasets.ClassLabel(names=["ape", "bee", "cow"])
    path.parent.mkdir(parents=True, exist_ok=True)
    table.cast(datasets.Features({**table.features, **features})).to_parquet(path)
    return path


def plain_parquet(path: Path, columns: dict[str, Sequence[object]]) -> Path:
    pyarrow.parquet.write_table(pa.table(columns), path)
    return path


def refused(words: str | Sequence[str], call: Callable[[], object]) -> None:
    with pytest.raises(BadArgument) as caught:
        call()
    for word in [words] if isinstance(words, str) else words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


class TestFolders:
    def test_class_folders_give_classes_and_exact_pixels(self, tmp_path: Path) -> None:
        pictures = load_images(str(class_folder(tmp_path / "pets")))
        x0, labels = pictures.batch(range(5))
        assert pictures.classes == ("cat", "dog")
        assert labels is not None
        assert labels.dtype == torch.int64
        assert labels.tolist() == [0, 0, 1, 1, 1]
        assert torch.equal(x0, torch.stack([chw(noise(seed)) for seed in (0, 1, 10, 11, 12)]))
        assert (len(pictures), pictures.size, pictures.channels, pictures.bad) == (5, 8, 3, ())

    def test_folders_train_and_test_are_splits_with_the_same_classes(self, tmp_path: Path) -> None:
        class_folder(tmp_path / "pets" / "train")
        save(tmp_path / "pets" / "test" / "dog" / "a.png", noise(7))
        held_out = load_images(str(tmp_path / "pets"), split="test")
        assert (len(held_out), held_out.classes) == (1, ("cat", "dog"))
        assert held_out[0][1] == 1
        assert len(load_images(str(tmp_path / "pets"))) == 5
        refused(
            ["split must be one of train, test", "validation"],
            lambda: load_images(str(tmp_path / "pets"), split="validation"),
        )

    def test_val_and_validation_are_one_split(self, tmp_path: Path) -> None:
        class_folder(tmp_path / "pets" / "train")
        class_folder(tmp_path / "pets" / "val")
        assert len(load_images(str(tmp_path / "pets"), split="valid")) == 5

    def test_a_class_called_train_is_not_a_split(self, tmp_path: Path) -> None:
        for name in ("bus", "tram", "train"):
            save(tmp_path / "vehicles" / name / "test_1.png", noise(0))
        pictures = load_images(str(tmp_path / "vehicles"))
        assert (len(pictures), pictures.classes) == (3, ("bus", "train", "tram"))

    def test_flat_pictures_have_no_condition(self, tmp_path: Path) -> None:
        for seed in range(3):
            save(tmp_path / "flat" / f"{seed}.png", noise(seed))
        (tmp_path / "flat" / "notes.txt").write_text("not a picture")
        pictures = load_images(str(tmp_path / "flat"))
        assert (len(pictures), pictures.classes, pictures.attributes) == (3, None, None)
        assert pictures.batch([0])[1] is None
        assert pictures[0][1] is None

    @pytest.mark.filterwarnings("ignore::ResourceWarning")  # `datasets` leaves metadata.csv open
    @pytest.mark.parametrize("kind", ["jsonl", "csv"])
    def test_metadata_gives_text_labels_sorted(self, tmp_path: Path, kind: str) -> None:
        rows = [("2.png", "zebra"), ("0.png", "ant"), ("1.png", "zebra")]
        for seed in range(3):
            save(tmp_path / "meta" / f"{seed}.png", noise(seed))
        if kind == "jsonl":
            text = "\n".join(json.dumps({"file_name": name, "class": label}) for name, label in rows)
        else:
            text = "\n".join(["file_name,class", *(f"{name},{label}" for name, label in rows)])
        (tmp_path / "meta" / f"metadata.{kind}").write_text(text)
        pictures = load_images(str(tmp_path / "meta"))
        x0, labels = pictures.batch([0, 1, 2])
        assert pictures.classes == ("ant", "zebra")
        assert labels is not None
        assert labels.tolist() == [1, 0, 1]
        assert torch.equal(x0, torch.stack([chw(noise(seed)) for seed in (2, 0, 1)]))

    def test_metadata_that_name_no_file_are_refused(self, tmp_path: Path) -> None:
        save(tmp_path / "meta" / "0.png", noise(0))
        (tmp_path / "meta" / "metadata.jsonl").write_text('{"picture": "0.png", "class": "ant"}')
        refused(["source must be", "file_name"], lambda: load_images(str(tmp_path / "meta")))
        (tmp_path / "meta" / "metadata.jsonl").write_text('{"file_name": "0.png", ')
        refused("source must be", lambda: load_images(str(tmp_path / "meta")))

    def test_metadata_with_a_label_missing_are_refused(self, tmp_path: Path) -> None:
        for seed in range(2):
            save(tmp_path / "meta" / f"{seed}.png", noise(seed))
        text = '{"file_name": "0.png", "label": "ant"}\n{"file_name": "1.png", "label": null}'
        (tmp_path / "meta" / "metadata.jsonl").write_text(text)
        refused(["'label'", "row 1"], lambda: load_images(str(tmp_path / "meta")))
        assert len(load_images(str(tmp_path / "meta"), label_column="none")) == 2

    def test_a_folder_without_pictures_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        refused(["source must be", "empty"], lambda: load_images(str(tmp_path / "empty")))
        (tmp_path / "empty" / "notes.txt").write_text("nothing")
        refused(["source must be", "empty"], lambda: load_images(str(tmp_path / "empty")))


class TestBadPictures:
    def test_broken_files_are_named_and_skipped_with_their_labels(self, tmp_path: Path) -> None:
        root = class_folder(tmp_path / "pets")
        (root / "cat" / "01.png").write_bytes(b"not a picture")
        whole = (root / "dog" / "11.png").read_bytes()
        (root / "dog" / "11.png").write_bytes(whole[: len(whole) // 2])
        pictures = load_images(str(root))
        x0, labels = pictures.batch(range(len(pictures)))
        assert [Path(name).name for name in pictures.bad] == ["01.png", "11.png"]
        assert labels is not None
        assert labels.tolist() == [0, 1, 1]
        assert torch.equal(x0, torch.stack([chw(noise(seed)) for seed in (0, 10, 12)]))
        assert "2 could not be decoded" in pictures.describe()
        assert "01.png" in pictures.describe()

    def test_limit_counts_usable_pictures(self, tmp_path: Path) -> None:
        root = class_folder(tmp_path / "pets")
        (root / "cat" / "00.png").write_bytes(b"")
        pictures = load_images(str(root), limit=3)
        assert torch.equal(pictures.batch([0, 1, 2])[0], torch.stack([chw(noise(seed)) for seed in (1, 10, 11)]))
        assert (len(pictures), len(pictures.bad)) == (3, 1)

    def test_nothing_usable_is_refused_with_a_reason(self, tmp_path: Path) -> None:
        for name in "ab":
            (tmp_path / "broken").mkdir(exist_ok=True)
            (tmp_path / "broken" / f"{name}.png").write_bytes(b"junk")
        refused(["2 that cannot", "a.png", "cannot identify"], lambda: load_images(str(tmp_path / "broken")))

    def test_pictures_of_floats_are_refused_for_want_of_a_range(self, tmp_path: Path) -> None:
        save(tmp_path / "floats" / "0.tiff", np.ones((4, 4), np.float32))
        refused("floating-point", lambda: load_images(str(tmp_path / "floats")))

    def test_rows_of_a_table_are_named_by_number(self, tmp_path: Path) -> None:
        path = plain_parquet(tmp_path / "a.parquet", {"picture": [png(noise(0)), b"junk", None, png(noise(1))]})
        pictures = load_images(str(path))
        assert pictures.bad == ("row 1", "row 2")
        assert torch.equal(pictures.batch([1])[0][0], chw(noise(1)))


class TestTables:
    def test_parquet_with_class_names(self, tmp_path: Path) -> None:
        pictures = load_images(str(parquet(tmp_path / "a.parquet", label=[2, 0, 1, 2])))
        x0, labels = pictures.batch([3, 0])
        assert pictures.classes == ("ape", "bee", "cow")
        assert labels is not None
        assert labels.tolist() == [2, 2]
        assert torch.equal(x0, torch.stack([chw(noise(3)), chw(noise(0))]))

    def test_a_folder_and_a_pattern_of_parquet_files_have_splits(self, tmp_path: Path) -> None:
        root = tmp_path / "data"
        parquet(root / "train-00000-of-00002.parquet", label=[0, 0, 0, 0])
        parquet(root / "train-00001-of-00002.parquet", count=2, seed=4, label=[1, 1])
        parquet(root / "test-00000-of-00001.parquet", count=1, seed=9, label=[2])
        train = load_images(str(root))
        assert torch.equal(train.batch([0, 5])[0], torch.stack([chw(noise(0)), chw(noise(5))]))
        for source in (root, root / "*.parquet", root / "test*.parquet"):
            test = load_images(str(source), split="test")
            assert (len(test), test[0][1]) == (1, 2)
            assert torch.equal(test[0][0], chw(noise(9)))
        refused("one of train", lambda: load_images(str(root / "train*.parquet"), split="test"))

    def test_saved_datasets_with_and_without_splits(self, tmp_path: Path) -> None:
        table = datasets.load_dataset("parquet", data_files=str(parquet(tmp_path / "a.parquet", label=[2, 0, 1, 2])))
        table.save_to_disk(tmp_path / "dict")
        table["train"].shuffle(seed=3).save_to_disk(tmp_path / "one")
        assert len(load_images(str(tmp_path / "dict"))) == 4
        refused("one of train", lambda: load_images(str(tmp_path / "dict"), split="test"))
        shuffled = load_images(str(tmp_path / "one"))
        order = [next(s for s in range(4) if torch.equal(shuffled[i][0], chw(noise(s)))) for i in range(4)]
        assert sorted(order) == [0, 1, 2, 3] != order
        assert [int(shuffled[i][1]) for i in range(4)] == [[2, 0, 1, 2][s] for s in order]

    def test_whole_numbers_without_names_count_over_all_splits(self, tmp_path: Path) -> None:
        pixels = [png(noise(0))] * 2
        plain_parquet(tmp_path / "train.parquet", {"image": pixels, "labels": [0, 3]})
        plain_parquet(tmp_path / "test.parquet", {"image": pixels, "labels": [1, 0]})
        assert load_images(str(tmp_path), split="test").classes == ("0", "1", "2", "3")

    def test_text_labels_have_the_same_index_in_every_split(self, tmp_path: Path) -> None:
        pixels = [png(noise(0))] * 2
        plain_parquet(tmp_path / "train.parquet", {"image": pixels, "label": ["ant", "bee"]})
        plain_parquet(tmp_path / "test.parquet", {"image": pixels, "label": ["bee", "bee"]})
        assert load_images(str(tmp_path), split="test").batch([0])[1] == 1

    def test_columns_can_be_chosen(self, tmp_path: Path) -> None:
        cells, other = [png(noise(0)), png(noise(1))], [png(noise(2)), png(noise(3))]
        columns = {"front": cells, "back": other, "label": [0, 1], "mark": ["x", "y"], "weight": [0.5, 1.0]}
        path = str(plain_parquet(tmp_path / "a.parquet", columns))
        refused(["image_column", "front, back"], lambda: load_images(path))
        refused(["image_column must be one of", "'side'"], lambda: load_images(path, image_column="side"))
        refused("image_column must hold pictures", lambda: load_images(path, image_column="label"))
        pictures = load_images(path, image_column="back", label_column="mark")
        assert pictures.classes == ("x", "y")
        assert torch.equal(pictures[0][0], chw(noise(2)))
        refused(
            ["label_column must be one of", "mark", "'colour'"],
            lambda: load_images(path, image_column="back", label_column="colour"),
        )
        refused("weight of double", lambda: load_images(path, image_column="back", label_column="weight"))
        assert load_images(path, image_column="back", label_column="none").classes is None

    def test_labels_out_of_range_are_refused(self, tmp_path: Path) -> None:
        cells = [png(noise(0))] * 2
        path = str(plain_parquet(tmp_path / "a.parquet", {"image": cells, "label": [0, -1]}))
        refused(["'label'", "-1 in row 1"], lambda: load_images(path))
        path = str(plain_parquet(tmp_path / "b.parquet", {"image": cells, "label": [12, 0]}))
        refused(["[0, 9]", "12 in row 0"], lambda: load_images("cifar10", path=path))

    def test_an_empty_split_is_refused(self, tmp_path: Path) -> None:
        columns = {"image": pa.array([], pa.binary()), "label": pa.array([], pa.int64())}
        path = str(plain_parquet(tmp_path / "a.parquet", columns))
        refused(["a.parquet"], lambda: load_images(path))

    def test_a_broken_parquet_file_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "a.parquet").write_bytes(b"PAR1 and no more")
        refused(["source must be", "a.parquet"], lambda: load_images(str(tmp_path / "a.parquet")))
        (tmp_path / "a.txt").write_text("text")
        refused(["source must be", "a.txt"], lambda: load_images(str(tmp_path / "a.txt")))


class TestAttributes:
    @pytest.mark.parametrize("form", ["bool", "signed", "list"])
    def test_celeba_in_every_form_of_columns(self, tmp_path: Path, form: str) -> None:
        truth = np.random.default_rng(0).integers(0, 2, (3, 40))
        columns: dict[str, Sequence[object]] = {"image": [png(noise(i)) for i in range(3)], "celeb_id": [5, 6, 7]}
        if form == "list":
            columns["attributes"] = (2 * truth - 1).tolist()
        else:
            values = truth.astype(bool) if form == "bool" else 2 * truth - 1
            for name in reversed(CELEBA_ATTRIBUTES):
                columns[name] = values[:, CELEBA_ATTRIBUTES.index(name)].tolist()
        path = plain_parquet(tmp_path / "celeba.parquet", columns)
        faces = load_images("celeba", path=path)
        assert (faces.name, faces.attributes, faces.classes) == ("celeba", CELEBA_ATTRIBUTES, None)
        vectors = faces.batch([2, 0])[1]
        assert vectors is not None
        assert vectors.dtype == torch.float32
        assert torch.equal(vectors, torch.from_numpy(truth[[2, 0]]).float())

    def test_missing_and_impossible_attributes_are_refused(self, tmp_path: Path) -> None:
        path = plain_parquet(tmp_path / "a.parquet", {"image": [png(noise(0))], "Smiling": [1]})
        refused(["5_o_Clock_Shadow", "39 of 40"], lambda: load_images("celeba", path=path))
        assert load_images("celeba", path=path, label_column="none").attributes is None
        path = plain_parquet(tmp_path / "b.parquet", {"image": [png(noise(0))], "attributes": [[3] * 40]})
        refused(["attributes", "[3]"], lambda: load_images("celeba", path=path))


class TestGeometry:
    def test_the_centre_is_cropped_without_resampling(self, tmp_path: Path) -> None:
        wide, tall = noise(0, 6, 11), noise(1, 10, 6)
        save(tmp_path / "a" / "0.png", wide)
        save(tmp_path / "a" / "1.png", tall)
        x0 = load_images(str(tmp_path / "a")).batch([0, 1])[0]
        assert torch.equal(x0[0], chw(wide[:, 2:8]))
        assert torch.equal(x0[1], chw(tall[2:8]))

    def test_resizing_keeps_the_central_square(self, tmp_path: Path) -> None:
        """Thirds of red, green and blue side by side: the central square is all green."""
        pixels = np.zeros((40, 120, 3), np.uint8)
        for third in range(3):
            pixels[:, 40 * third : 40 * third + 40, third] = 200
        save(tmp_path / "a" / "0.png", pixels)
        x0 = load_images(str(tmp_path / "a"), size=10).batch([0])[0]
        assert x0.shape == (1, 3, 10, 10)
        assert (x0[0, :, :, 2:-2] == torch.tensor([0, 200, 0])[:, None, None]).all()

    def test_shrinking_does_not_alias(self, tmp_path: Path) -> None:
        """A board of single black and white pixels becomes grey; picking pixels would give black or white."""
        board = (np.indices((64, 64)).sum(0) % 2 * 255).astype(np.uint8)
        save(tmp_path / "a" / "0.png", board)
        x0 = load_images(str(tmp_path / "a"), size=8).batch([0])[0].float()
        assert (x0 - 127.5).abs().max() < 12

    def test_enlarging_a_ramp_is_monotone_and_keeps_its_ends(self, tmp_path: Path) -> None:
        save(tmp_path / "a" / "0.png", np.tile(np.linspace(0, 255, 8).astype(np.uint8), (8, 1)))
        row = load_images(str(tmp_path / "a"), size=32).batch([0])[0][0, 0, 16].int()
        assert (row.diff() >= 0).all()
        assert row[0] <= 2
        assert row[-1] >= 253
        assert abs(int(row[15]) - 127) < 8


class TestModes:
    def decoded(self, tmp_path: Path, picture: Image.Image, name: str = "0.png", **settings: object) -> torch.Tensor:
        (tmp_path / "a").mkdir()
        picture.save(tmp_path / "a" / name, **settings)
        return load_images(str(tmp_path / "a"), channels=3).batch([0])[0][0]

    def test_channels_follow_the_first_picture_or_the_argument(self, tmp_path: Path) -> None:
        save(tmp_path / "a" / "0.png", noise(0, channels=1))
        save(tmp_path / "a" / "1.png", np.full((8, 8, 3), (100, 200, 50), np.uint8))
        grey = load_images(str(tmp_path / "a"))
        assert grey.channels == 1
        assert torch.equal(grey[0][0][0], torch.from_numpy(noise(0, channels=1)))
        luma = round(0.299 * 100 + 0.587 * 200 + 0.114 * 50)
        assert (grey[1][0] == luma).all()
        colour = load_images(str(tmp_path / "a"), channels=3).batch([0])[0][0]
        assert torch.equal(colour, torch.from_numpy(noise(0, channels=1)).expand(3, 8, 8))

    def test_transparency_lies_over_white(self, tmp_path: Path) -> None:
        pixels = np.zeros((2, 2, 4), np.uint8)
        pixels[0, 0], pixels[0, 1] = (10, 20, 30, 255), (10, 20, 30, 0)
        pixels[1, :] = (0, 0, 0, 51)
        x0 = self.decoded(tmp_path, Image.fromarray(pixels))
        assert x0[:, 0, 0].tolist() == [10, 20, 30]
        assert x0[:, 0, 1].tolist() == [255, 255, 255]
        assert x0[:, 1, 0].tolist() == [204, 204, 204]

    def test_palettes_are_looked_up(self, tmp_path: Path) -> None:
        picture = Image.new("P", (2, 2), 1)
        picture.putpalette([255, 0, 0, 0, 90, 180])
        picture.putpixel((0, 0), 0)
        x0 = self.decoded(tmp_path, picture, transparency=0)
        assert x0[:, 0, 0].tolist() == [255, 255, 255]
        assert x0[:, 1, 1].tolist() == [0, 90, 180]

    def test_sixteen_bits_are_scaled(self, tmp_path: Path) -> None:
        values = np.array([[0, 65535], [257 * 200, 257 * 3 + 5]], np.uint16)
        x0 = self.decoded(tmp_path, Image.fromarray(values))
        assert x0[0].tolist() == [[0, 255], [200, 3]]

    def test_one_bit_and_cmyk(self, tmp_path: Path) -> None:
        assert (self.decoded(tmp_path, Image.new("1", (2, 2), 1)) == 255).all()
        (tmp_path / "b").mkdir()
        Image.new("CMYK", (8, 8), (255, 0, 0, 0)).save(tmp_path / "b" / "0.jpg", quality=100)
        cyan = load_images(str(tmp_path / "b"))
        assert (cyan[0][0].int() - torch.tensor([0, 255, 255])[:, None, None]).abs().max() <= 2

    def test_the_exif_tag_turns_the_picture(self, tmp_path: Path) -> None:
        pixels = noise(0)
        exif = Image.Exif()
        exif[0x0112] = 6  # the camera lay on its side: turn by 90 degrees clockwise to view
        x0 = self.decoded(tmp_path, Image.fromarray(pixels), exif=exif)
        assert torch.equal(x0, chw(np.rot90(pixels, -1)))


class TestLazy:
    def both(
        self, monkeypatch: pytest.MonkeyPatch, root: Path, **settings: int
    ) -> tuple[image.ImageSet, image.ImageSet]:
        in_memory = load_images(str(root), **settings)
        monkeypatch.setattr(image, "MEMORY_LIMIT", 3 * 8 * 8 * 2)
        return in_memory, load_images(str(root), **settings)

    def test_a_lazy_set_equals_that_in_memory(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        in_memory, lazy = self.both(monkeypatch, class_folder(tmp_path / "pets"))
        assert "on access" in lazy.describe()
        assert "on access" not in in_memory.describe()
        for rows in ([4, 0, 0, -1], torch.tensor([2]), []):
            for one, other in zip(in_memory.batch(rows), lazy.batch(rows), strict=True):
                assert torch.equal(one, other)
        assert len(lazy) == 5
        for pictures in (in_memory, lazy):
            with pytest.raises(IndexError):
                pictures.batch([5])

    def test_limit_holds_for_a_lazy_set(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        in_memory, lazy = self.both(monkeypatch, class_folder(tmp_path / "pets"), limit=4)
        assert len(in_memory) == len(lazy) == 4
        with pytest.raises(IndexError):
            lazy.batch([4])

    def test_the_next_usable_row_stands_in_for_a_bad_one(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        root = class_folder(tmp_path / "pets")
        for bad in ("cat/01.png", "dog/12.png"):
            (root / bad).write_bytes(b"junk")
        _, lazy = self.both(monkeypatch, root)
        assert lazy.bad == ()
        with pytest.warns(UserWarning, match=r"01\.png"):
            x0, labels = lazy.batch([1])
        assert torch.equal(x0[0], chw(noise(10)))
        assert labels == 1
        lazy.batch([1])  # a second warning would be an error
        with pytest.warns(UserWarning, match=r"12\.png"):
            x0, labels = lazy.batch([4])
        assert torch.equal(x0[0], chw(noise(0)))
        assert labels == 0
        assert [Path(name).name for name in lazy.bad] == ["01.png", "12.png"]

    @pytest.mark.parametrize("workers", [0, 2])
    def test_a_data_loader_passes_batches_through(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
    ) -> None:
        in_memory, lazy = self.both(monkeypatch, class_folder(tmp_path / "pets"))
        loader = DataLoader(lazy, batch_size=2, num_workers=workers, collate_fn=lambda batch: batch)
        x0, labels = (torch.cat(parts) for parts in zip(*loader, strict=True))
        expected, classes = in_memory.batch(range(5))
        assert torch.equal(x0, expected)
        assert torch.equal(labels, classes)

    def test_a_lazy_set_can_be_pickled(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        _, lazy = self.both(monkeypatch, parquet(tmp_path / "a.parquet"))
        assert torch.equal(pickle.loads(pickle.dumps(lazy)).batch([3])[0], lazy.batch([3])[0])


class TestContent:
    def test_content_follows_pixels_and_labels(self, tmp_path: Path) -> None:
        one = load_images(str(class_folder(tmp_path / "one"))).content()
        assert one == load_images(str(class_folder(tmp_path / "two"))).content()
        root = class_folder(tmp_path / "three")
        (root / "dog" / "10.png").rename(root / "cat" / "10.png")
        moved = load_images(str(root)).content()
        others = [
            load_images(str(tmp_path / "one"), **s).content() for s in ({"limit": 4}, {"size": 4}, {"channels": 1})
        ]
        assert len({one, moved, *others}) == 5
        assert len(one) == 64

    def test_content_of_a_lazy_set_follows_files_and_settings(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(image, "MEMORY_LIMIT", 1)
        root = class_folder(tmp_path / "pets")
        one = load_images(str(root)).content()
        assert one == load_images(str(root)).content()
        others = [load_images(str(root), **s).content() for s in ({"limit": 4}, {"size": 4}, {"channels": 1})]
        save(root / "cat" / "00.png", noise(99, 9, 9))
        assert len({one, load_images(str(root)).content(), *others}) == 5


class TestIdx:
    def write(self, folder: Path, prefix: str, images: np.ndarray, labels: np.ndarray, end: str = ".gz") -> None:
        folder.mkdir(exist_ok=True)
        for kind, array in (("images", images), ("labels", labels)):
            data = struct.pack(">BBBB", 0, 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
            data += array.astype(np.uint8).tobytes()
            path = folder / f"{prefix}-{kind}-idx{array.ndim}-ubyte{end}"
            path.write_bytes(gzip.compress(data) if end else data)

    @pytest.mark.parametrize("end", [".gz", ""])
    def test_pictures_and_labels_come_back(self, tmp_path: Path, end: str) -> None:
        images = np.random.default_rng(0).integers(0, 256, (5, 28, 28))
        self.write(tmp_path / "f", "train", images, np.array([0, 9, 3, 3, 1]), end)
        self.write(tmp_path / "f", "t10k", images[:1], np.array([4]), end)
        clothes = load_images("fashion-mnist", path=tmp_path / "f")
        x0, labels = clothes.batch(range(5))
        assert torch.equal(x0[:, 0], torch.from_numpy(images).to(torch.uint8))
        assert labels is not None
        assert labels.tolist() == [0, 9, 3, 3, 1]
        assert clothes.classes[9] == "Ankle boot"
        assert len(load_images("fashion-mnist", path=tmp_path / "f", split="test")) == 1
        assert load_images("fashion-mnist", path=tmp_path / "f", channels=3, size=32)[0][0].shape == (3, 32, 32)

    def test_debians_files_serve_fashion_mnist_alone(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.write(tmp_path / "debian", "train", np.zeros((2, 28, 28)), np.array([1, 2]))
        monkeypatch.setattr(image, "DEBIAN_FASHION_MNIST", tmp_path / "debian")
        assert len(load_images("fashion-mnist")) == 2
        refused("split must be one of train", lambda: load_images("fashion-mnist", split="test"))
        refused("hub", lambda: load_images("mnist"))

    def test_damaged_files_are_refused(self, tmp_path: Path) -> None:
        good = struct.pack(">BBBBII", 0, 0, 8, 2, 2, 3) + bytes(range(6))
        path = tmp_path / "x"
        path.write_bytes(good)
        assert read_idx(path, 2).tolist() == [[0, 1, 2], [3, 4, 5]]
        for wrong, words in (
            (b"\0\0\x0d\2" + good[4:], "00000802"),
            (good[:-1], "18 bytes"),
            (good + b"\0", "18 bytes"),
            (good[:7], "12 bytes"),
            (gzip.compress(good)[:-9], "readable"),
        ):
            path.write_bytes(wrong)
            refused(words, lambda: read_idx(path, 2))
        path.write_bytes(good)
        refused("00000803", lambda: read_idx(path, 3))

    def test_labels_must_match_pictures(self, tmp_path: Path) -> None:
        self.write(tmp_path / "f", "train", np.zeros((2, 4, 4)), np.array([1, 2, 3]))
        refused("2 pictures and 3 labels", lambda: load_images(str(tmp_path / "f")))
        self.write(tmp_path / "f", "train", np.zeros((2, 4, 4)), np.array([1, 11]))
        assert load_images(str(tmp_path / "f")).classes == tuple(map(str, range(12)))
        refused("11 in row 1", lambda: load_images("mnist", path=tmp_path / "f"))


class TestNamed:
    def test_digits_are_split_once_and_scaled(self) -> None:
        train, test = load_images(), load_images(split="test")
        assert (len(train), len(test), train.size, train.channels) == (1437, 360, 8, 1)
        pixels = torch.cat([train.batch(range(1437))[0], test.batch(range(360))[0]])
        expected = torch.from_numpy(load_digits().images * 255 / 16)
        key = [picture.tobytes() for picture in pixels.numpy()]
        truth = [picture.tobytes() for picture in (expected + 0.5).floor().to(torch.uint8).numpy()]
        assert sorted(key) == sorted(truth)
        labels = torch.cat([train.batch(range(1437))[1], test.batch(range(360))[1]])
        of_picture = dict(zip(truth, load_digits().target.tolist(), strict=True))
        assert labels.tolist() == [of_picture[picture] for picture in key]
        assert test.content() == load_images(split="test").content()
        assert [truth.index(picture) for picture in key[:4]] == [362, 1568, 1440, 1761]
        refused("one of train, test", lambda: load_images(split="validation"))

    def test_digits_resized_in_colour(self) -> None:
        assert load_images(size=16, channels=3, limit=7).batch([6])[0].shape == (1, 3, 16, 16)

    def test_a_local_copy_takes_the_names_of_the_set(self, tmp_path: Path) -> None:
        path = plain_parquet(tmp_path / "a.parquet", {"img": [png(noise(0))], "label": [3]})
        pictures = load_images("cifar10", path=path)
        assert (pictures.name, pictures.classes) == ("cifar10", CIFAR10_CLASSES)
        assert "airplane" in pictures.describe()
        path = plain_parquet(tmp_path / "b.parquet", {"img": [png(noise(0))]})
        refused("label_column", lambda: load_images("cifar10", path=path))

    def test_unconditional_sets_leave_labels_alone(self, tmp_path: Path) -> None:
        path = plain_parquet(tmp_path / "a.parquet", {"image": [png(noise(0))], "label": [1]})
        assert load_images("celeba-hq", path=path).classes is None
        assert load_images("celeba-hq", path=path, label_column="label").classes == ("0", "1")

    def test_the_hub_out_of_reach_is_one_sentence(self, monkeypatch: pytest.MonkeyPatch) -> None:
        refused(["'cifar10'", "uoft-cs/cifar10", "path="], lambda: load_images("cifar10"))
        refused(["fashion_mnist", "apt install dataset-fashion-mnist"], lambda: load_images("fashion-mnist"))
        refused(["someone/pictures", "local copy"], lambda: load_images("someone/pictures"))

        class DeadSession:
            def head(self, url: str, timeout: float) -> None:
                raise ConnectionError(url)

        monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(huggingface_hub.utils, "get_session", DeadSession)
        refused("cannot be reached", lambda: load_images("mnist"))
        assert not datasets.config.HF_HUB_OFFLINE

    def test_unknown_sources_and_settings_are_refused(self, tmp_path: Path) -> None:
        refused(["source", "'cifra10'", "cifar10, celeba"], lambda: load_images("cifra10"))
        refused(["source", "absent"], lambda: load_images(str(tmp_path / "absent")))
        refused("path must be", lambda: load_images("cifar10", path=tmp_path / "absent"))
        refused(["source", "'mine'"], lambda: load_images("mine", path=tmp_path))
        refused("size", lambda: load_images(size=0))
        refused("channels", lambda: load_images(channels=2))
        refused("limit", lambda: load_images(limit=0))
        refused("label_column", lambda: load_images(label_column="colour"))

    def test_progress_reaches_the_end(self, tmp_path: Path) -> None:
        root = class_folder(tmp_path / "pets")
        (root / "cat" / "00.png").write_bytes(b"junk")
        for source, count in ((str(root), 5), ("digits", 1437)):
            calls: list[tuple[int, int]] = []
            load_images(source, progress=lambda *call: calls.append(call))  # noqa: B023
            assert calls[-1] == (count, count)


class TestRange:
    def test_all_values_survive_the_round_trip(self) -> None:
        values = torch.arange(256, dtype=torch.uint8)
        floats = to_float(values)
        assert floats.dtype == torch.float32
        assert (floats[0], floats[-1]) == (-1, 1)
        assert torch.equal(to_uint8(floats), values)
        assert torch.equal(to_uint8(floats + 0.9 / 255), values)

    def test_what_is_outside_is_clamped(self) -> None:
        values = torch.tensor([-7.0, 3.0, float("inf"), -float("inf"), float("nan"), 0.0], dtype=torch.float16)
        assert to_uint8(values).tolist() == [0, 255, 255, 0, 0, 128]

    def test_floats_are_not_taken_for_pixels(self) -> None:
        refused("uint8", lambda: to_float(torch.zeros(2)))
