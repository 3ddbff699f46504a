"""The folder in memory goes with its supervisor, however that ended."""

import os
import signal
import subprocess
import sys
import time

from router.folder import run_folder, sweep
from tests.support.processes import ROOT

HOLD = """
import sys, time
from pathlib import Path
from router.folder import run_folder
with run_folder(Path(sys.argv[1])) as made:
    (made / "load").write_bytes(bytes(100))
    print(made, flush=True)
    time.sleep(60)
"""


def test_it_is_there_while_it_is_used_and_gone_afterwards(tmp_path):
    with run_folder(tmp_path) as made:
        assert sweep(tmp_path) == []
        assert made.is_dir()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_supervisor_left_is_removed_by_the_next(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        left = holder.stdout.readline().strip()
        with run_folder(tmp_path):
            assert os.path.isdir(left)
        holder.send_signal(signal.SIGKILL)
        holder.wait(10)
        assert os.path.isdir(left)
    with run_folder(tmp_path) as made:
        assert list(tmp_path.iterdir()) == [made]


def test_one_that_is_just_being_made_is_left_alone(tmp_path):
    young, old = tmp_path / "warmgate-young", tmp_path / "warmgate-old"
    young.mkdir()
    old.mkdir()
    an_hour_ago = time.time() - 3600
    os.utime(old, (an_hour_ago, an_hour_ago))
    assert sweep(tmp_path) == [old]
    assert young.is_dir()
