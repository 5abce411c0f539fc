"""Seeded small talk: a few everyday subjects, loosely worded, one to three turns.

Owns: the sentences (all written for this project). A source is one seed.
Each reply is glued from alternatives drawn anew, so that wording stays hard to guess.
"""

from __future__ import annotations

from random import Random

from .conversation import Conversation, Message

THINGS = (
    "tea",
    "coffee",
    "rain",
    "winter",
    "music",
    "gardening",
    "chess",
    "cooking",
    "hiking",
    "reading",
    "painting",
    "the sea",
    "mountains",
    "trains",
    "bicycles",
    "old films",
    "poetry",
    "running",
    "birds",
    "bread",
    "maps",
    "board games",
)
OPENERS = (
    "What do you think about {thing}?",
    "Tell me something nice about {thing}.",
    "Do you like {thing}?",
    "Why do people enjoy {thing}?",
    "I spent the day with {thing}. Any thoughts?",
    "Can we talk about {thing} for a moment?",
    "Give me one idea that has to do with {thing}.",
)
STARTS = (
    "Honestly,",
    "Good question.",
    "Well,",
    "I would say that",
    "For many people",
    "It depends, but",
    "Of course.",
    "Happily.",
    "Let me think.",
)
CLAIMS = (
    "{thing} can make an ordinary day feel slower",
    "there is a quiet pleasure in {thing}",
    "people come back to {thing} when they need rest",
    "{thing} rewards patience more than talent",
    "one never quite finishes learning about {thing}",
    "{thing} brings strangers together",
    "the best part of {thing} is how little it asks of you",
    "{thing} is better when it is shared",
)
REASONS = (
    "because it leaves room to think",
    "and nobody has to hurry",
    "although it takes some time to begin",
    "if the weather allows it",
    "especially early in the morning",
    "even when nothing goes to plan",
    "since small habits add up",
    "and it costs almost nothing",
)
ENDS = (
    "What about you?",
    "Would you like a suggestion?",
    "Perhaps try it this week.",
    "That is only my view.",
    "Tell me how it goes.",
    "I hope that helps.",
    "",
)
FOLLOW_UPS = (
    "Why is that?",
    "Go on, please.",
    "How would a beginner start?",
    "I am not sure I agree.",
    "Thank you, anything else?",
    "And in the evening?",
)


def reply(random: Random, thing: str) -> str:
    """One answer about `thing`."""
    sentences = [
        f"{random.choice(CLAIMS).format(thing=thing)} {random.choice(REASONS)}." for _ in range(random.randint(1, 3))
    ]
    body = " ".join(sentence[0].upper() + sentence[1:] for sentence in sentences)
    start = random.choice(STARTS)
    if not start.endswith("."):
        body = body[0].lower() + body[1:]
    return f"{start} {body} {random.choice(ENDS)}".strip()


def draw_conversation(seed: int) -> Conversation:
    """The conversation of one seed."""
    random = Random(f"small talk {seed}")
    thing = random.choice(THINGS)
    messages = [Message("user", random.choice(OPENERS).format(thing=thing)), Message("assistant", reply(random, thing))]
    for _ in range(random.choice((0, 0, 1, 2))):
        messages += [Message("user", random.choice(FOLLOW_UPS)), Message("assistant", reply(random, thing))]
    return Conversation("chat", f"small talk:{seed}", tuple(messages))
