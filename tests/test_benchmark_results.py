"""Files of benchmarks, numbers of several samples, the judge, scoring apart from sampling."""

import http.server
import itertools
import json
import random
import threading

import pytest

from cpgd_jax.benchmarks import (
    contamination,
    judge,
    pages,
    reading,
    results,
    samples,
    scoring,
    table,
)
from cpgd_jax.benchmarks.summary import summarise
from cpgd_jax.data import rows
from cpgd_jax.errors import UserError

VISION_ROW = {"id": "1", "question": "How many?\n<image1>", "options": [], "answer": "5",
              "level": 1, "subject": "counting", "image": "images/1.png"}  # fmt: skip


def write_lines(path, found):
    path.write_text("".join(json.dumps(row) + "\n" for row in found))
    return path


@pytest.mark.parametrize("n, correct, k", [(4, 2, 2), (6, 1, 3), (5, 0, 5), (5, 5, 1), (3, 2, 2)])
def test_pass_at_k_counts_subsets(n, correct, k):
    draws = list(itertools.combinations([True] * correct + [False] * (n - correct), k))
    assert samples.pass_at(n, correct, k) == pytest.approx(sum(map(any, draws)) / len(draws))


def test_pass_at_k_is_unbiased():
    """Its mean over samples of 8 is 1 - (1 - p)^k."""
    source, p, k = random.Random(0), 0.3, 3
    found = [samples.pass_at(8, sum(source.random() < p for _ in range(8)), k) for _ in range(9000)]
    assert sum(found) / len(found) == pytest.approx(1 - (1 - p) ** k, abs=0.01)
    with pytest.raises(ValueError):
        samples.pass_at(2, 1, 3)


@pytest.mark.parametrize(
    "answers, correct, expected",
    [
        (["1/2", "0.5", "3", "3", "3"], [1, 1, 0, 0, 0], False),
        (["1/2", "0.5", "3", "3"], [1, 1, 0, 0], True),
        (["3", "0.5"], [0, 1], False),
        (["", "", "0.5"], [0, 0, 1], True),
        (["", ""], [0, 0], False),
    ],
)
def test_majority(answers, correct, expected):
    assert samples.majority(answers, correct) is expected


def test_interval_has_its_level():
    """Of a share of one half among 400 items: about 1.96 standard errors to each side."""
    low, high = samples.interval([0.0, 1.0] * 200)
    assert high - 0.5 == pytest.approx(1.96 * 0.025, rel=0.1)
    assert 0.5 - low == pytest.approx(1.96 * 0.025, rel=0.1)
    assert samples.interval([1.0] * 9) == (1.0, 1.0) and samples.ks(6) == [1, 2, 4, 6]


def test_what_is_odd_about_a_file_is_reported(tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "1.png").write_bytes(b"no image")
    odd = [VISION_ROW, VISION_ROW, VISION_ROW | {"id": "2", "image": "images/2.png", "extra": 1},
           {"id": "3"}, VISION_ROW | {"id": "4", "options": [1], "answer": "X"}]  # fmt: skip
    path = write_lines(tmp_path / "test.jsonl", odd)
    path.write_text(path.read_text() + "{broken\n[1]\n")
    loaded = reading.load(table.named("mathvision"), "mathvision", tmp_path)
    counts = {k: v["count"] for k, v in loaded.report.items() if k != "file"}
    assert [item.id for item in loaded.items] == ["1", "2"]
    assert counts == {"broken row": 3, "count": 7, "duplicated id": 1, "image missing": 1,
                      "not JSON": 1, "unknown field": 1}  # fmt: skip
    with pytest.raises(rows.Broken) as missing:
        reading.image_bytes("images/2.png", loaded.root)
    assert reading.image_bytes("images/1.png", loaded.root) == b"no image"
    with pytest.raises(rows.Broken) as outside:
        reading.image_bytes("../../secret.png", loaded.root)
    kinds = [error.value.kind for error in (missing, outside)]
    assert kinds == ["image missing", "image outside root"]


def test_a_missing_file_is_one_line(tmp_path):
    with pytest.raises(UserError, match="mathvista/testmini.json"):
        reading.load(table.named("mathvista"), "mathvista", tmp_path)
    (tmp_path / "testmini.json").write_text("[1, 2]")
    with pytest.raises(UserError, match="no row of MathVista"):
        reading.load(table.named("mathvista"), "mathvista", tmp_path)
    with pytest.raises(UserError, match="did you mean 'gsm8k'"):
        table.named("gsm8")


def test_parquet_in_parts(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    row = {
        "question": "q\nA. 1\nB. 2",
        "subject": "physics",
        "image": {"bytes": b"x", "path": None},
    }
    found = [row | {"id": str(n), "answer": "AB"[n % 2]} for n in range(5)]
    for part, some in enumerate((found[:3], found[3:])):
        parquet.write_table(pa.Table.from_pylist(some), tmp_path / f"test-0000{part}-of-2.parquet")
    items = reading.load(table.named("mmk12"), "mmk12", tmp_path).items
    assert [(item.id, item.gold) for item in items] == [(str(n), "AB"[n % 2]) for n in range(5)]
    assert items[0].images == (b"x",)


def test_items_in_training_data_are_reported(tmp_path):
    long = "Anna has {} apples and gives three of them to Ben who eats one at noon; what is left?"
    asked = [long.format(7), "What is 2+2?", "What is 2 + 3?", long.format(8) + " Show it."]
    write_lines(tmp_path / "test.jsonl", [{"question": q, "answer": "#### 4"} for q in asked])
    known = [{"question": "what is 2 + 2", "answer": "4"}, {"question": "?"}, {"q": 1},
             {"question": "A start. " + long.format(8).upper(), "answer": "7"}]  # fmt: skip
    path = str(write_lines(tmp_path / "train.jsonl", known))
    loaded = {"gsm8k": reading.load(table.named("gsm8k"), "gsm8k", tmp_path)}
    contamination.report(loaded, [])
    assert "in the training data" not in loaded["gsm8k"].report
    contamination.report(loaded, [path])
    # 13 words after the number are the same in the first and the last
    found = loaded["gsm8k"].report["in the training data"]
    assert found == {"count": 3, "examples": ["0", "1", "3"]}
    write_lines(tmp_path / "none.jsonl", [{"q": 1}])
    with pytest.raises(UserError, match="no row with a question"):
        contamination.questions(str(tmp_path / "none.jsonl"))


@pytest.fixture
def evaluated(tmp_path):
    """(folder, items, summary) of responses that another system gave, one of each kind of fault."""
    data = tmp_path / "gsm8k"
    data.mkdir()
    questions = [{"question": f"q{n}", "answer": f"work\n#### {n}"} for n in range(6)]
    write_lines(data / "test.jsonl", questions)
    given = [
        {"id": 0, "response": r"\boxed{0}"},
        {"id": 1, "response": "the answer is 7"},
        {"id": 2, "response": ""},
        {"id": 3, "response": "no idea " + "(" * 3000},
        {"id": 4, "response": 4},
        {"id": "x", "response": "4"},
        {"id": 0, "sample": 0, "response": r"\boxed{9}"},
        {"id": 5, "benchmark": "math500", "response": r"\boxed{5}"},
    ]
    path = write_lines(tmp_path / "given.jsonl", given)
    path.write_text(path.read_text() + "torn")
    loaded = {"gsm8k": reading.load(table.named("gsm8k"), "gsm8k", tmp_path)}
    responses = {"gsm8k": scoring.read_responses(path, "gsm8k", loaded["gsm8k"].items)}
    folder = results.make_folder(str(tmp_path / "out"))
    return folder, loaded["gsm8k"].items, results.score(folder, loaded, responses)


def test_faulty_responses_are_counted(evaluated):
    folder, items, summary = evaluated
    found = summary["gsm8k"]
    assert found["score"] == pytest.approx(100 / 6) and found["n"] == len(items) == 6
    assert found["responses"] == {"count": 4, "empty": 1, "without an answer": 3, "no response": 2}
    assert found["integrity"]["broken row"] == 2 and found["integrity"]["unknown id"] == 1
    assert found["integrity"]["duplicated sample"] == 1
    scored = [json.loads(line) for line in (folder / "gsm8k.scored.jsonl").open()]
    assert [row["correct"] for row in scored] == [True] + [False] * 5
    assert scored[1]["extracted"] == "7" and scored[2]["reason"] == "empty response"


def test_tables(evaluated):
    folder, _, summary = evaluated
    summary |= results.overall(summary, {"gsm8k": 10.0}, "<mine>")
    assert summary["overall"] == pytest.approx(10 / 6)
    results.publish(folder, "a|b<i>", summary, with_paper=True)
    text, page = (folder / "table.md").read_text(), (folder / "table.html").read_text()
    assert "| a\\|b<i> | 16.7 | 1.67 |" in text and "CPGD std (paper)" in text
    assert "<td>a|b&lt;i&gt;</td><td>16.7</td><td>1.67</td>" in page and "&lt;mine&gt;" in page
    stored = json.loads((folder / "summary.json").read_text())
    assert stored["gsm8k"]["n"] == 6 and stored["overall_of"] == ["gsm8k"]
    assert results.baseline(str(folder / "summary.json")) == {"gsm8k": pytest.approx(100 / 6)}
    assert results.overall({"aime": {"score": 1.0}}, {}, "none")["overall"] is None


def test_several_samples():
    benchmark = table.named("mathvision")
    items = [benchmark.item(VISION_ROW | {"id": str(n)}) for n in range(2)]
    right = {"0": [1, 1, 0, 0], "1": [0, 0, 0, 0]}
    found = [{"id": key, "sample": s, "correct": bool(c), "extracted": "5" if c else f"{s}",
              "reason": "", "response": "x"} for key, cs in right.items()
             for s, c in enumerate(cs)]  # fmt: skip
    summary = summarise(benchmark, items, found)
    assert summary["score"] == summary["pass@1"] == 25 and summary["maj@4"] == 50
    assert summary["pass@2"] == pytest.approx(50 * 5 / 6) and summary["pass@4"] == 50
    assert summary["mean@4"] == 25 and summary["intervals"]["mean@4"] == summary["interval"]
    assert summary["intervals"]["pass@4"] == summary["intervals"]["maj@4"] == [0, 100]
    assert summary["breakdown"]["subject"]["counting"] == {"score": 25, "n": 2}
    low, high = summary["interval"]
    assert low == 0 and high == 50
    assert pages.markdown(pages.sections("m", {"mathvision": summary | {"integrity": {}}}, False))


class Replies(http.server.BaseHTTPRequestHandler):
    """Says CORRECT where the reference stands in the student's answer; fails where it says so."""

    asked: list = []

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Replies.asked.append((self.path, body["model"], self.headers["Authorization"]))
        prompt = body["messages"][0]["content"]
        answer = prompt.rsplit("student's answer:", 1)[1]
        if "teapot" in answer:
            self.send_error(418)
            return
        word = "CORRECT" if "five" in answer else "WRONG, it isn't"
        reply = json.dumps({"choices": [{"message": {"content": word}}]}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{" if "torn" in answer else reply)

    def log_message(self, *_):
        pass


@pytest.fixture
def address():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Replies)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


def test_a_judge_decides_where_the_official_rule_asks_one(address, monkeypatch):
    monkeypatch.setenv("MY_KEY", "secret")
    model = judge.Judge(address, "a-model", "MY_KEY", timeout_s=5, tries=1)
    row = {"sample_index": "1", "question": "q", "answer": "5", "question_type": "free-form",
           "image": "a.png"}  # fmt: skip
    texts = ["it is five", "six", r"teapot \boxed{5}", r"torn \boxed{5}", ""]
    items = [table.named("mathverse").item(row | {"sample_index": str(n)}) for n in range(5)]
    given = {str(n): [{"id": str(n), "sample": 0, "response": t}] for n, t in enumerate(texts)}
    found = list(scoring.score(table.named("mathverse"), items, given, model))
    assert [r["correct"] for r in found] == [True, False, True, True, False]
    assert [r["by_judge"] for r in found] == [True, True, False, False, False]
    assert Replies.asked[0] == ("/v1/chat/completions", "a-model", "Bearer secret")
    with pytest.raises(UserError, match="https://"):
        judge.Judge("file:///etc/passwd", "m")


def test_a_rule_that_fails_is_a_wrong_answer(monkeypatch):
    benchmark = table.named("mathvision")
    item = benchmark.item(VISION_ROW)._replace(row={})  # the rule misses its field
    given = {"1": [{"id": "1", "sample": 0, "response": "6"}]}
    (row,) = scoring.score(benchmark, [item], given)
    assert not row["correct"] and row["reason"].startswith("the rule failed: KeyError")
