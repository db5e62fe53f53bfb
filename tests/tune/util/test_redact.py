"""No secret of an address is shown, and what is harmless stays readable."""

import urllib.parse

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tune.util.redact import hide_password, without_password


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://hf_token@host/x", "https://***@host/x"),
        ("https://token:@host/x", "https://***@host/x"),
        # What no server takes, but people type.
        ("s3://AKIA:se/cret@bucket/x", "s3://AKIA:***@bucket/x"),
        ("[https://a:b@c/x,https://d:e@f/y]", "[https://a:***@c/x,https://d:***@f/y]"),
        # No user.
        ("http://host:5000/people/me@home", "http://host:5000/people/me@home"),
        ("postgresql://me:12/34@db/x", "postgresql://me:***@db/x"),
        ("sqlite:////home/me@corp/mlflow.db", "sqlite:////home/me@corp/mlflow.db"),
        # Queries.
        ("postgresql://db/x?user=me&password=pw", "postgresql://db/x?user=me&password=***"),
        ("postgresql://db/x?sslmode=require&sslkey=k", "postgresql://db/x?sslmode=require&sslkey=***"),
        ("https://host/x?api_key=pw: not found", "https://host/x?api_key=*** not found"),
        ("s3://b/x?access_key=k&region=eu-west-1", "s3://b/x?access_key=***&region=eu-west-1"),
        ("https://host/x?loose", "https://host/x?***"),
        # What stands in a harmless one may yet be a secret.
        ("s3://b?endpoint_override=http://127.0.0.1:9000", "s3://b?endpoint_override=http://127.0.0.1:9000"),
        ("s3://b?endpoint_override=http%3A%2F%2Fme%3Apw%40h", "s3://b?endpoint_override=***"),
        ("s3://b?endpoint_override=http://me:pw@h&region=x", "s3://b?endpoint_override=***&region=x"),
    ],
)
def test_what_is_shown(text: str, expected: str) -> None:
    assert hide_password(text) == expected


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("https://me:pw@host/mlflow/", "https://host/mlflow"),
        ("http://host:5000/me@home", "http://host:5000/me@home"),
        ("sqlite:////home/me@corp/m.db", "sqlite:////home/me@corp/m.db"),
        ("databricks", "databricks"),
    ],
)
def test_what_a_file_holds(address: str, expected: str) -> None:
    assert without_password(address) == expected


PRINTABLE = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=40)
SHORT_KEYS = st.text(st.characters(categories=("L",)), min_size=1, max_size=3).filter(
    lambda key: key.lower() != "uri"
)
RAW = "@:!$&'()*+,;="
"""Besides letters and figures, what some or all programs take as it is in a password."""
SCHEMES = st.sampled_from(["https", "postgresql", "mysql+pymysql", "s3", "redis"])


@given(
    password=PRINTABLE,
    safe=st.sampled_from(["", "@:", RAW]),
    scheme=SCHEMES,
    user=st.sampled_from(["", "me"]),
)
@example(password="80", safe="", scheme="https", user="me")
@example(password="a@b:c@", safe="@:", scheme="postgresql", user="me")
def test_no_password_is_ever_shown(password: str, safe: str, scheme: str, user: str) -> None:
    written = urllib.parse.quote(password, safe=safe)
    place = "db.example:5432/x?sslmode=require"
    text = f"cannot open {scheme}://{user}:{written}@{place} now"
    assert hide_password(text) == f"cannot open {scheme}://{user}:***@{place} now"
    assert without_password(f"{scheme}://{user}:{written}@{place}") == f"{scheme}://{place}"


@given(password=PRINTABLE, key=SHORT_KEYS, safe=st.sampled_from(["", "@:/?"]))
@example(password="pw", key="sig", safe="")
def test_no_value_of_an_unknown_key_is_ever_shown(password: str, key: str, safe: str) -> None:
    name, value = urllib.parse.quote(key), urllib.parse.quote(password, safe=safe)
    text = f"https://host/x?region=eu&{name}={value}&mode=ro"
    assert hide_password(text) == f"https://host/x?region=eu&{name}=***&mode=ro"
