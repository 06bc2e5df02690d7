"""Users' rewards: named in the config, called in a worker, contained whatever they do."""

import pytest

from cpgd_jax.errors import UserError
from cpgd_jax.rewards import Verifier, functions

MODULE = """
import os, time
calls = []
def short(response, gold): return 1.0 if len(response) < 20 else -0.5
def same_as_gold(response, gold): return gold in response
def fails(response, gold): raise KeyError(response)
def nan(response, gold): return float("nan")
def huge(response, gold): return 10.0
def word(response, gold): return "good"
def leaves(response, gold): raise SystemExit
def dies(response, gold): os._exit(1)
def loud(response, gold): print("noise " * 1000); return 0.25
def sleeps(response, gold): time.sleep(60 if "sleep" in response else 0); return 1.0
def hoards(response, gold): return float(len("x" * (8 << 30)) > 0)
not_callable = 3
"""


@pytest.fixture
def users(tmp_path, monkeypatch):
    (tmp_path / "my_rewards.py").write_text(MODULE)
    (tmp_path / "broken.py").write_text("import no_such_thing")
    monkeypatch.syspath_prepend(str(tmp_path))
    return lambda *entries, **options: Verifier(1, user_rewards=entries, **options)


def test_weighted_values_are_added(users):
    with users("my_rewards:short=2", "my_rewards:same_as_gold = -0.25", timeout_s=5) as verifier:
        score = verifier.score(r"\boxed{5}", "5")
        assert score.extra == {"short": 1.0, "same_as_gold": 1.0}
        assert score.total == 1.0 + 2.0 - 0.25
        scores = verifier.score_batch([r"\boxed{5}", r"\boxed{4}" + "." * 20], ["5", "5"])
        assert [s.total for s in scores] == [2.75, -1.0]
        assert (verifier.timeouts, verifier.errors) == (0, 0)


@pytest.mark.parametrize("name", ["fails", "nan", "huge", "word", "leaves", "dies", "hoards"])
def test_a_failure_counts_as_nothing(users, name):
    with users(f"my_rewards:{name}", "my_rewards:loud", timeout_s=5) as verifier:
        for _ in range(2):
            score = verifier.score(r"\boxed{5}", "5")
            assert score.extra == {name: 0.0, "loud": 0.25} and score.total == 1.25
            assert score.accuracy == 1 and score.failed and not score.timed_out
        assert (verifier.timeouts, verifier.errors) == (0, 2)


def test_a_hanging_function_costs_its_limit(users):
    with users("my_rewards:sleeps", timeout_s=0.3) as verifier:
        score = verifier.score(r"sleep \boxed{5}", "5")
        assert score.total == 1.0 and score.timed_out and score.seconds < 1.3
        assert verifier.score(r"\boxed{5}", "5").total == 2.0
        assert (verifier.timeouts, verifier.errors) == (1, 0)


@pytest.mark.parametrize(
    "entries, message",
    [
        (["no_such_module:f"], "'no_such_module:f': module 'no_such_module' cannot be imported"),
        (["broken:f"], "No module named 'no_such_thing'"),
        (["my_rewards:shrt"], "no function 'shrt' (did you mean 'short'?)"),
        (["my_rewards:not_callable"], "no function 'not_callable'"),
        (["my_rewards"], "'my_rewards': write 'module:function' or 'module:function=weight'"),
        (["my_rewards:short=much"], "write 'module:function'"),
        (["my_rewards:short=nan"], "write 'module:function'"),
        (["os; import x:f"], "write 'module:function'"),
        (["my_rewards:short", "os:short"], "names 'short' twice"),
    ],
)
def test_a_wrong_name_is_refused_at_the_start(users, entries, message):
    with pytest.raises(UserError) as error:
        users(*entries)
    assert message in str(error.value) and "\n" not in str(error.value)
    assert "config.reward.functions" in str(error.value)


def test_the_trainer_does_not_import_them(users):
    import sys

    with users("my_rewards:short"):
        assert "my_rewards" not in sys.modules


def test_parse():
    assert functions.parse(["a.b:c", "a.b:d=-0.5"]) == [("a.b", "c", 1.0), ("a.b", "d", -0.5)]
