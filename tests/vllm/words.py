"""Prompts made of common English words: about one token each, and never the same twice."""

import random
from typing import Final

WORDS: Final = (
    "able about above across after again against air all almost alone along already also "
    "always among and animal another answer any area around ask away back ball base bear "
    "because become bed before began behind best better between big bird black blue boat body "
    "book both box boy bring brought build built busy call came can car care carry cause "
    "center certain change check children city class clear close cold color come common "
    "complete contain correct could country course cover cross cry cut dark day decide deep "
    "develop differ direct door down draw dream dry during each early earth ease east eat end "
    "energy enough equal even ever every example eye face fact fall family far farm fast "
    "father feel few field figure fill final find fine fire first"
).split()


def sentence(rng: random.Random, n_words: int) -> str:
    return " ".join(rng.choices(WORDS, k=n_words))
