"""Secrets in addresses: what may stand in a file or on a screen.

By an allow-list: what is not known to be harmless is taken for a secret. Where an address can be read in two ways,
more is hidden than need be.
"""

from __future__ import annotations

import re
import urllib.parse

_HIDDEN = "***"
_HARMLESS = frozenset(
    (
        # object stores
        *("endpoint_override", "endpoint", "endpoint_url", "scheme", "region", "retry_limit_seconds"),
        # databases
        *("host", "hostaddr", "port", "dbname", "database", "user", "username", "driver", "charset"),
        *("collation", "client_encoding", "application_name"),
        *("target_session_attrs", "unix_socket", "load_balance_hosts"),
        *("sslmode", "sslrootcert", "sslcert", "sslcrl", "sslsni", "ssl_ca", "ssl_cert", "ssl_disabled"),
        *("ssl_check_hostname", "ssl_verify_cert", "ssl_verify_identity", "ssl_mode", "channel_binding"),
        *("gssencmode", "keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count"),
        *("tcp_user_timeout", "encrypt", "trustservercertificate", "trusted_connection", "autocommit"),
        *("timeout", "connect_timeout", "read_timeout", "write_timeout", "isolation_level", "local_infile"),
        *("check_same_thread", "uri", "mode", "cache", "immutable"),
        # MLflow's pages
        *("viewstatesharekey", "workflowtype", "workspace"),
    )
)
"""Keys of a query, in small letters, whose values are no secrets."""
_HARMLESS_VALUE = re.compile(r"[\w.:/+,~ -]*['\")\]>]*[.,:;]?")
"""Of such a key: nothing in which an address with a user, or a second pair, can hide; a text's punctuation after it."""
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_SERVERS = frozenset(("http", "https", "ws", "wss", "ray", "hdfs", "webhdfs", "ftp", "sftp", "ssh", "smb"))
"""Schemes of addresses that have a path of any letters, and a port's figures, no password, behind a `:`."""
_REST = re.compile(r"\S*")
_HOST = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(:\d*)?")
_PAIR = re.compile(r"([?&])([^\s?&=#]+)=([^\s&#]+)")
_FIRST_WITHOUT_KEY = re.compile(r"(://[^\s?#]*\?)[^\s&=#]+(?=[\s&#]|$)")


def hide_password(text: str) -> str:
    """`text` with the passwords and other secrets of every address in it replaced by `***`."""
    return _hide_values(_replace_users(text, f"{_HIDDEN}@"))


def without_password(uri: str) -> str:
    """The address of a server without user and secrets: what a browser is given and a file may hold."""
    return _hide_values(_replace_users(uri, None)).rstrip("/")


def _replace_users(text: str, hidden: str | None) -> str:
    """`text` with `hidden` for the password or token of each address, its user kept; with None neither is."""
    parts, done = [], 0
    while scheme := _SCHEME.search(text, done):
        begin = scheme.end()
        length = _user_info(scheme[1].lower(), _REST.match(text, begin)[0])  # type: ignore[index]  # it may be empty
        parts.append(text[done:begin])
        if length and hidden is not None:
            user, colon, password = text[begin : begin + length - 1].partition(":")
            parts.append(f"{user}:{hidden}" if colon and password else hidden)
        done = begin + length
    return "".join([*parts, text[done:]])


def _user_info(scheme: str, rest: str) -> int:
    """Length of user and password with the `@` behind them, in what follows `://`; 0 where there are none.

    They end at the last `@` before the path. A password with a `/` of its own is none that a web server takes; some
    databases do, and people type it anywhere: then they end at the last `@` of all.
    """
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if scheme in _SERVERS and "@" in authority:
        return authority.rindex("@") + 1
    host_alone = "@" not in authority and (":" not in authority or scheme in _SERVERS)
    if "@" not in rest or (host_alone and _HOST.fullmatch(authority)):
        return 0
    return rest.rindex("@") + 1


def _hide_values(text: str) -> str:
    """`text` without the values of a query's keys, but for harmless ones, and without a query that has no key."""
    return _PAIR.sub(_shown_pair, _FIRST_WITHOUT_KEY.sub(rf"\1{_HIDDEN}", text))


def _shown_pair(match: re.Match[str]) -> str:
    mark, key, value = match.groups()
    harmless = key.lower() in _HARMLESS and _HARMLESS_VALUE.fullmatch(urllib.parse.unquote_plus(value))
    return f"{mark}{key}={value if harmless else _HIDDEN}"
