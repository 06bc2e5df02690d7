"""The prompt's structure, in one place."""

# The structure of the CPGD paper's Table 3, in our words: reason, answer, box.
REASONING = (
    "Think about the question first, then answer it. Write your reasoning between <think> and"
    " </think>, then your answer between <answer> and </answer>, with the final result in"
    " \\boxed{}."
)
# For models too small to follow it: the answer in a box, no tags.
BOXED = "Work it out briefly. End with the final result in \\boxed{}."
# Earlier turns (question, answer) that show the form, for models that do not follow a description.
_SUMS = (("7+5=?", "7+5=12", 12), ("19-4=?", "19-4=15", 15), ("8+9=?", "8+9=17", 17))
_QUESTIONS = (
    (
        "Ada has 3 boxes of 4 pens and gives 5 pens away. How many pens are left?",
        "3*4=12 pens, 12-5=7 are left",
        7,
    ),
    (
        "A shop sells 6 cakes in the morning and twice as many later. How many does it sell?",
        "2*6=12 later, 6+12=18 in all",
        18,
    ),
)
WORKED = {
    name: tuple(
        (question, rf"<think>{steps}</think><answer>\boxed{{{result}}}</answer>")
        for question, steps, result in shown
    )
    for name, shown in (("worked_sums", _SUMS), ("worked_questions", _QUESTIONS))
}
SYSTEM_PROMPTS = {"reasoning": REASONING, "boxed": BOXED, **dict.fromkeys(WORKED, ""), "none": ""}


def messages(question: str, system_prompt: str) -> list[dict[str, str]]:
    """Chat messages of one question; `system_prompt` is a key of SYSTEM_PROMPTS."""
    system = SYSTEM_PROMPTS[system_prompt]
    turns = [("system", system)] if system else []
    for shown, answer in WORKED.get(system_prompt, ()):
        turns += [("user", shown), ("assistant", answer)]
    return [{"role": role, "content": text} for role, text in [*turns, ("user", question)]]
