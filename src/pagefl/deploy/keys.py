"""A CA for the federation, the server's certificate, a key for each node, and secrets for the executors."""

import os
import secrets
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from tempfile import mkdtemp

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from pagefl.core.errors import UserError
from pagefl.core.files import write_whole

DAYS, WARN_DAYS = 365, 30
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
    _check_hosts(hosts)
    folder.parent.mkdir(parents=True, exist_ok=True)
    # mkdtemp: only its owner can read the folder.
    final, folder = folder, Path(mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    ca_key, server_key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    ca, server = _certificates(ca_key, server_key, hosts)
    written = [
        _secret(folder / CA_KEY, _private(ca_key, serialization.PrivateFormat.PKCS8)),
        _secret(folder / SERVER_KEY, _private(server_key, serialization.PrivateFormat.PKCS8)),
        _secret(folder / SERVER_SECRET, secrets.token_bytes(SECRET_BYTES)),
        _public(folder / SERVER, server),
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
    written.append(_public(folder / CA, ca))
    folder.replace(final)  # all files, or none
    return [final / path.name for path in written]


def renew(folder: Path, hosts: list[str]) -> list[Path]:
    """Give the CA's and the server's certificates a new end. All keys stay, so nobody is locked out.

    `hosts`: the server's names and addresses; empty: as before. A node goes on with its old CA certificate
    until that one ends.
    """
    _check_hosts(hosts)
    try:
        ca_key, server_key = (
            serialization.load_pem_private_key((folder / name).read_bytes(), None)
            for name in (CA_KEY, SERVER_KEY)
        )
        before = x509.load_pem_x509_certificate((folder / SERVER).read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(
            f"out = {folder}: its certificates cannot be renewed ({error}); expected {CA_KEY}, {SERVER_KEY} "
            f"and {SERVER} of `pagefl deploy keys`"
        ) from error
    assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
    assert isinstance(server_key, ec.EllipticCurvePrivateKey)
    if not hosts:
        known = before.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        hosts = [str(name.value) for name in known]
    ca, server = _certificates(ca_key, server_key, hosts)
    write_whole(folder / CA, ca.decode())
    write_whole(folder / SERVER, server.decode())
    return [folder / CA, folder / SERVER]


def warnings(folder: Path) -> list[str]:
    """A sentence for each certificate that has ended, or will soon."""
    found = []
    for path in (folder / CA, folder / SERVER):
        if not path.exists():
            continue
        end = x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
        left = (end - datetime.now(UTC)).days
        if left < WARN_DAYS:
            when = f"ends in {left} days" if left >= 0 else "has ended"
            found.append(f"{path} {when}, {end:%Y-%m-%d}; `pagefl deploy keys --renew` gives it a new end")
    return found


def numbers(folder: Path) -> dict[bytes, int]:
    """The clients' numbers by their public keys, in Flower's form. A client's file is node-NUMBER.pub."""
    found: dict[bytes, int] = {}
    for path in sorted(folder.glob("node-*.pub")):
        number = path.stem.removeprefix("node-")
        try:
            key = serialization.load_ssh_public_key(path.read_bytes()).public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
        except (OSError, ValueError, UnsupportedAlgorithm) as error:
            raise UserError(f"{path}: it cannot be read ({error}); expected a public key") from error
        if not number.isdecimal() or key in found:
            raise UserError(f"{path}: expected node-NUMBER.pub, and another key for each client")
        found[key] = int(number)
    if not found:
        raise UserError(
            f"keys = {folder}: it has no public keys; expected node-0.pub, node-1.pub, …, one for each client"
        )
    return found


def _check_hosts(hosts: list[str]) -> None:
    for host in hosts:
        if not host.isascii() or not 0 < len(host) <= 64:  # limits of a certificate
            raise UserError(f"--host {host}: expected a name or an address of at most 64 ASCII characters")


def _certificates(
    ca_key: ec.EllipticCurvePrivateKey, server_key: ec.EllipticCurvePrivateKey, hosts: list[str]
) -> tuple[bytes, bytes]:
    """The CA's and the server's, valid from now on."""
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "pagefl federation CA")])
    basic = x509.BasicConstraints(ca=True, path_length=0)
    own = _certificate(ca_name, ca_name, ca_key, ca_key).add_extension(basic, critical=True)
    own = own.add_extension(_usage(signs=True), critical=True)
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
    ca, signed = (
        builder.sign(ca_key, hashes.SHA384()).public_bytes(serialization.Encoding.PEM)
        for builder in (own, server)
    )
    return ca, signed


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
