"""Objects of other projects' kinds against those projects' own types.

`UPSTREAM_TYPES` names a folder with npm packages made from the Go types of Gateway API, KEDA and
the Prometheus operator (`make test-chart` installs them). Their schemas say which values are
right; TypeScript's types, which fields there are at all.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.helm import EXAMPLES, helm_binary, render

FOLDER = Path(os.environ.get("UPSTREAM_TYPES", "/nowhere")).absolute()
pytestmark = pytest.mark.skipif(
    helm_binary() is None or not (FOLDER / "node_modules").exists(),
    reason="needs helm and UPSTREAM_TYPES (make test-chart)",
)
MODELS = "@kubernetes-models"
PACKAGES = {
    "gateway.networking.k8s.io": "gateway-api",
    "keda.sh": "keda",
    "monitoring.coreos.com": "prometheus-operator",
}
MORE = ("--set-json", "autoscaling.keda.predictedTtftSeconds=1.5")


def others_objects():
    """(where its type is, the object) of each that an example makes."""
    for example in EXAMPLES:
        for thing in render(
            "-f", str(example), *(MORE if example.stem == "keys-and-scaling" else ())
        ):
            group = thing["apiVersion"].partition("/")[0]
            if group in PACKAGES:
                yield f"{MODELS}/{PACKAGES[group]}/{thing['apiVersion']}", thing


def checked_values(folder, things):
    for number, (where, thing) in enumerate(things):
        told = {"from": where, "kind": thing["kind"], "thing": thing}
        (folder / f"{number}.json").write_text(json.dumps(told))
    (folder / "node_modules").symlink_to(FOLDER / "node_modules")
    script = Path(__file__).with_name("check_types.mjs")
    return run("node", shutil.copy(script, folder))


def checked_fields(folder, things):
    """TypeScript refuses a field that a type has not, in what is written out as a literal."""
    lines = []
    for number, (where, thing) in enumerate(things):
        lines.append(f'import {{ {thing["kind"]} as T{number} }} from "{where}/{thing["kind"]}";')
        body = {key: thing[key] for key in thing if key not in ("apiVersion", "kind")}
        lines.append(f"new T{number}({json.dumps(body)});")
    (folder / "things.ts").write_text("\n".join(lines))
    if not (folder / "node_modules").exists():
        (folder / "node_modules").symlink_to(FOLDER / "node_modules")
    compiler = FOLDER / "node_modules" / ".bin" / "tsc"
    flags = "--noEmit --strict --skipLibCheck --target es2022 --module nodenext".split()
    return run(str(compiler), *flags, str(folder / "things.ts"), cwd=folder)


def run(*command, cwd=None):
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=55, check=False)


def test_every_kind_of_another_project_is_checked():
    kinds = {thing["kind"] for _, thing in others_objects()}
    assert kinds == {"HTTPRoute", "ScaledObject", "ServiceMonitor", "PrometheusRule"}


def test_values_are_as_upstreams_schemas_want_them(tmp_path):
    done = checked_values(tmp_path, others_objects())
    assert done.returncode == 0, done.stdout + done.stderr


def test_fields_are_those_that_upstreams_types_have(tmp_path):
    done = checked_fields(tmp_path, others_objects())
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_wrong_value_and_a_misspelt_field_would_be_found(tmp_path):
    where, route = next(pair for pair in others_objects() if pair[1]["kind"] == "HTTPRoute")
    wrong = json.loads(json.dumps(route))
    wrong["spec"]["rules"][0]["matches"][0]["path"]["type"] = "Prefix"
    done = checked_values(tmp_path, [(where, wrong)])
    assert "path/type" in done.stderr
    misspelt = json.loads(json.dumps(route))
    misspelt["spec"]["rules"][0]["backendRef"] = misspelt["spec"]["rules"][0].pop("backendRefs")
    done = checked_fields(tmp_path, [(where, misspelt)])
    assert "backendRef" in done.stdout
