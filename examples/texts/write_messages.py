"""Writes messages.csv: short messages, whose phone they came to, and whether its owner kept them.

Invented by this file, no person wrote or received one. What everybody has in common: what is urgent
is kept, advertising is muted. What is each owner's own: five of ten topics are kept, the others
muted, and a tenth of all answers are slips. A message names its topic by its words alone, so a
model has to understand them, and whose topics are which it can only learn from the owner.

    python write_messages.py messages.csv --owners 60 --seed 0
"""

from __future__ import annotations

import argparse
import csv
import random
from collections.abc import Sequence
from pathlib import Path

TOPICS = {
    "cooking": ("lentil soup", "sourdough bread", "grilled vegetables", "apple pie", "garlic"),
    "football": ("the goalkeeper", "a penalty kick", "the away match", "our striker", "the cup"),
    "weather": ("heavy rain", "morning fog", "a cold front", "thunder", "the heat wave"),
    "music": ("the violin concert", "her new album", "a jazz band", "the choir", "a guitar solo"),
    "phones": ("the new battery", "a cracked screen", "the app update", "a charger", "roaming"),
    "travel": ("the night train", "a cheap flight", "our hotel", "the passport queue", "a ferry"),
    "health": ("the dentist", "a sore throat", "the vaccine", "blood pressure", "a headache"),
    "films": ("the director's cut", "a horror film", "the sequel", "the cinema", "that actor"),
    "garden": ("tomato seedlings", "the rose hedge", "compost", "a lawn mower", "tulip bulbs"),
    "money": ("the mortgage", "a tax refund", "interest rates", "my savings", "the invoice"),
}
PLAIN = (
    "I was thinking about {} again",
    "Have you heard the news about {}?",
    "Let us talk about {} tomorrow",
    "Someone asked me about {} today",
    "There is a long story about {} in the paper",
    "My neighbour knows a lot about {}",
)
URGENT = (
    "Please call me back at once, it is about {}",
    "Emergency, I need your help now with {}",
)
ADVERTISING = (
    "Special offer, half price, buy now: {}",
    "You have won! Click here for {}",
)


def messages(owners: int, each: int, seed: int) -> list[tuple[str, str, str]]:
    """Owner, message and what became of it, message by message."""
    rng, rows = random.Random(seed), list[tuple[str, str, str]]()
    for number in range(owners):
        liked = set(rng.sample(list(TOPICS), len(TOPICS) // 2))
        for _ in range(each):
            topic = rng.choice(list(TOPICS))
            kind = rng.choices((PLAIN, URGENT, ADVERTISING), (0.7, 0.15, 0.15))[0]
            keeps = kind is URGENT or (kind is PLAIN and topic in liked)
            if rng.random() < 0.1:
                keeps = not keeps
            text = rng.choice(kind).format(rng.choice(TOPICS[topic]))
            rows.append((f"owner-{number:03}", text, "keep" if keeps else "mute"))
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--owners", type=int, default=60)
    parser.add_argument("--each", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    with chosen.file.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("owner", "message", "answer"))
        writer.writerows(messages(chosen.owners, chosen.each, chosen.seed))


if __name__ == "__main__":
    main()
