"""Requests whose tokens are compared, each with what a chat template is meant to get from it.

A case is a body as a client sends it, and beside it the conversation, tools and variables that
`apply_chat_template` takes: written down by construction, not converted by the code under test.
Everything is made from a seed; the texts are real ones in sixteen scripts, and this project's code.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

Case = dict[str, Any]

CASES = 440
ROOT = Path(__file__).parents[2]

SCRIPTS = {
    "latin": "Grüße aus Köln – „Anführung“, naïve façade, œuvre, ĳsvogel; don't, it's, we'll. ",
    "greek": "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια. ",
    "cyrillic": "Все люди рождаются свободными и равными в своём достоинстве и правах. ",
    "hebrew": "כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם. ",
    "arabic": "يولد جميع الناس أحرارًا متساوين في الكرامة والحقوق. ",
    "devanagari": "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता प्राप्त है। ",
    "bengali": "সমস্ত মানুষ স্বাধীনভাবে সমান মর্যাদা এবং অধিকার নিয়ে জন্মগ্রহণ করে। ",
    "tamil": "மனிதப் பிறவியினர் சகலரும் சுதந்திரமாகவே பிறக்கின்றனர். ",
    "thai": "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ ",
    "georgian": "ყველა ადამიანი იბადება თავისუფალი და თანასწორი თავისი ღირსებითა. ",
    "armenian": "Բոլոր մարդիկ ծնվում են ազատ ու հավասար իրենց արժանապատվությամբ։ ",
    "ethiopic": "የሰው ልጅ ሁሉ ሲወለድ ነጻና በክብርና በመብትም እኩልነት ያለው ነው። ",
    "han": "人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心。",
    "kana": "すべての人間は、生まれながらにして自由であり、カタカナも平等である。",
    "hangul": "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다. ",
    "tibetan": "འགྲོ་བ་མིའི་རིགས་རྒྱུད་ཡོངས་ལ་སྐྱེས་ཙམ་ཉིད་ནས་ཆེ་མཐོངས་དང༌། ",
}

ODD = [
    "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🙂🇩🇪🇯🇵 1️⃣ ☃︎☃️",
    "e\u0301 a\u0308\u0323 \u200d\ufeff\u2028\u00a0\u3000ﬁ Ω Å",
    "a\r\nb\tc\n\n\n  d   \u0001\u001f e",
    "    \n\n   leading and trailing   \n",
    "0123456789 1234567 3.14159e-10 0x1F 1,234,567.89",
    "https://example.test/a?b=c&d=%20#e user@example.test C:\\dir\\file",
    "∀x∈ℝ: ⌈x⌉ = −⌊−x⌋, α ∧ ¬β = ¬(¬α ∨ β); x² + y³ ≠ z₁",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa !!!!!!!!! ........",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈 𓀀 \U0001f9ff\U000e0041",
    "",
]


class Maker:
    """Makes the cases of one model: its special tokens are written into what users say."""

    def __init__(self, specials: Sequence[str], seed: int = 5) -> None:
        self.rng = random.Random(seed)
        self.specials = list(specials)
        self.code = "\n".join(
            path.read_text("utf-8") for path in sorted((ROOT / "router" / "blocks").glob("*.py"))
        )

    def cases(self) -> Iterator[Case]:
        kinds = [
            self.plain, self.plain, self.turns, self.turns, self.tooled, self.hostile,
            self.parts, self.prefilled, self.variables, self.coded, self.completed,
        ]  # fmt: skip
        for number in range(CASES):
            yield kinds[number % len(kinds)]()

    def text(self, sentences: int = 3) -> str:
        rng = self.rng
        script = rng.choice(list(SCRIPTS))
        words = SCRIPTS[script] * rng.randint(1, sentences)
        return words + rng.choice(ODD) if rng.random() < 0.4 else words

    def hostile_text(self) -> str:
        rng, special = self.rng, self.rng.choice(self.specials)
        return rng.choice(
            [
                f"{special}",
                f"before {special} after",
                f"{special}{rng.choice(self.specials)}\n{special}",
                f" {special} \n{special}\n\n system {special}",
                special[:-1] + " " + special[1:] + special[: len(special) // 2],
                f"<{special}>{special}|>",
                f"{self.text(1)}{special}{self.text(1)}",
                special.upper() + special.lower() + special.replace("_", " "),
            ]
        )

    def plain(self) -> Case:
        messages = [message("user", self.text())]
        if self.rng.random() < 0.5:
            messages.insert(0, message("system", self.text(2)))
        return chat(messages)

    def turns(self) -> Case:
        rng = self.rng
        messages = [message("system", self.text(2))] if rng.random() < 0.5 else []
        for _ in range(rng.randint(1, 6)):
            messages += [message("user", self.text()), message("assistant", self.text())]
        return chat([*messages, message("user", self.text())])

    def hostile(self) -> Case:
        messages = [message("user", self.hostile_text())]
        if self.rng.random() < 0.5:
            messages = [message("system", self.hostile_text()), *messages]
            messages += [message("assistant", self.hostile_text()), message("user", self.text())]
        return chat(messages)

    def coded(self) -> Case:
        start = self.rng.randrange(len(self.code) // 2)
        code = self.code[start : start + self.rng.randint(500, 9000)]
        return chat([message("user", f"Review this:\n```python\n{code}\n```")])

    def parts(self) -> Case:
        texts = [self.text(1) for _ in range(self.rng.randint(1, 3))]
        body = [{"role": "user", "content": [{"type": "text", "text": text} for text in texts]}]
        case = chat([message("user", "\n".join(texts))], sent=body)
        case["in_parts"] = body
        return case

    def prefilled(self) -> Case:
        messages = [
            message("user", self.text()),
            message("assistant", self.text(1).strip() + " so"),
        ]
        if self.rng.random() < 0.3:
            return chat(messages[:1], add_generation_prompt=False)
        return chat(messages, add_generation_prompt=False, continue_final_message=True)

    def variables(self) -> Case:
        rng = self.rng
        kwargs: dict[str, Any] = rng.choice([{"enable_thinking": False}, {"custom": [1, "é"]}])
        messages = [message("user", self.text()), message("assistant", self.text())]
        if rng.random() < 0.5:
            messages[1]["reasoning_content"] = self.text(1)
        if rng.random() < 0.3:
            messages[1]["content"] = f"<think>\n{self.text(1)}\n</think>\n\n{self.text(1)}"
        case = chat([*messages, message("user", self.text())], chat_template_kwargs=kwargs)
        case["variables"] |= kwargs
        if rng.random() < 0.3:
            case["body"]["documents"] = [{"title": self.text(1), "text": self.text(1)}]
            case["variables"]["documents"] = case["body"]["documents"]
        return case

    def tooled(self) -> Case:
        rng = self.rng
        tools = [self.tool(name) for name in rng.sample(["weather", "search", "run_code"], 2)]
        messages = [message("user", self.text(1))]
        sent: list[Any] = list(messages)
        if rng.random() < 0.7:
            arguments = {"city": self.text(1), "days": rng.randint(1, 9), "deep": {"a": [1, None]}}
            call = {"id": "call12345", "type": "function"}
            name = tools[0]["function"]["name"]
            said = {"role": "assistant", "content": rng.choice(["", self.text(1)])}
            as_object = {"function": {"arguments": arguments, "name": name}}
            as_text = {"function": {"name": name, "arguments": json.dumps(arguments)}}
            result = {"role": "tool", "tool_call_id": "call12345", "content": self.text(1)}
            tail = [message("user", self.text(1))] if rng.random() < 0.5 else []
            messages += [
                {**said, "tool_calls": [{"id": call["id"], **as_object, "type": "function"}]},
                result,
                *tail,
            ]
            sent += [{**said, "tool_calls": [{**call, **as_text}]}, result, *tail]
        case = chat(messages, sent=sent)
        case["body"]["tools"] = case["tools"] = tools
        return case

    def tool(self, name: str) -> dict[str, Any]:
        properties = {
            "city": {"type": "string", "description": self.text(1)},
            "days": {"type": "integer", "enum": [1, 2, 3]},
        }
        parameters = {"type": "object", "properties": properties, "required": ["city"]}
        function = {"name": name, "description": f"<b>{name}</b> & more", "parameters": parameters}
        return {"type": "function", "function": function}

    def completed(self) -> Case:
        rng = self.rng
        text = rng.choice([self.text, self.hostile_text])()
        body: dict[str, Any] = {"model": "m", "prompt": text}
        case: Case = {"path": "/v1/completions", "body": body, "text": text, "special": True}
        kind = rng.randrange(5)
        if kind == 0:
            body["add_special_tokens"] = case["special"] = False
        elif kind == 1:
            body["prompt"] = [text, "another"]
        elif kind == 2:
            body["echo"] = True
        elif kind == 3:
            body["truncate_prompt_tokens"] = case["keep"] = 7
            body["truncation_side"] = "left"
        return case


def message(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def chat(conversation: list[Any], *, sent: list[Any] | None = None, **flags: Any) -> Case:
    """`sent`: the messages as the client writes them, if that is another form."""
    return {
        "path": "/v1/chat/completions",
        "body": {"model": "m", "messages": conversation if sent is None else sent, **flags},
        "conversation": conversation,
        "tools": None,
        "variables": {},
        "add_generation_prompt": flags.get("add_generation_prompt", True),
        "continue_final_message": flags.get("continue_final_message", False),
    }
