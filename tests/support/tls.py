"""Certificates for tests, made on the spot."""

import subprocess
import tempfile
from pathlib import Path


def certificate(name: str) -> bytes:
    """A self-signed certificate for localhost and its key, as PEM; `name` stands in it."""
    with tempfile.TemporaryDirectory() as folder:
        key, cert = Path(folder, "key.pem"), Path(folder, "cert.pem")
        command = (
            "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1"
        )
        command += f" -subj /O={name}/CN=localhost -addext subjectAltName=DNS:localhost"
        command += f" -keyout {key} -out {cert}"
        subprocess.run(command.split(), check=True, capture_output=True)
        return key.read_bytes() + cert.read_bytes()
