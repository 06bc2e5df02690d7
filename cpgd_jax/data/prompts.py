"""The prompt's structure, in one place."""

# The structure of the CPGD paper's Table 3, in our words: reason, answer, box.
REASONING = (
    "Think about the question first, then answer it. Write your reasoning between <think> and"
    " </think>, then your answer between <answer> and </answer>, with the final result in"
    " \\boxed{}."
)
# For models too small to follow it: the answer in a box, no tags.
BOXED = "Work it out briefly. End with the final result in \\boxed{}."
SYSTEM_PROMPTS = {"reasoning": REASONING, "boxed": BOXED, "none": ""}


def messages(question: str, system_prompt: str) -> list[dict[str, str]]:
    """Chat messages of one question; `system_prompt` is a key of SYSTEM_PROMPTS."""
    system = SYSTEM_PROMPTS[system_prompt]
    turns = [{"role": "system", "content": system}] if system else []
    return [*turns, {"role": "user", "content": question}]
