"""`experiments.score`: a file in, a file out, bad input in one line."""

import json
import subprocess
import sys

import pytest

from cpgd_jax.errors import UserError
from cpgd_jax.rewards import Verifier, files

ROWS = [
    {"id": 1, "response": r"<think>a</think><answer>\boxed{\frac12}</answer>", "gold": "0.5"},
    {"id": 2, "response": r"<think>a</think><answer>\boxed{x/2}</answer>", "gold": r"\frac{x}{2}"},
    {"id": 3, "response": "nonsense \ud800", "gold": "三角形"},
]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def run(repo, *flags):
    return subprocess.run(
        [sys.executable, "-m", "experiments.score", *flags],
        cwd=repo,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_scores_a_file_and_replaces_the_output(repo, tmp_path):
    source = write(tmp_path / "in.jsonl", ROWS)
    target = tmp_path / "out.jsonl"
    target.write_text("old")
    done = run(repo, f"--input={source}", f"--output={target}")
    assert done.returncode == 0, done.stderr
    assert (
        done.stdout.startswith("3 responses: accuracy 0.667, format 0.667")
        and done.stdout.count("\n") == 1
    )
    rows = [json.loads(line) for line in target.read_text().splitlines()]
    assert [row["id"] for row in rows] == [1, 2, 3]
    assert [(row["accuracy"], row["format"], row["total"]) for row in rows] == [
        (1, 1, 1.5),
        (1, 1, 1.5),
        (0, 0, 0.0),
    ]
    assert all(row["seconds"] < 2 and row["reason"] for row in rows)
    assert rows[1]["extracted"] == "x/2" and rows[2]["response"] == ROWS[2]["response"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]


def test_a_reward_of_ones_own(repo, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("def half(response, gold): return 0.5\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    source, target = write(tmp_path / "in.jsonl", ROWS), tmp_path / "out.jsonl"
    done = run(repo, f"--input={source}", f"--output={target}", "--function=mine:half=2")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in target.read_text().splitlines()]
    assert [row["total"] for row in rows] == [2.5, 2.5, 1.0]
    assert all(row["extra"] == {"half": 0.5} for row in rows)
    done = run(repo, f"--input={source}", f"--output={target}", "--function=mine:third")
    assert done.returncode == 2 and "no function 'third'" in done.stderr
    assert done.stderr.count("\n") == 1 and "--function has 'mine:third'" in done.stderr
    done = run(repo, f"--input={source}", f"--output={target}", "--function=nope")
    assert done.returncode == 2 and "--function has 'nope': write" in done.stderr


def test_a_reward_that_fails_is_shown_once(repo, tmp_path):
    source, target = write(tmp_path / "in.jsonl", ROWS), tmp_path / "out.jsonl"
    done = run(repo, f"--input={source}", f"--output={target}", "--function=math:sqrt=1")
    assert done.returncode == 0 and done.stderr.count("WARNING") == 1
    assert "math:sqrt" in done.stderr and "TypeError: " in done.stderr


def test_a_byte_order_mark_is_no_fault(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text('{"response": "a", "gold": "b"}\n', encoding="utf-8-sig")
    assert files.read_rows(str(path)) == [{"response": "a", "gold": "b"}]


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--output=o.jsonl"], "--input"),
        (["--input=missing.jsonl", "--output=o.jsonl"], "missing.jsonl"),
        (["--input=i", "--output=o", "--workers=0"], "--workers=0"),
        (["--input=i", "--output=o", "--timeout=1"], "timeout"),
        (["--input=i", "--output=o", "--timeout_s=nan"], "--timeout_s=nan"),
        (["--input=i", "--output=o", "--timeout_s=inf"], "--timeout_s=inf"),
    ],
)
def test_bad_flags_end_in_one_line(repo, flags, message):
    done = run(repo, *flags)
    assert done.returncode == 2 and message in done.stderr
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "line, message",
    [
        ("{", "in.jsonl:2 is not JSON"),
        ("[1]", "in.jsonl:2 is list, not an object"),
        ('{"response": "a"}', "in.jsonl:2 has no field 'gold'; it has response"),
        ('{"response": "a", "gold": 5}', "in.jsonl:2: field 'gold' is 5; write it as a string"),
        ("[" * 100_000, "in.jsonl:2 is not JSON"),
    ],
)
def test_bad_rows_name_file_line_and_field(tmp_path, line, message):
    path = tmp_path / "in.jsonl"
    path.write_text('{"response": "a", "gold": "b"}\n' + line + "\n")
    with pytest.raises(UserError) as error:
        files.read_rows(str(path))
    assert message in str(error.value) and "\n" not in str(error.value)


def test_empty_input_is_refused(tmp_path):
    (tmp_path / "in.jsonl").write_text("\n\n")
    with pytest.raises(UserError, match="no rows"):
        files.read_rows(str(tmp_path / "in.jsonl"))


def test_bad_outputs_are_refused_before_any_work(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        files.check_output(str(tmp_path / "no" / "out.jsonl"))
    with pytest.raises(UserError, match="is a folder"):
        files.check_output(str(tmp_path))


def test_an_interrupted_run_leaves_the_old_output(tmp_path):
    target = tmp_path / "out.jsonl"
    target.write_text("old")
    with Verifier(1) as verifier:
        scores = verifier.stream([r["response"] for r in ROWS[::2]], [r["gold"] for r in ROWS[::2]])
        running = files.write_rows(str(target), ROWS[::2], scores)
        next(running)
        running.close()
    assert target.read_text() == "old" and list(tmp_path.iterdir()) == [target]
