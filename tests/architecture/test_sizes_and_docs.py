"""What holds the shape: small files, documented settings, metrics, errors and flags."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from router.config import parse_config
from tests.architecture import tables

ROOT = Path(__file__).parents[2]
PACKAGES = ("router", "workers", "loadgen")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
MAX_LINES = 300


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_no_file_is_longer_than_300_lines(path):
    assert len(path.read_text("utf-8").splitlines()) <= MAX_LINES


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_every_module_says_what_it_is_for(path):
    text = path.read_text("utf-8")
    assert not text.strip() or ast.get_docstring(ast.parse(text))


def test_importing_the_ground_floor_brings_in_nothing_heavy():
    code = "import sys, router.blocks; print(*sys.modules)"
    modules = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    ).stdout.split()
    assert not {"aiohttp", "zmq", "redis", "asyncio", "prometheus_client"} & set(modules)


@pytest.mark.parametrize("path", tables.TABLES)
def test_tables_in_the_docs_equal_the_code(path):
    text, wanted = tables.rendered(path)
    assert text == wanted, "run `make docs`"


@pytest.mark.parametrize("path", sorted((ROOT / "deploy").rglob("router*.yaml")), ids=name_of)
def test_example_configurations_are_valid(path):
    assert parse_config(yaml.safe_load(path.read_text("utf-8"))).replicas


def test_every_package_has_a_readme():
    wanted = [ROOT / package for package in PACKAGES]
    wanted += [path for path in (ROOT / "router").iterdir() if (path / "__init__.py").exists()]
    assert [str(p) for p in wanted if not (p / "README.md").exists()] == []


def test_documents_and_code_name_no_other_workplace():
    words = ("../shared", "/work/", "pypi.org")
    files = subprocess.run(
        ["git", "ls-files", "*.py", "*.md", "*.toml", "*.sh", "Makefile"],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=30,
    ).stdout.split()  # fmt: skip
    found = [
        (file, word)
        for file in files
        if (ROOT / file).exists() and not file.startswith("tests/architecture/")
        for word in words
        if word in (ROOT / file).read_text("utf-8", "replace")
    ]
    assert found == []
