"""Certificates for tests: authorities, and what they sign."""

from pathlib import Path

import trustme
from cryptography.hazmat.primitives import serialization


class Authority:
    """An authority, whose certificate is the file `path`."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._ca = trustme.CA()
        self.path = folder / f"{name}.pem"
        self._ca.cert_pem.write_to_path(self.path)

    def issue(self, name: str, host: str = "127.0.0.1") -> tuple[str, str]:
        """Write a certificate for `host` and its key; return the two files. Those of the same `name` are replaced."""
        made = self._ca.issue_cert(host)
        certificate, key = self._folder / f"{name}.cert.pem", self._folder / f"{name}.key.pem"
        for path, text in ((key, made.private_key_pem), (certificate, made.cert_chain_pems[0])):
            new = path.with_suffix(".new")
            text.write_to_path(new)
            new.replace(path)
        return str(certificate), str(key)


def lock(key: str) -> str:
    """Encrypt the key in this file with a password; return the file."""
    made = serialization.load_pem_private_key(Path(key).read_bytes(), None)
    how = serialization.BestAvailableEncryption(b"secret")
    Path(key).write_bytes(made.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how))
    return key
