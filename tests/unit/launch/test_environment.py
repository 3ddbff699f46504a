"""The CPU recipe's environment."""

from pathlib import Path

from workers.launch.environment import cpu_environment, is_cpu_only


def test_no_device_file_means_cpu():
    assert is_cpu_only(lambda path: False)
    assert not is_cpu_only(lambda path: path == "/dev/nvidiactl")


def test_cache_and_cores_are_set(tmp_path: Path):
    environ = cpu_environment({"PATH": "/bin"}, str(tmp_path), "0-3", 2)
    assert environ == {
        "PATH": "/bin",
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": "0-3",
        "HF_HUB_OFFLINE": "1",
    }


def test_a_named_model_may_be_fetched():
    assert "HF_HUB_OFFLINE" not in cpu_environment({}, "Qwen/Qwen3-0.6B", None, 4)


def test_what_the_user_set_stays():
    environ = cpu_environment({"VLLM_CPU_KVCACHE_SPACE": "40"}, "m", None, 4)
    assert environ == {"VLLM_CPU_KVCACHE_SPACE": "40"}
