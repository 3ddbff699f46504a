"""The files by which others can make the same ids as this engine: `GET /model_files`."""

from hashlib import sha256
from pathlib import Path
from typing import Final

from workers.engine.tokenizer import MODEL_FOLDER

SERVED: Final = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "config.json",
)


class ModelFiles:
    """Read once: what is served is what the engine itself began with."""

    def __init__(self, folder: Path = MODEL_FOLDER) -> None:
        files = {name: folder / name for name in SERVED}
        self._contents = {name: file.read_bytes() for name, file in files.items() if file.is_file()}
        self.listed: list[dict[str, str | int]] = [
            {"name": name, "bytes": len(content), "sha256": sha256(content).hexdigest()}
            for name, content in self._contents.items()
        ]

    def get(self, name: str) -> bytes | None:
        return self._contents.get(name)
