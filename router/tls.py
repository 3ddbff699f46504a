"""TLS contexts, for the listener and towards replicas."""

import ssl


class CertificateError(ValueError):
    """A certificate, key or CA file can't be used; the message names it."""


class ListenerTls:
    """What clients are shown, and which certificates they must show. May be read again."""

    def __init__(self, cert: str, key: str | None, client_ca: str | None) -> None:
        """CertificateError. `client_ca`: clients need a certificate that it has signed."""
        self.context = self._current = _listener_context(cert, key, client_ca)
        # A CA can't be taken out of a context, so each connection is moved to the newest one.
        self.context.sni_callback = self._take_newest

    def reload(self, cert: str, key: str | None, client_ca: str | None) -> None:
        """Connections from now on. CertificateError: nothing has changed."""
        fresh = _listener_context(cert, key, client_ca)
        if fresh.verify_mode is not self.context.verify_mode:
            # a connection keeps the mode of the context that it began with
            raise CertificateError("listen.tls_client_ca comes and goes with a restart only")
        self._current = fresh

    def _take_newest(
        self, connection: ssl.SSLSocket | ssl.SSLObject, name: str | None, context: ssl.SSLContext
    ) -> None:
        connection.context = self._current


def _listener_context(cert: str, key: str | None, client_ca: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    load_certificate(context, cert, key)
    if client_ca is not None:
        _load_ca(context, client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
        # A session that is resumed is not verified again: it would outlive its CA.
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0
    return context


def tls_to_replicas(ca: str | None, cert: str | None) -> ssl.SSLContext:
    """How replicas with https URLs are checked, and what they are shown. CertificateError."""
    try:
        context = ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as exc:
        raise CertificateError(f"CA file {ca}: {exc}") from exc
    if cert is not None:
        load_certificate(context, cert, None)
    return context


def renew(context: ssl.SSLContext, ca: str | None, cert: str | None) -> None:
    """Add what the files hold now to a context towards replicas. CertificateError."""
    if ca is not None:
        _load_ca(context, ca)
    if cert is not None:
        load_certificate(context, cert, None)


def load_certificate(context: ssl.SSLContext, cert: str, key: str | None) -> None:
    """Read the files (again): connections from now on get what they hold. CertificateError."""
    try:
        context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as exc:
        raise CertificateError(f"certificate {cert}: {exc}") from exc


def _load_ca(context: ssl.SSLContext, ca: str) -> None:
    try:
        context.load_verify_locations(ca)
    except (OSError, ssl.SSLError) as exc:
        raise CertificateError(f"CA file {ca}: {exc}") from exc
