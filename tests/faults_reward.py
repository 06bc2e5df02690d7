"""A user's reward for the runs with faults."""

import time


def digits(response: str, gold: str) -> float:
    return min(1.0, sum(c.isdigit() for c in response) / 8)


def slow_digits(response: str, gold: str) -> float:
    time.sleep(0.03)  # so that what kills workers meets them at work
    return digits(response, gold)
