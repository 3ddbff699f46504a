"""What a reply says that it cost: the usage object, found without parsing the reply."""

import re

import msgspec

# Inside a JSON string every quote is escaped, so an unescaped `"usage"` before a colon is a key.
# A usage object holds numbers and, at most one level down, objects of numbers.
_USAGE = re.compile(rb'"usage"\s*:\s*(\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})')
_KEY = b'"usage"'


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Token counts as the engine reports them.

    `prompt_tokens` counts the whole prompt, also where the API reports cached tokens apart from
    the rest (Anthropic's). `cached_tokens` is None when the engine doesn't say.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Counts(msgspec.Struct):
    """The three dialects in one: chat and completions, responses, messages."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _Details | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


_decoder = msgspec.json.Decoder(_Counts)


def find_usage(tail: bytes) -> Usage | None:
    """The last usage object in the end of a JSON body or of an SSE stream, None if there is none.

    `tail` may begin anywhere and may hold the framing of HTTP chunks between events. `null`,
    the word inside text, and objects of another shape under the same key are passed over.
    """
    end = len(tail)
    while (at := tail.rfind(_KEY, 0, end)) >= 0:
        end = at
        match = _USAGE.match(tail, at)
        if match is None or tail[at - 1 : at] == b"\\":
            continue
        if (usage := _read(match[1])) is not None:
            return usage
    return None


def _read(text: bytes) -> Usage | None:
    try:
        counts = _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if counts.prompt_tokens is not None:
        return Usage(
            counts.prompt_tokens,
            counts.completion_tokens or 0,
            _cached(counts.prompt_tokens_details),
        )
    if counts.input_tokens is None:
        return None
    if counts.cache_read_input_tokens is None and counts.cache_creation_input_tokens is None:
        return Usage(
            counts.input_tokens, counts.output_tokens or 0, _cached(counts.input_tokens_details)
        )
    cached = counts.cache_read_input_tokens or 0
    return Usage(
        # platform.claude.com: the total is the sum of the three
        counts.input_tokens + cached + (counts.cache_creation_input_tokens or 0),
        counts.output_tokens or 0,
        cached,
    )


def _cached(details: _Details | None) -> int | None:
    return None if details is None else details.cached_tokens
