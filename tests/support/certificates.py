"""Certificates for tests: authorities, and what they sign."""

import datetime as dt
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """An authority, whose certificate is the file `path`."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._signed(self._name, self._key.public_key(), is_authority=True)
        self.path = folder / f"{name}.pem"
        self.path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def _signed(
        self, name: x509.Name, key: ec.EllipticCurvePublicKey, *, is_authority: bool, host: str | None = None
    ) -> x509.Certificate:
        now = dt.datetime.now(dt.UTC)
        made = x509.CertificateBuilder().subject_name(name).issuer_name(self._name).public_key(key)
        made = made.serial_number(x509.random_serial_number())
        hour = dt.timedelta(hours=1)
        made = made.not_valid_before(now - hour).not_valid_after(now + 24 * hour)
        made = made.add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        made = made.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        made = made.add_extension(issuer, critical=False)
        if is_authority:
            usage = x509.KeyUsage(
                digital_signature=True,
                key_cert_sign=True,
                crl_sign=True,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                encipher_only=False,
                decipher_only=False,
            )
            made = made.add_extension(usage, critical=True)
        if host is not None:
            name_of = x509.IPAddress(ip_address(host)) if host[0].isdigit() else x509.DNSName(host)
            made = made.add_extension(x509.SubjectAlternativeName([name_of]), critical=False)
        return made.sign(self._key, hashes.SHA256())

    def issue(self, name: str, host: str | None = "127.0.0.1", password: bytes | None = None) -> tuple[str, str]:
        """Write a certificate for `name` and its key; return the two files. Those of the same name are replaced."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._signed(subject, key.public_key(), is_authority=False, host=host)
        cert_path, key_path = self._folder / f"{name}.cert.pem", self._folder / f"{name}.key.pem"
        how = serialization.NoEncryption() if password is None else serialization.BestAvailableEncryption(password)
        for path, text in (
            (key_path, key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how)),
            (cert_path, certificate.public_bytes(serialization.Encoding.PEM)),
        ):
            new = path.with_suffix(".new")
            new.write_bytes(text)
            new.replace(path)
        return str(cert_path), str(key_path)


def make_certificates(folder: Path) -> Path:
    """Write `ca.pem`, and `.pem` and `.key` of `server` and `client`, into the new `folder`; return it."""
    folder.mkdir(parents=True)
    authority = Authority(folder, "ca")
    for name, host in (("server", "127.0.0.1"), ("client", None)):
        certificate, key = map(Path, authority.issue(name, host))
        certificate.rename(folder / f"{name}.pem")
        key.rename(folder / f"{name}.key")
    return folder
