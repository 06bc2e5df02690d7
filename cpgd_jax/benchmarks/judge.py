"""A language model as judge, behind an OpenAI-compatible address. Off unless it is asked for."""

import json
import os
import re
import time
import urllib.error
import urllib.request
from dataclasses import dataclass

from cpgd_jax.benchmarks import rules
from cpgd_jax.benchmarks.records import Item, Verdict
from cpgd_jax.errors import UserError

_VERDICT = re.compile(r"\b(CORRECT|WRONG)\b")
_ASK = """Is the answer of a student right? Compare it with the reference; do not solve anything.
Other notation, units that the question names and rounding that it asks for are no fault.
Begin your reply with CORRECT or WRONG.

Question:
{question}

Reference answer:
{gold}

The student's answer:
{response}"""
MAX_SHOWN = 4000  # characters of the end of a response that the judge reads
MAX_REPLY = 1 << 20  # bytes


@dataclass(frozen=True)
class Judge:
    """url: up to and with /v1. key_env: the environment variable that holds the key, if any."""

    url: str
    model: str
    key_env: str = "OPENAI_API_KEY"
    timeout_s: float = 60.0
    tries: int = 3

    def __post_init__(self):
        if not self.url.startswith(("http://", "https://")):
            raise UserError(f"--judge_url={self.url}: give an http:// or https:// address")
        if not self.model:
            raise UserError("--judge_url needs --judge_model: the name of the model to ask")

    @property
    def name(self) -> str:
        return f"language model {self.model} as judge; the rule where it fails"

    def verdict(self, item: Item, response: str) -> Verdict | None:
        """None: no reply, or none that can be read."""
        extracted = rules.found(response)
        if not response.strip():
            return Verdict(False, extracted, "empty response")
        shown = response[-MAX_SHOWN:]
        prompt = _ASK.format(question=item.prompt, gold=item.gold, response=shown)
        match = _VERDICT.search(self._ask(prompt))
        if not match:
            return None
        return Verdict(match.group() == "CORRECT", extracted, "judged by the language model")

    def _ask(self, prompt: str) -> str:
        """The reply; "" after `tries` failures."""
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": 0,
            "max_tokens": 16,
        }
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(self.key_env):
            headers["Authorization"] = f"Bearer {key}"
        data = json.dumps(body).encode("utf-8", "replace")
        for attempt in range(self.tries):
            try:
                request = urllib.request.Request(
                    f"{self.url.rstrip('/')}/chat/completions", data, headers
                )
                with urllib.request.urlopen(request, timeout=self.timeout_s) as reply:
                    return _content(reply.read(MAX_REPLY))
            except (OSError, ValueError, urllib.error.URLError):
                if attempt + 1 < self.tries:
                    time.sleep(2**attempt / 4)
        return ""


def _content(body: bytes) -> str:
    try:
        text = json.loads(body)["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError("no reply of a chat model") from error
    return text if isinstance(text, str) else ""
