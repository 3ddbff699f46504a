"""TLS contexts, for the listener and towards replicas."""

import ssl


class CertificateError(ValueError):
    """A certificate, key or CA file can't be used; the message names it."""


def tls_of_listener(cert: str, key: str | None) -> ssl.SSLContext:
    """What clients are shown. CertificateError."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    load_certificate(context, cert, key)
    return context


def load_certificate(context: ssl.SSLContext, cert: str, key: str | None) -> None:
    """Read the files (again): connections from now on get what they hold. CertificateError."""
    try:
        context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as exc:
        raise CertificateError(f"certificate {cert}: {exc}") from exc


def tls_to_replicas(ca: str | None, cert: str | None) -> ssl.SSLContext:
    """How replicas with https URLs are checked, and what they are shown. CertificateError."""
    try:
        context = ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as exc:
        raise CertificateError(f"CA file {ca}: {exc}") from exc
    if cert is not None:
        load_certificate(context, cert, None)
    return context
