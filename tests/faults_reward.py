"""A user's reward for the runs with faults."""


def digits(response: str, gold: str) -> float:
    return min(1.0, sum(c.isdigit() for c in response) / 8)
