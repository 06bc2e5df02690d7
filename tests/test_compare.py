"""The page that compares runs, and the main that writes it."""

import subprocess
import sys

import pytest
import test_report

from cpgd_jax.errors import UserError
from cpgd_jax.report import compare

EVIL = "<script>alert(1)</script>"


def runs(tmp_path, **second):
    made = []
    for name, changes in (("a", {}), ("b", {"algorithm": "grpo"} | second)):
        (tmp_path / name).mkdir()
        made.append(test_report.make_run(tmp_path / name, **changes))
    return made


def test_curves_of_both_runs_are_overlaid(tmp_path):
    shown = compare.collect(runs(tmp_path))
    chart = next(c for c in shown["charts"] if c["title"] == "Reward: total")
    assert [line["label"] for line in chart["lines"]] == ["a", "b"]
    assert len(chart["lines"][0]["points"]) == 5


def test_only_fields_that_differ_are_listed(tmp_path):
    shown = compare.collect(runs(tmp_path, optim={"lr": 0.1}))
    assert shown["differing"] == [
        ("algorithm", ["cpgd", "grpo"]),
        ("optim.lr", ["(absent)", "0.1"]),
    ]
    assert compare.differing([{"x": 1}, {"x": 1}]) == []


def test_a_metric_that_one_run_lacks_is_drawn_for_the_other(tmp_path):
    first, second = runs(tmp_path)
    with open(first / "metrics.jsonl", "a") as file:
        file.write('{"step": 6, "my/metric": 2}\n')
    shown = compare.collect([first, second])
    (chart,) = shown["others"]
    assert [len(line["points"]) for line in chart["lines"]] == [1, 0]
    assert [line["last"] for line in chart["lines"]] == ["2", "none"]


def test_equal_names_are_told_apart(tmp_path):
    assert compare.run_names([tmp_path / "a" / "x", tmp_path / "b" / "y"]) == ["x", "y"]
    names = compare.run_names([tmp_path / "a" / "x", tmp_path / "b" / "x"])
    assert names == [str(tmp_path / "a" / "x"), str(tmp_path / "b" / "x")]


def test_the_page_stands_alone_and_escapes(tmp_path):
    target = compare.write_comparison(runs(tmp_path, seed=EVIL), tmp_path / "c.html")
    page = test_report.Page(target)
    assert EVIL in page.text and len([t for t, _ in page.tags if t == "script"]) == 1
    assert not any("http" in str(v) for _, attributes in page.tags for v in attributes.values())
    assert "algorithm" in page.text and "grpo" in page.text


@pytest.mark.parametrize(("count", "word"), [(1, "2 to 8"), (9, "2 to 8"), (2, "metrics.jsonl")])
def test_what_cannot_be_compared_is_named(tmp_path, count, word):
    with pytest.raises(UserError, match=word):
        compare.write_comparison([tmp_path] * count, tmp_path / "c.html")


def test_the_main_compares(tmp_path):
    command = [sys.executable, "-m", "experiments.report"]
    paths = [str(path) for path in runs(tmp_path)]
    done = subprocess.run(
        [*command, *paths, f"--output={tmp_path / 'c.html'}"], capture_output=True, text=True
    )
    assert done.returncode == 0 and done.stdout.strip() == str(tmp_path / "c.html")
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("error: name one run")
