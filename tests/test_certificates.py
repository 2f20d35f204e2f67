"""Certificates are read once in a process, and again where the user says that they are elsewhere."""

from pathlib import Path

import httpx2
import pytest

from resilisim.certificates import trusted_certificates


def test_certificates_are_read_once_and_are_those_that_the_environment_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    ours = trusted_certificates(httpx2)
    assert trusted_certificates(httpx2) is ours
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    elsewhere = trusted_certificates(httpx2)
    assert elsewhere is not ours
    assert elsewhere.get_ca_certs() == []
    monkeypatch.delenv("SSL_CERT_DIR")
    assert trusted_certificates(httpx2) is ours
