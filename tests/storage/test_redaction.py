"""Credentials are hidden: in URIs as SQLAlchemy, urllib and pyarrow read them, and known ones."""

import re
from urllib.parse import quote, urlsplit

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError
from urllib3.exceptions import LocationParseError
from urllib3.util import parse_url

from raysafl.storage.redaction import redacted

# Long enough that no other part of a URI or of a text holds it.
MARK = "hunter2hunter2"
HOST = "some-host.org"
SCHEMES = (
    "postgresql://",
    "mysql+pymysql://",
    "http://",
    "s3://",
    "gs://",
    "//",
    "s3:/",
)
TEXTS = (
    "{}",
    "cannot reach {}",
    "cannot reach {} because of 1 error",
    "Cannot parse URI: '{}' due to syntax error at character '/' (position 12)",
    "raysafl run f.py --tracking-uri={} --out s3://bucket/folder --gpus 1",
    "http://127.0.0.1/a or {} or ftp://elsewhere/file",
    '{{"uri": "{}"}}',
    "first line\nMLflow at {}\nlast line",
)
# White space and lines matter most: they are the only letters that end a URI in a text.
LETTERS = st.sampled_from([*"a1:/@?#;&=%'\"\\[]<>+ ", "://", "5000/", "é"])


def around(mark: str) -> st.SearchStrategy[str]:
    """Texts that hold the mark."""
    letters = st.lists(LETTERS, max_size=6).map("".join)
    return st.tuples(letters, st.just(mark), letters).map("".join)


@given(
    scheme=st.sampled_from(SCHEMES),
    user=st.sampled_from(["", "me", "a.b-c", "me%40x.org"]),
    password=around(MARK),
    encoded=st.booleans(),
    text=st.sampled_from(TEXTS),
)
@settings(max_examples=100)
@example("mysql+pymysql://", "me", f"pa@ss/{MARK} word", False, TEXTS[1])
@example("//", "me", MARK, False, TEXTS[1])
def test_a_password_of_any_letters_is_hidden_and_its_host_is_shown(
    scheme: str, user: str, password: str, encoded: bool, text: str
) -> None:
    # Behind a raw `@`, this looks like the host and then another URI.
    assume(not re.search(r"@.*\s\S*//", password))
    written = quote(password, safe="") if encoded else password
    shown = redacted(text.format(f"{scheme}{user}:{written}@{HOST}:5000/a/b"))
    assert MARK not in shown
    # If one of these stands before the `@`, the host may be a part of the query.
    if not re.search("[?#;]", written):
        assert f"{HOST}:5000/a/b" in shown
    if encoded:
        assert text.format(f"{scheme}{HOST}:5000/a/b") == shown


@given(
    scheme=st.sampled_from(SCHEMES),
    before=st.sampled_from(["?", "?a=b&", "#", ";", ";v=1;", "/x?", "/x;a?b=c#"]),
    name=st.sampled_from(["token", "password", "secret_key", "sig", "anything"]),
    value=st.lists(st.sampled_from([*"a1:/?#;&=%+"]), max_size=5).map("".join),
    text=st.sampled_from(TEXTS),
)
@example("http://", ";", "token", "", TEXTS[2])
def test_parameters_query_and_fragment_are_hidden(
    scheme: str, before: str, name: str, value: str, text: str
) -> None:
    uri = f"{scheme}{HOST}{before}{name}={value}{MARK}"
    shown = redacted(text.format(uri))
    assert MARK not in shown
    assert f"{scheme}{HOST}" in shown


def password(uri: str) -> str:
    try:
        return str(make_url(uri).password or "")
    except (ArgumentError, ValueError):
        return ""


def read_as_secrets(uri: str) -> list[str]:
    """What three parsers take as the password, the parameters, the query or the fragment."""
    found: list[str | None] = []
    try:
        url = make_url(uri)
        found += [str(url.password or ""), str(url.query)]
    except (ArgumentError, ValueError):
        pass
    try:
        parts = urlsplit(uri)
        found += [parts.password, parts.query, parts.fragment]
    except ValueError:
        pass
    try:
        parsed = parse_url(uri)
        found += [(parsed.auth or "").partition(":")[2], parsed.query, parsed.fragment]
    except (LocationParseError, ValueError):
        pass
    return [secret for secret in found if secret]


PIECES = ["u", "b.org", "5000", "a=", *":/@?#;&'\"[] \n\t", "//"]


def uris(pieces: list[str]) -> st.SearchStrategy[str]:
    """Anything that begins like a URI and holds the mark somewhere."""
    rest = st.lists(st.sampled_from(pieces), max_size=5).map("".join)
    scheme = st.sampled_from(["pg+x://", "http://", "//", "s3://"])
    return st.tuples(scheme, rest, st.just(MARK), rest).map("".join)


@given(uris(PIECES))
@settings(max_examples=100, suppress_health_check=[HealthCheck.filter_too_much])
@example(f"pg+x://u:5000\n{MARK}@b.org")
@example(f"pg+x://b.org/a b?a= {MARK}")
def test_what_any_parser_reads_as_a_secret_is_hidden(uri: str) -> None:
    assume(any(MARK in secret for secret in read_as_secrets(uri)))
    # White space before slashes ends a URI and begins another.
    assume(not re.search(r"\s\S*//|//\s", uri))
    assert MARK not in redacted(uri)


@given(uris([piece for piece in PIECES if piece != "\n"]))
@settings(max_examples=100, suppress_health_check=[HealthCheck.filter_too_much])
@example(f"pg+x://me:5000 a/{MARK} b@b.org")
def test_within_a_text_white_space_ends_all_of_a_uri_but_a_password(uri: str) -> None:
    assume(any(MARK in secret for secret in read_as_secrets(uri)))
    assume(not re.search(r"@.*\s\S*//|//\s", uri))
    has_white_space = re.search(r"\s", uri.partition(MARK)[0])
    assume(MARK in password(uri) or not has_white_space)
    assert MARK not in redacted(f"cannot reach {uri} now")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://key:secret@bucket/x", "s3://bucket/x"),
        (
            "run f.py --out s3://b/x?key=abc --gpus 1",
            "run f.py --out s3://b/x --gpus 1",
        ),
        ("http://u:p@h/ and s3://k:s@b/c", "http://h/ and s3://b/c"),
        ("https://TOKEN@github.com/x", "https://github.com/x"),
        ("at http://me:hunt", "at http://"),
        ("x?token=abc (Caused by it)", "x?token=*** (Caused by it)"),
        ("connect(password='a b', port=1)", "connect(password=***, port=1)"),
        ("https://h/x?token=a is down (f.py:9)", "https://h/x"),
        ("no https://h/x?token=a: down (f.py:9)", "no https://h/x down (f.py:9)"),
        ("no 'https://h/x?a=b c': down", "no 'https://h/x': down"),
    ],
)
def test_the_rest_of_a_text_stays(text: str, shown: str) -> None:
    assert redacted(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "sqlite:////home/ann@work/mlflow.db",
        "at http://[::1]:5000/x, http://127.0.0.1:5000. Is it up? Perhaps; see above",
        'File "/home/ann/x.py", line 3, in f\n    y = a // 2\n    @wraps\n',
        "1,234 of 5 runs: 1/2 done, 'q=0.5' -> 0.9; a@b.org",
        "file:///tmp/results/s",
        "",
    ],
)
def test_a_text_without_credentials_stays_as_it_is(text: str) -> None:
    assert redacted(text) == text


def test_secrets_of_the_environment_are_hidden_wherever_they_stand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalr/XUtn+FEMI")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "correct horse")
    monkeypatch.setenv("HF_TOKEN", "on")
    monkeypatch.setenv("DATABASE_URL", "postgresql://me:staple%40battery@h/d")
    text = "wJalr/XUtn+FEMI, wJalr%2FXUtn%2BFEMI; correct horse, staple@battery is on"
    assert redacted(text) == "***, ***; ***, *** is on"


def test_credentials_of_the_uri_in_question_are_hidden_wherever_they_stand() -> None:
    uri = f"postgresql://me:pa@{MARK}/word@host/db?token=0123456789"
    text = f'could not translate host name "{MARK}", 0123456789'
    assert redacted(text, uri) == 'could not translate host name "***", ***'


def test_hiding_twice_is_hiding_once() -> None:
    for text in (f"a http://u:{MARK}@h/x?y=z b", f"token={MARK}"):
        assert redacted(redacted(text)) == redacted(text)
