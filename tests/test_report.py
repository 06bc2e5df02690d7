"""The page stands alone, shows untrusted text as text, and takes any run, also short or broken."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest

from cpgd_jax import metrics
from cpgd_jax.errors import UserError
from cpgd_jax.report import charts, plot, read_columns, samples, write_facts, write_report

EVIL = (
    "<script>alert(1)</script><img src=http://x.y/z onerror=alert(2)>\"'</pre>\x1b[31m\u202e\ud800"
)


def make_run(path, steps=5, rollouts=True, **config):
    config = {"algorithm": "cpgd", "seed": 3, "eval": {"samples": 4}, "stage": "rl"} | config
    (path / "config.json").write_text(json.dumps(config))
    with metrics.MetricsWriter(path, tensorboard=False) as w:
        w.write({"step": 0, "rollout": -1, "eval/greedy_accuracy": 0.41, "eval/mean_accuracy": 0.3})
        for step in range(1, steps + 1):
            numbers = {k: 0.1 * step for k in metrics.REQUIRED_METRICS} | {"step": step}
            w.write(numbers | {"guard/skipped": 0.0, "guard/spikes": 0.0})
        last = {"eval/greedy_accuracy": 0.925, "eval/mean_accuracy": 0.8, "eval/problems": 256}
        w.write({"step": steps, "eval/mean_accuracy_sem": 0.0123, "eval/samples": 8} | last)
        if rollouts:
            w.write_rollouts([row("before", 0), row("train", 1), row("after", 1)])
    return path


def row(kind, right, **changes):
    return {
        "rollout": 2,
        "kind": kind,
        "prompt": "What is 1 + 1?",
        "response": f"{kind} {EVIL}",
        "gold": "2",
        "accuracy": float(right),
        "format": 1.0,
        "reward": right + 0.5,
        "advantage": right - 0.5,
        "truncated": False,
    } | changes


class Page(HTMLParser):
    """Tags with their attributes, and the text that a reader sees."""

    def __init__(self, path):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


def test_a_run_shows_headline_curves_and_samples(tmp_path):
    write_facts(make_run(tmp_path), parameters=2_345_678, devices="1 CPU")
    (tmp_path / "summary.json").write_text('{"seconds": 247.3}')
    page = Page(write_report(tmp_path))
    words = " ".join(page.text.split())
    for part in ("CPGD", "2.346M parameters", "1 CPU", "in 4:07", "41.0% → 92.5%", "30.0% → 80.0%"):
        assert part in words, part
    for part in (
        "+51.5 points, of 256 problems",
        "mean of 8 samples",
        "standard error 1.2",
    ):
        assert part in words, part
    drawn = [a["aria-label"] for tag, a in page.tags if tag == "svg"]
    without = ("Supervised loss", "Held-out format", "Held-out length")
    wanted = [c.title for c in charts.CHARTS if c.title not in without]
    assert [label.split(",")[0] for label in drawn] == wanted
    assert "✗ wrong" in words and "✓ right" in words and "advantage 0.5" in words
    assert "Not recorded" not in words and "Warnings" not in words
    assert not list(tmp_path.glob("*.tmp"))


def test_model_text_is_shown_and_never_run(tmp_path):
    config = {"algorithm": EVIL.replace("\ud800", ""), "note": {"<b>": "</td><script>"}}
    make_run(tmp_path, **config)
    write_facts(tmp_path, host="<script>")
    with metrics.MetricsWriter(tmp_path, tensorboard=False) as w:
        w.write({"step": 6, "<script>alert(3)</script>": 1.0})
        w.write_rollouts([row("before", 0, prompt=EVIL, gold=EVIL), row("train", 0, prompt=EVIL)])
    page = Page(write_report(tmp_path))
    assert [tag for tag, _ in page.tags].count("script") == 1  # the page's own
    assert "img" not in {tag for tag, _ in page.tags}
    assert "<script>alert(1)</script>" in page.text
    assert "⟨U+001B⟩[31m⟨U+202E⟩⟨U+D800⟩" in page.text
    assert not any(name.startswith("on") for _, attrs in page.tags for name in attrs)


def test_the_page_asks_for_nothing_outside(tmp_path):
    page = Page(write_report(make_run(tmp_path)))
    links = [a.get("src") or a.get("href") for _, a in page.tags if "src" in a or "href" in a]
    assert links == ["data:,"]
    style = re.search("<style>.*</style>", (tmp_path / "report.html").read_text("utf-8"), re.S)
    assert "url(" not in style[0] and "@import" not in style[0]


def test_no_run_is_an_error_and_a_run_that_has_not_begun_a_note(tmp_path):
    with pytest.raises(UserError, match="has no metrics.jsonl"):
        write_report(tmp_path / "nowhere")
    (tmp_path / "metrics.jsonl").write_text("")
    (tmp_path / "config.json").write_text("{broken")
    words = Page(write_report(tmp_path)).text
    for part in ("No metrics yet", "No readable config.json", "No sample responses"):
        assert part in words


@pytest.mark.parametrize("steps", [1, 2, 61])
def test_coordinates_stay_inside_the_drawing(tmp_path, steps):
    make_run(tmp_path, steps)
    columns, _ = read_columns(tmp_path / "metrics.jsonl")
    for chart in charts.CHARTS:
        if drawn := plot.draw(chart, columns):
            for line in drawn["lines"]:
                x, y = np.array([p[:2] for p in line["points"]]).T
                assert x.min() >= plot.LEFT and x.max() <= plot.RIGHT
                assert y.min() >= plot.TOP and y.max() <= plot.BOTTOM


def test_values_that_are_not_finite_break_the_curve_and_warn(tmp_path, capsys):
    with metrics.MetricsWriter(tmp_path, tensorboard=False) as w:
        for step, value in enumerate([1.0, np.nan, 2.0, np.inf], 1):
            w.write({"step": step, "rollout": step - 1, "grad_norm": value, "lr": np.nan})
    columns, alarms = read_columns(tmp_path / "metrics.jsonl")
    (chart,) = [c for c in charts.CHARTS if c.title == "Gradient norm"]
    drawn = plot.draw(chart, columns)
    assert drawn["lines"][0]["path"].count("M") == 2 and len(drawn["bad"]) == 2
    assert ("rollout 1 step 2: grad_norm is not finite", 2) in alarms
    words = " ".join(Page(write_report(tmp_path)).text.split())
    assert "rollout 1 step 2: grad_norm is not finite (first of 2 times)" in words


def test_a_long_run_is_thinned_without_losing_a_spike(tmp_path):
    x = np.arange(50_000)
    y = np.ones(50_000)
    y[33_333], y[123], y[-1] = 9.0, np.nan, 1.5
    tx, ty = plot.thin(x, y)
    assert len(tx) < 2 * plot.MAX_POINTS and np.nanmax(ty) == 9 and ty[-1] == 1.5
    assert np.isnan(ty[tx == 123]).all() and (np.diff(tx) > 0).all()


def test_a_long_run_with_long_texts_stays_small(tmp_path, capsys):
    make_run(tmp_path, steps=3000, rollouts=False)
    with metrics.MetricsWriter(tmp_path, tensorboard=False) as w:
        for i in range(40):
            text = {
                "prompt": f"{i}" + "'" * 99_999,
                "response": "\u202e" * 99_999,
                "gold": "&" * 9999,
            }
            w.write_rollouts([row(kind, 0, **text) for kind in ("before", "train", "after")])
    assert write_report(tmp_path).stat().st_size < 2_000_000


def test_a_supervised_run(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"stage": "supervised", "algorithm": "cpgd"}))
    with metrics.MetricsWriter(tmp_path, tensorboard=False) as w:
        for step in range(1, 9):
            numbers = {"step": step, "loss/nll": 2 / step, "grad_norm": 1.0, "lr": 1e-3}
            w.write(numbers | {"guard/skipped": 0.0, "guard/spikes": 0.0})
        w.write({"step": 8, "eval/greedy_accuracy": 0.4})
    page = Page(write_report(tmp_path))
    words = " ".join(page.text.split())
    assert "Supervised" in words and "CPGD" not in words and "Not recorded" not in words
    titles = [a["aria-label"].split(",")[0] for tag, a in page.tags if tag == "svg"]
    assert titles == [
        "Held-out accuracy",
        "Supervised loss",
        "Gradient norm",
        "Guarded steps",
        "Learning rate",
    ]
    assert "40.0% measured once" in words


def test_missing_metrics_are_named(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 1, "lr": 0.1}\n{"no step": 1}\n{"step": "x"}\n'
    )
    words = Page(write_report(tmp_path)).text
    assert "Not recorded by this run: rollout, reward/mean" in words


def test_pairs_are_the_same_problem_first_before_and_last_after():
    rows = [row("before", 0, prompt="half"), row("before", 0), row("before", 1), row("after", 0)]
    rows += [row("after", 1), *(row("train", 0, rollout=i) for i in range(30))]
    pairs, recent = samples.select(rows)
    assert [p["prompt"] for p in pairs] == ["What is 1 + 1?", "half"]
    assert (pairs[0]["before"]["verdict"], pairs[0]["after"]["verdict"]) == ("wrong", "right")
    assert pairs[1]["after"] is None
    assert [r["rollout"] for r in recent] == list(range(29, 29 - samples.MAX_RECENT, -1))


PIXELS = "data:image/jpeg;base64,/9j/4AAQSkZJRg=="


def test_images_of_prompts_are_shown_and_tell_problems_apart(tmp_path):
    with_image = {"images": [PIXELS], "prompt": "How many?"}
    rows = [row("before", 0, **with_image), row("after", 1, **with_image)]
    rows += [row("after", 0, **with_image | {"images": [PIXELS.replace("9j", "8j")]})]
    hostile = [
        "https://example.org/a.png",
        'data:image/jpeg;base64,A" onload="x',
        "javascript:1",
        3,
    ]
    hostile += ["data:image/svg+xml;base64,AAAA", "data:text/html;base64,AAAA"]
    rows += [row("train", 0, rollout=0, images=hostile), row("train", 0, rollout=1, images="x")]
    pairs, recent = samples.select(rows)
    assert [pair["after"]["mark"] for pair in pairs] == ["✓", "✗"]
    assert [r["images"] for r in recent] == [[], []]
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "rollout": 0}\n')
    (tmp_path / "rollouts.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    page = write_report(tmp_path).read_text()
    assert page.count("<img ") == 2 and f'<img src="{PIXELS}"' in page and "onload" not in page


def test_clipping_keeps_the_answer():
    text = "start" + "x" * 10_000 + r"\boxed{7}"
    got = samples.clip(text)
    assert got.startswith("start") and got.endswith(r"\boxed{7}") and "6,014 characters" in got


@pytest.mark.parametrize(
    ("low", "high", "want"),
    [(0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]), (0, 3, [0, 1, 2, 3]), (-2, 2, [-2, -1, 0, 1, 2])],
)
def test_ticks(low, high, want):
    assert plot.ticks(low, high) == want


@pytest.mark.parametrize(
    ("value", "want"),
    [
        (1_200_000, "1.2M"),
        (12_345, "12.35k"),
        (1e-6, "1e-6"),
        (0.25, "0.25"),
        (0, "0"),
        (9000, "9000"),
    ],
)
def test_short(value, want):
    assert plot.short(value) == want


def test_the_command_rebuilds_the_page_or_says_why_not(tmp_path, repo):
    def command(workdir):
        argv = [sys.executable, "-m", "experiments.report", f"--workdir={workdir}"]
        return subprocess.run(argv, cwd=repo, capture_output=True, text=True)

    good, bad = command(make_run(tmp_path)), command(tmp_path / "nowhere")
    assert good.returncode == 0 and good.stdout == f"{tmp_path}/report.html\n"
    assert bad.returncode == 2 and bad.stderr.startswith("error: ") and bad.stderr.count("\n") == 1
