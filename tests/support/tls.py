"""Certificates for tests, made on the spot by openssl."""

from __future__ import annotations

import ssl
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

_NEW_KEY = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"


@dataclass(frozen=True, slots=True)
class Authority:
    """A CA that signs what it is asked to. `ca`: its certificate, as PEM, in `folder`."""

    folder: Path
    name: str

    @classmethod
    def found(cls, folder: Path, name: str = "ca") -> Authority:
        made = cls(folder, name)
        files = f"-keyout {made._key} -out {made.ca}"
        _openssl(f"req -x509 {_NEW_KEY} -days 2 -subj /CN={name} {files}")
        return made

    @property
    def ca(self) -> Path:
        return self.folder / f"{self.name}.pem"

    @property
    def _key(self) -> Path:
        return self.folder / f"{self.name}.key"

    def sign(self, name: str, *, names: str = "DNS:localhost", days: int = 1) -> Path:
        """A file with a certificate for `names` and its key; days below 1: it has expired."""
        key, asked, signed = (self.folder / f"{name}.{end}" for end in ("key", "csr", "crt"))
        whom = f"-subj /O={name}/CN=localhost -addext subjectAltName={names}"
        _openssl(f"req -new {_NEW_KEY} {whom} -keyout {key} -out {asked}")
        by = f"-CA {self.ca} -CAkey {self._key} -days {days} -copy_extensions copy"
        _openssl(f"x509 -req -in {asked} {by} -out {signed}")
        both = self.folder / f"{name}.both.pem"
        both.write_bytes(key.read_bytes() + signed.read_bytes())
        return both


def server_context(both: Path, client_ca: Path | None = None) -> ssl.SSLContext:
    """What an engine shows; with `client_ca`, it wants a certificate of ours."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(both)
    if client_ca is not None:
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def certificate(name: str) -> bytes:
    """A self-signed certificate for localhost and its key, as PEM; `name` stands in it."""
    with tempfile.TemporaryDirectory() as folder:
        key, cert = Path(folder, "key.pem"), Path(folder, "cert.pem")
        whom = f"-subj /O={name}/CN=localhost -addext subjectAltName=DNS:localhost"
        _openssl(f"req -x509 {_NEW_KEY} -days 1 {whom} -keyout {key} -out {cert}")
        return key.read_bytes() + cert.read_bytes()


def _openssl(command: str) -> None:
    subprocess.run(["openssl", *command.split()], check=True, capture_output=True)
