"""Which replicas are asked for files, and when again."""

from pathlib import Path

from router.tokens import NoModelFiles
from router.tokens.fetching import AGAIN_S, Fetcher, Serving
from router.tokens.model_dir import UnusableModelDir

ONE = Serving("http://1", "m", ("m", "adapter"))
TWO = Serving("http://2", "other", ("other",))


class World:
    def __init__(self, *up: Serving, max_models: int = 4) -> None:
        self.now = 0.0
        self.up = list(up)
        self.known: set[str] = set()
        self.asked: list[str] = []
        self.installed: list[tuple[Path, tuple[str, ...]]] = []
        self.error: Exception | None = None
        self.bad: Exception | None = None
        self.fetcher = Fetcher(
            self, lambda: self.up, self.known.__contains__, self.install, max_models,
            lambda: self.now,
        )  # fmt: skip

    async def fetch(self, url: str) -> Path:
        self.asked.append(url)
        if self.error is not None:
            raise self.error
        return Path("/files")

    async def install(self, directory: Path, names: tuple[str, ...]) -> None:
        if self.bad is not None:
            raise self.bad
        self.installed.append((directory, names))
        self.known |= set(names)


async def test_all_names_of_a_replica_get_its_files_once():
    world = World(ONE, ONE)
    await world.fetcher.look()
    await world.fetcher.look()
    assert world.installed == [(Path("/files"), ("m", "adapter"))]
    assert world.asked == ["http://1"]


async def test_only_names_without_a_tokenizer_are_fetched_for():
    world = World(ONE, TWO)
    world.known |= {"m", "other"}
    await world.fetcher.look()
    assert world.installed == [(Path("/files"), ("adapter",))]


async def test_a_replica_without_files_is_left_alone_for_a_while():
    world = World(ONE)
    world.error = NoModelFiles("none")
    await world.fetcher.look()
    await world.fetcher.look()
    assert world.asked == ["http://1"]
    world.now, world.error = AGAIN_S, None
    await world.fetcher.look()
    assert world.known == {"m", "adapter"}


async def test_files_that_cannot_be_used_are_no_end_of_the_task():
    world = World(ONE)
    world.bad = UnusableModelDir("no vocabulary")
    await world.fetcher.look()
    assert world.known == set()


async def test_the_number_of_models_is_bounded():
    world = World(ONE, TWO, max_models=1)
    await world.fetcher.look()
    assert world.known == {"m", "adapter"}
    assert world.asked == ["http://1"]
