"""A stand-in for Vertex AI on this machine: the real SDK talks to it as to Google, over gRPC with TLS.

On free ports: a gRPC server with the persistent resources, operations and projects APIs; an HTTP proxy that takes the
connections for *.googleapis.com to it (gRPC honours `grpc_proxy`); a token endpoint, and a TLS front for a Ray
dashboard that demands the token, as Google's proxy before a cluster's dashboard does.
"""

from __future__ import annotations

import datetime
import json
import select
import socket
import ssl
import threading
from collections.abc import Callable
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa

if TYPE_CHECKING:  # seconds to import: inside the functions, so that other tests do not wait for it
    from google.cloud.aiplatform_v1beta1.types.persistent_resource import PersistentResource

TOKEN = "token-of-the-stand-in"
PROJECT, NUMBER = "speech-lab", "123456789"
_HOSTS = ("us-central1-aiplatform.googleapis.com", "cloudresourcemanager.googleapis.com", "localhost")


class VertexServer:
    """The stand-in; `environment` makes a process use it, `requests` holds the names of the calls that came."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.resources: dict[str, PersistentResource] = {}
        self.requests: list[str] = []
        self.error: tuple[grpc.StatusCode, str] | None = None
        """What every call of the persistent resources API fails with, while set."""
        self._stopped = threading.Event()
        key, certificate = _certificate(folder)
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(certificate, key)
        self._grpc = grpc.server(futures.ThreadPoolExecutor(8))
        self._grpc.add_generic_rpc_handlers(self._handlers())
        pair = [(key.read_bytes(), certificate.read_bytes())]
        self.grpc_port = self._grpc.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials(pair))
        self._grpc.start()
        self.proxy_port = self._listen(self._proxy)
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _TokenEndpoint)
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        self.credentials = folder / "service_account.json"
        self.credentials.write_text(json.dumps(self._service_account()))

    def environment(self) -> dict[str, str]:
        """Variables that lead Google's libraries here; none of them is our own."""
        certificate = str(self.folder / "certificate.pem")
        return {
            "GOOGLE_APPLICATION_CREDENTIALS": str(self.credentials),
            "GOOGLE_CLOUD_PROJECT": PROJECT,
            "GOOGLE_CLOUD_REGION": "us-central1",
            "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": certificate,
            "grpc_proxy": f"http://127.0.0.1:{self.proxy_port}",
            "REQUESTS_CA_BUNDLE": certificate,
            "SSL_CERT_FILE": certificate,
        }

    def close(self) -> None:
        """End everything that was started."""
        self._stopped.set()
        self._grpc.stop(None)
        self._http.shutdown()
        self._http.server_close()

    def put(self, resource: PersistentResource, name: str, dashboard: str | None = None) -> None:
        """Have a cluster of this name, running, with its dashboard at an address."""
        resource.name = f"projects/{NUMBER}/locations/us-central1/persistentResources/{name}"
        resource.state = resource.state or 3  # RUNNING
        if dashboard:
            resource.resource_runtime.access_uris["RAY_DASHBOARD_URI"] = dashboard
        self.resources[name] = resource

    def dashboard_front(self, dashboard_port: int, token: str = TOKEN) -> str:
        """A TLS front before a Ray dashboard that lets in who brings the token; its `HOST:PORT`."""

        def serve(connection: socket.socket) -> None:
            with self._tls.wrap_socket(connection, server_side=True) as secure:
                head = secure.recv(65536)
                self.requests.append("dashboard " + head.split(b" HTTP")[0].decode())
                if f"authorization: bearer {token}".encode() not in head.lower():
                    secure.sendall(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")
                    return
                with socket.create_connection(("127.0.0.1", dashboard_port)) as inner:
                    inner.sendall(head)
                    _pump(secure, inner, self._stopped)

        return f"localhost:{self._listen(serve)}"

    def _listen(self, serve: Callable[[socket.socket], None]) -> int:
        listener = socket.create_server(("127.0.0.1", 0))
        listener.settimeout(0.2)

        def accept() -> None:
            with listener:
                while not self._stopped.is_set():
                    try:
                        connection, _ = listener.accept()
                    except TimeoutError:
                        continue
                    threading.Thread(target=_serve_one, args=(serve, connection), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        return int(listener.getsockname()[1])

    def _proxy(self, connection: socket.socket) -> None:
        """CONNECT to any of Google's hosts comes out at our gRPC server; the host is noted."""
        with connection, socket.create_connection(("127.0.0.1", self.grpc_port)) as inner:
            head = connection.recv(65536).decode()
            host = head.split()[1].rpartition(":")[0]
            if host not in _HOSTS:
                connection.sendall(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
                return
            self.requests.append(f"connect {host}")
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            _pump(connection, inner, self._stopped)

    def _handlers(self) -> list[grpc.GenericRpcHandler]:
        from google.cloud.aiplatform_v1beta1.types import persistent_resource_service as service
        from google.cloud.aiplatform_v1beta1.types.persistent_resource import PersistentResource
        from google.cloud.resourcemanager_v3.types import projects
        from google.longrunning import operations_pb2

        operation = operations_pb2.Operation.SerializeToString
        project = projects.Project(name=f"projects/{NUMBER}", project_id=PROJECT)
        unary = grpc.unary_unary_rpc_method_handler
        services = {
            "google.cloud.aiplatform.v1beta1.PersistentResourceService": {
                f"{word}PersistentResource": unary(
                    self._checked(answer),
                    getattr(service, f"{word}PersistentResourceRequest").deserialize,
                    PersistentResource.serialize if word == "Get" else operation,
                )
                for word, answer in (
                    ("Get", self._get),
                    ("Create", self._create),
                    ("Update", self._update),
                    ("Delete", self._delete),
                )
            },
            "google.longrunning.Operations": {
                "GetOperation": unary(
                    lambda request, _: self._operation(request.name, done=True),
                    operations_pb2.GetOperationRequest.FromString,
                    operation,
                )
            },
            "google.cloud.resourcemanager.v3.Projects": {
                "GetProject": unary(
                    lambda *_: project, projects.GetProjectRequest.deserialize, projects.Project.serialize
                )
            },
        }
        return [grpc.method_handlers_generic_handler(name, calls) for name, calls in services.items()]

    def _checked(self, answer: Callable[..., Any]) -> Callable[..., Any]:
        def call(request: Any, context: grpc.ServicerContext) -> Any:
            self.requests.append(answer.__name__.strip("_"))
            if self.error:
                context.abort(*self.error)
            if not dict(context.invocation_metadata()).get("authorization", "").startswith("Bearer "):
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "no token")
            return answer(request, context)

        return call

    def _find(self, name: str, context: grpc.ServicerContext) -> PersistentResource:
        short = name.rpartition("/")[2]
        if name.split("/")[1] not in (PROJECT, NUMBER) or short not in self.resources:
            context.abort(grpc.StatusCode.NOT_FOUND, "The PersistentResource does not exist.")
        return self.resources[short]

    def _get(self, request: Any, context: grpc.ServicerContext) -> PersistentResource:
        return self._find(request.name, context)

    def _create(self, request: Any, context: grpc.ServicerContext) -> Any:
        if request.persistent_resource_id in self.resources:
            context.abort(grpc.StatusCode.ALREADY_EXISTS, "exists")
        self.put(request.persistent_resource, request.persistent_resource_id, "localhost:1")
        return self._operation(request.persistent_resource_id, done=False)

    def _update(self, request: Any, context: grpc.ServicerContext) -> Any:
        resource = self._find(request.persistent_resource.name, context)
        assert list(request.update_mask.paths) == ["resource_pools.replica_count"]
        for pool, wanted in zip(
            resource.resource_pools, request.persistent_resource.resource_pools, strict=True
        ):
            pool.replica_count = wanted.replica_count
        return self._operation(resource.name.rpartition("/")[2], done=False)

    def _delete(self, request: Any, context: grpc.ServicerContext) -> Any:
        name = self._find(request.name, context).name.rpartition("/")[2]
        del self.resources[name]
        return self._operation(name, done=False)

    def _operation(self, name: str, *, done: bool) -> Any:
        from google.longrunning import operations_pb2

        operation = operations_pb2.Operation(name=name, done=done)
        if done and name in self.resources:
            resource = self.resources[name]
            operation.response.Pack(type(resource).pb(resource))
        return operation

    def _service_account(self) -> dict[str, str]:
        port = self._http.server_address[1]
        return {
            "type": "service_account",
            "project_id": PROJECT,
            "private_key_id": "1",
            "private_key": (self.folder / "key.pem").read_text(),
            "client_email": f"tests@{PROJECT}.iam.gserviceaccount.com",
            "client_id": "1",
            "token_uri": f"http://127.0.0.1:{port}/token",
        }


class _TokenEndpoint(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        body = json.dumps({"access_token": TOKEN, "expires_in": 3600, "token_type": "Bearer"}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Keep the test's output clean."""


def _serve_one(serve: Callable[[socket.socket], None], connection: socket.socket) -> None:
    try:
        serve(connection)
    except OSError:  # the client went away
        connection.close()


def _pump(one: socket.socket, other: socket.socket, stopped: threading.Event) -> None:
    """Carry bytes both ways until either side closes."""
    while not stopped.is_set():
        pending = isinstance(one, ssl.SSLSocket) and one.pending() > 0
        ready = [one] if pending else select.select([one, other], [], [], 0.2)[0]
        for source in ready:
            data = source.recv(65536)
            if not data:
                return
            (other if source is one else one).sendall(data)


def _certificate(folder: Path) -> tuple[Path, Path]:
    """A key and a certificate for Google's hosts and localhost that signs itself; nobody else trusts it."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "stand-in for tests")])
    now = datetime.datetime.now(datetime.timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host) for host in _HOSTS]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "key.pem", folder / "certificate.pem"
    paths[0].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    paths[1].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return paths
