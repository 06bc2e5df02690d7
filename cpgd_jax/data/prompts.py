"""The prompt's structure, in one place."""

# The structure of the CPGD paper's Table 3, in our words: reason, answer, box.
REASONING = (
    "Think about the question first, then answer it. Write your reasoning between <think> and"
    " </think>, then your answer between <answer> and </answer>, with the final result in"
    " \\boxed{}."
)
# For models too small to follow it: the answer in a box, no tags.
BOXED = "Work it out briefly. End with the final result in \\boxed{}."
SYSTEM_PROMPTS = {"reasoning": REASONING, "boxed": BOXED, "worked_sums": "", "none": ""}
# Earlier turns (question, answer) that show the form, for models that do not follow a description.
WORKED = {
    "worked_sums": tuple(
        (f"{sum_}=?", rf"<think>{sum_}={total}</think><answer>\boxed{{{total}}}</answer>")
        for sum_, total in (("7+5", 12), ("19-4", 15), ("8+9", 17))
    )
}


def messages(question: str, system_prompt: str) -> list[dict[str, str]]:
    """Chat messages of one question; `system_prompt` is a key of SYSTEM_PROMPTS."""
    system = SYSTEM_PROMPTS[system_prompt]
    turns = [("system", system)] if system else []
    for shown, answer in WORKED.get(system_prompt, ()):
        turns += [("user", shown), ("assistant", answer)]
    return [{"role": role, "content": text} for role, text in [*turns, ("user", question)]]
