"""For those who would rather give a core than wait for one to wake."""

import asyncio


async def never_sleep() -> None:
    """Keep the event loop looking for work instead of sleeping until there is some, for ever.

    A core that slept finds its caches cold, and in a virtual machine somebody else on it: a request
    that comes after some milliseconds of silence takes half as long again as one in a busy stream.
    Takes all of a core's time; other threads of the process still get their turns.
    """
    while True:  # noqa: ASYNC110  that it never sleeps is what it is for
        await asyncio.sleep(0)
