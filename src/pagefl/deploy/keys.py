"""A CA for the federation, the server's certificate, a key for each node, and secrets for the executors."""

import os
import secrets
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from tempfile import mkdtemp

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from pagefl.core.errors import UserError

DAYS = 365
SECRET_BYTES = 32
CA, CA_KEY, SERVER, SERVER_KEY, SERVER_SECRET = (
    "ca.pem",
    "ca.key",
    "server.pem",
    "server.key",
    "server.secret",
)


def node_secret(number: int) -> str:
    return f"node-{number}.secret"


def node_key(number: int) -> str:
    return f"node-{number}.key"


def make(folder: Path, hosts: list[str], nodes: int) -> list[Path]:
    """Make all of them, for a server with these names and addresses. Existing keys are never replaced."""
    if folder.exists() and any(folder.iterdir()):
        raise UserError(
            f"out = {folder}: the folder is not empty, and new keys would lock out who has old ones; "
            "choose another"
        )
    for host in hosts:
        if not host.isascii() or not 0 < len(host) <= 64:  # limits of a certificate
            raise UserError(f"--host {host}: expected a name or an address of at most 64 ASCII characters")
    folder.parent.mkdir(parents=True, exist_ok=True)
    # mkdtemp: only its owner can read the folder.
    final, folder = folder, Path(mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    ca_key, server_key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "pagefl federation CA")])
    basic = x509.BasicConstraints(ca=True, path_length=0)
    own = _certificate(ca_name, ca_name, ca_key, ca_key).add_extension(basic, critical=True)
    ca = own.add_extension(_usage(signs=True), critical=True).sign(ca_key, hashes.SHA384())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0])])
    server = _certificate(name, ca_name, server_key, ca_key)
    server = server.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    server = server.add_extension(
        x509.SubjectAlternativeName([_name(host) for host in hosts]), critical=False
    )
    server = server.add_extension(_usage(signs=False), critical=True)
    server = server.add_extension(
        x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
    )
    pem = serialization.Encoding.PEM
    written = [
        _secret(folder / CA_KEY, _private(ca_key, serialization.PrivateFormat.PKCS8)),
        _secret(folder / SERVER_KEY, _private(server_key, serialization.PrivateFormat.PKCS8)),
        _secret(folder / SERVER_SECRET, secrets.token_bytes(SECRET_BYTES)),
        _public(folder / SERVER, server.sign(ca_key, hashes.SHA384()).public_bytes(pem)),
    ]
    for number in range(nodes):
        key = ec.generate_private_key(ec.SECP384R1())  # the curve that Flower's nodes use
        openssh = key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
        path = folder / node_key(number)
        written += [
            _secret(path, _private(key, serialization.PrivateFormat.OpenSSH)),
            _public(path.with_suffix(".pub"), openssh),
            _secret(folder / node_secret(number), secrets.token_bytes(SECRET_BYTES)),
        ]
    written.append(_public(folder / CA, ca.public_bytes(pem)))
    folder.replace(final)  # all files, or none
    return [final / path.name for path in written]


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, ca_key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=DAYS))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
        )
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    no = dict.fromkeys(
        [
            "content_commitment",
            "key_encipherment",
            "data_encipherment",
            "key_agreement",
            "encipher_only",
            "decipher_only",
        ],
        False,
    )
    return x509.KeyUsage(digital_signature=not signs, key_cert_sign=signs, crl_sign=signs, **no)


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _private(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _secret(path: Path, content: bytes) -> Path:
    """Write a file that others cannot read at any moment."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    return path


def _public(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path
