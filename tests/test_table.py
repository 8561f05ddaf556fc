"""Tables of methods against network evaluations: choice of settings, layout, resumption, failures, the page."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from distdiff._check import FailedRuns
from distdiff.cli import main
from distdiff.recipe import TABLES
from distdiff.recipe.table import Column
from distdiff.reproduce import runs as runs_module
from distdiff.reproduce import table
from distdiff.reproduce.job import ImageScorer, Job, Pair, Setting, run_jobs, work
from distdiff.reproduce.page import page
from distdiff.train import RunFolder
from distdiff.train.folder import alone

SMOKE = TABLES["checkerboard"]["smoke"]


class Scored:
    """A job whose scores are known."""

    def __init__(self, name: str, scores: dict[Setting, Pair]) -> None:
        self.name, self.found = name, scores

    def scores(self) -> dict[Setting, Pair]:
        return self.found


def test_a_column_asks_the_model_trained_for_that_many_steps_or_the_next_above():
    column = Column({2: "a", 4: "b", 8: "c"}, ("distributional",))
    assert [column.model(nfe) for nfe in (1, 2, 3, 4, 8, 15)] == ["a", "a", "b", "b", "c", "c"]


def test_no_two_settings_of_a_table_have_the_same_name():
    study = TABLES["digits"]["small"]
    for column in study.columns.values():
        names = [setting.name for setting in table.settings_of(column, 8)]
        assert len(set(names)) == len(names)
    assert Setting(8, "hybrid", 0.5, "edm").name == "hybrid, churn 0.5 edm"


def test_settings_are_chosen_by_the_mean_of_other_scores_than_those_reported():
    low, high = Setting(2, "distributional", 0.0, "uniform"), Setting(2, "distributional", 1.0, "uniform")
    jobs = [
        Scored("a, seed 0", {low: Pair(1.0, 5.0), high: Pair(3.0, 0.1)}),
        Scored("a, seed 1", {low: Pair(2.0, 7.0), high: Pair(1.5, 0.1)}),
    ]
    study = replace(SMOKE, nfe=(2,))
    found = table.cells(study, jobs, {"A": Column({1: "a"}, ("distributional",), (0.0, 1.0))})["A"][2]  # type: ignore[arg-type]
    assert (found.mean, found.values, found.setting) == (6.0, (5.0, 7.0), "churn 0")
    assert found.std == pytest.approx(2**0.5)


def test_chosen_settings_are_scored_on_further_sets(tmp_path):
    """By other samples than those they were chosen by, for the models of all seeds, and once."""
    columns = {"A": Column({1: "diffusion"}, ("distributional",), (0.0, 1.0))}
    study = replace(SMOKE, columns=columns, nfe=(2,), sets=2)
    jobs = table.jobs_of(study, tmp_path, study.seeds, {"diffusion": SMOKE.models["diffusion"].run})
    run_jobs(jobs, 1, "runs")
    first, spent = [job.scores() for job in jobs], [job.spent() for job in jobs]
    further = table.score_further(study, jobs, columns)
    best = table.chosen(columns["A"], 2, first)
    for job, before in zip(further, first, strict=True):
        found = job.scores()
        assert set(found) == {*before, best._replace(draw=1), best._replace(draw=2)}
        assert {setting: found[setting] for setting in before} == before
        assert len({found[best._replace(draw=draw)].score for draw in range(3)}) == 3
    values = [
        (job.scores()[best._replace(draw=1)].score + job.scores()[best._replace(draw=2)].score) / 2 for job in further
    ]
    assert table.cells(study, further, columns)["A"][2].values == pytest.approx(tuple(values))
    apart = [
        abs(job.scores()[best._replace(draw=1)].score - job.scores()[best._replace(draw=2)].score) for job in further
    ]
    assert table.scatter(further) == pytest.approx(sum(apart) / len(apart) / 2**0.5)
    assert all(job.spent() > before for job, before in zip(further, spent, strict=True))
    files = [job.file.stat().st_mtime_ns for job in further]
    table.score_further(study, jobs, columns)
    assert [job.file.stat().st_mtime_ns for job in further] == files


def cell(mean: float) -> table.Cell:
    return table.Cell(mean, 0.5, (mean,), "churn 0", "m")


def test_the_best_is_bold_and_the_second_italic_in_markdown_and_latex():
    study = replace(SMOKE, nfe=(4,), metric="fid", paper={"B": {4: 9.5}})
    found = {"A": {4: cell(3.0)}, "B": {4: cell(1.0)}, "C": {4: cell(2.0)}}
    text = table.markdown(study, found, 0.25, {"m": 12.0})
    assert text.splitlines()[0] == "| NFE | A | B | the paper's | C |"
    assert text.splitlines()[2] == "| 4 | 3.00 ± 0.50 | **1.00 ± 0.50** | 9.50 | *2.00 ± 0.50* |"
    assert "| floor | 0.25 |" in text
    assert "| training, s | 12 | 12 |" in text
    tex = table.latex(study, found, 0.25, "50% of a_b")
    assert r"4 & $3.00 \pm 0.50$ & $\mathbf{1.00 \pm 0.50}$ & 9.50 & $\mathit{2.00 \pm 0.50}$ \\" in tex
    assert r"\caption{50\% of a\_b}" in tex
    assert r"1.20 \cdot 10^{-3}" in table.latex(replace(study, metric="D"), found | {"A": {4: cell(1.2e-3)}}, 0.0, "")


def test_a_short_model_is_ours_with_fewer_steps():
    study = TABLES["checkerboard"]["small"]
    ours, short = study.models["distributional"].run, study.models["short"].run
    assert short.steps < ours.steps
    assert replace(short, steps=ours.steps) == ours


def test_the_floor_has_the_classes_of_the_samples():
    class Pictures:
        """A thousand pictures of three classes, every pixel the class."""

        def __len__(self) -> int:
            return 1000

        def batch(self, rows):
            labels = rows % 3
            return labels[:, None, None, None].expand(-1, 1, 2, 2), labels

    class Reference:
        def score(self, pictures):
            counts = pictures[:, 0, 0, 0].bincount(minlength=3).tolist()
            return SimpleNamespace(frechet=counts)

    scorer = object.__new__(ImageScorer)
    scorer.train, scorer.reference, scorer.n = Pictures(), Reference(), 60
    scorer.cond = torch.tensor([0] * 40 + [2] * 20)
    assert scorer.floor() == [40, 0, 20]
    scorer.cond = None
    assert sum(scorer.floor()) == 60


def test_students_wait_for_their_teacher_and_start_from_its_run(tmp_path):
    runs = {name: model.run for name, model in SMOKE.models.items()}
    jobs = {job.name: job for job in table.jobs_of(SMOKE, tmp_path, (3,), runs)}
    student = jobs["distilled-4, seed 3"]
    assert student.needs == "diffusion, seed 3"
    assert student.config.init == str(jobs[student.needs].folder)  # type: ignore[attr-defined]
    assert all(job.config.seed == 3 for job in jobs.values())


@pytest.fixture(scope="module")
def smoke(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("tables") / "board"
    main(["reproduce", "table", "checkerboard", "--scale", "smoke", "--out", str(out)])
    return out


def test_two_tables_do_not_share_a_folder(tmp_path):
    with alone(tmp_path, "table", "runs"), pytest.raises(ValueError, match="no other table is using"):
        table.run("checkerboard", "smoke", tmp_path)
    assert not any((tmp_path / "runs").glob("*-0"))


FILES = ("table.md", "table.tex", "table.json")


def test_a_table_has_every_method_and_number_of_steps(smoke):
    found = json.loads((smoke / "table.json").read_text())["cells"]
    assert set(found) == set(SMOKE.columns)
    for row in found.values():
        assert set(row) == {str(nfe) for nfe in SMOKE.nfe}
        assert all(len(cell["values"]) == len(SMOKE.seeds) for cell in row.values())
    results = json.loads((smoke / "results.json").read_text())
    assert results["results"]["cells"] == found
    assert results["wall_seconds"] > 0
    assert (smoke / "table.png").stat().st_size > 10_000


def test_a_teacher_s_time_counts_for_its_student(smoke):
    seconds = json.loads((smoke / "results.json").read_text())["results"]["train_seconds"]
    own = [RunFolder(smoke / "runs" / f"distilled-4-{seed}").seconds() for seed in SMOKE.seeds]
    assert seconds["distilled-4"] == pytest.approx(sum(own) / len(own) + seconds["diffusion"])


def test_peers_are_trained_again_for_the_time_of_the_distributional_model(smoke):
    results = json.loads((smoke / "results.json").read_text())["results"]
    seconds = results["train_seconds"]
    config = RunFolder(smoke / "runs" / "diffusion-matched-0").read_config()
    wanted = SMOKE.models["diffusion"].run.steps * seconds["distributional"] / seconds["diffusion"]
    assert config.steps == max(1, round(wanted))
    assert set(results["cells_same_time"]) >= {"Distributional", "Diffusion"}


def test_a_second_start_trains_nothing_and_gives_the_same_table(smoke, capsys):
    before = {name: (smoke / name).read_bytes() for name in FILES}
    main(["reproduce", "table", "checkerboard", "--scale", "smoke", "--out", str(smoke)])
    count = len(SMOKE.models) * len(SMOKE.seeds)
    assert f"{count} of {count} runs are there already" in capsys.readouterr().err
    assert {name: (smoke / name).read_bytes() for name in FILES} == before


def test_a_run_that_fails_is_named_and_does_not_stop_the_others(tmp_path):
    base = SMOKE.models["diffusion"].run
    bad = replace(base, optim=replace(base.optim, lr=1e30, clip=1e30))
    setting = (Setting(2, "ddim", None, "uniform"),)

    def job(name: str, config, needs: str | None = None) -> Job:
        return Job(name, config, tmp_path / name, setting, "D", 64, None, needs)

    jobs = [job("bad", bad), job("child", base, "bad"), job("good", base)]
    with pytest.raises(FailedRuns, match=r"(?s)2 runs failed;.*bad: FloatingPointError.*child: bad failed"):
        run_jobs(jobs, 1, "runs")
    assert jobs[2].finished()
    assert not jobs[0].finished()


def test_scores_of_a_run_with_other_settings_do_not_count(tmp_path):
    base = SMOKE.models["diffusion"].run
    setting = (Setting(2, "ddim", None, "uniform"),)
    first, other = (Job("a", replace(base, seed=seed), tmp_path / "a", setting, "D", 64, None) for seed in (0, 1))
    run_jobs([first], 1, "runs")
    before = first.scores()
    assert set(before) == set(setting)
    assert other.scores() == {}
    run_jobs([other], 1, "runs")
    assert other.finished()
    assert not first.finished()
    assert other.scores() != before


def test_tables_that_do_not_exist_are_refused(capsys, tmp_path):
    with pytest.raises(SystemExit) as left:
        main(["reproduce", "table", "checkerboard", "nonsense", "--out", str(tmp_path / "x")])
    assert left.value.code == 2
    assert "experiment must be one of" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_a_worker_whose_table_was_killed_saves_and_leaves(tmp_path, monkeypatch):
    def leave(code):
        raise SystemExit(code)

    monkeypatch.setattr(runs_module, "parent_process", lambda: SimpleNamespace(is_alive=lambda: False))
    monkeypatch.setattr(runs_module.os, "_exit", leave)
    job = Job("a", SMOKE.models["distributional"].run, tmp_path / "a", (), "D", 64, None)
    with pytest.raises(SystemExit):
        work(job)
    assert RunFolder(job.folder).steps() == [1]
    assert not job.file.exists()


def test_the_page_is_what_the_committed_results_say():
    root = Path(__file__).parents[1]
    target = Path("docs/results.md")
    assert (root / target).read_text() == page(root / "results", target)


def test_the_page_links_pictures_and_lowers_headings(tmp_path):
    folder = tmp_path / "results" / "table-x-small"
    folder.mkdir(parents=True)
    (folder / "report.md").write_text("# Table: x\n\n![p](table.png)\n")
    (folder / "results.json").write_text('{"versions": {"distdiff": "1.2"}}')
    text = page(tmp_path / "results", Path("docs/results.md"))
    assert "## Table: x" in text
    assert "](../results/table-x-small/table.png)" in text


def test_seeds_and_the_second_part_can_be_chosen(tmp_path):
    main(
        [
            "reproduce",
            "table",
            "checkerboard",
            "--scale",
            "smoke",
            "--seeds",
            "4",
            "--no-same-time",
            "--out",
            str(tmp_path / "x"),
        ]
    )
    results = json.loads((tmp_path / "x/results.json").read_text())
    assert results["command"] == "distdiff reproduce table checkerboard --scale smoke --seeds 4 --no-same-time"
    assert all(cell["std"] is None for row in results["results"]["cells"].values() for cell in row.values())
    assert "cells_same_time" not in results["results"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("reproduce gaussian --seeds 0", "left out but for tables"),
        ("reproduce table checkerboard --seeds 0,x", "seeds must be numbers separated by commas"),
        ("reproduce table checkerboard --seeds -1", "seed must be"),
    ],
)
def test_bad_options_of_tables_are_named_before_anything_is_written(words, says, tmp_path, capsys):
    with pytest.raises(SystemExit) as left:
        main([*words.split(), "--out", str(tmp_path / "x")])
    assert left.value.code == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
