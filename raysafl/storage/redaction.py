"""Text that others may read holds no credentials: those in URIs and known ones are hidden."""

import os
import re
from functools import lru_cache
from urllib.parse import quote, quote_plus, unquote

# What stands in place of a secret outside of a URI.
HIDDEN = "***"
# A shorter secret may be a part of ordinary words, and is hidden in URIs only.
SHORTEST_SECRET = 6
SECRET = (
    "(?i:secret|password|passwd|passphrase|token|_pwd|[_-]key|signature|credential"
    "|connection_string)"
)
# The name of a variable or of a parameter that holds a secret.
SECRET_NAME = re.compile(rf"{SECRET}$")
# Such a parameter, `token=...` or `'token': ...`, and its value.
NAMED_VALUE = re.compile(
    rf"""({SECRET}(?:=|['"]:)\s*)(?:'[^'\n]*'|"[^"\n]*"|[^\s&;,)'"]+)"""
)
# Where a URI begins: `scheme://`, `//`, or the `s3:/` that a Path makes of a URI.
URI = r"(?:(?<![\w+.-])[\w+.-]+:/+|(?<![:/])//+(?!\s))"
# Schemes whose URIs hold no white space. A database's may.
WEB = r"(?:(?:https?|s3|gs|abfss?):|//)"
# The letters of `user:password@` as SQLAlchemy reads it.
USER = r"(?:(?![:/]).)*"
PASSWORD = r"(?:(?!@).)*"
# What a password with a raw `@` may go on with, unless another URI begins.
MORE = r"(?:(?!\s\S*//).)*"
# The letters of a URI in quotes, which may hold quotes within words.
QUOTED = r"(?:(?!\2(?!\w)).)"
# What is hidden of a URI; the first group of each pattern is shown. Behind three slashes
# there is a path, in which `@` is a letter like others.
# Is the `?` in a password, or the `@` in a query? Nothing but the scheme is shown.
UNCLEAR = (
    rf"({URI})(?<!///)(?:{USER}[?#;]{USER}:{PASSWORD}"
    rf"|{USER}:{PASSWORD}[?#;]{PASSWORD}|{USER}:{PASSWORD}@{MORE}[?#;]{MORE})"
    rf"@(?:{MORE}@)?"
)
# A user and a password; a user; or a user and a password cut off, which is no port.
CREDENTIALS = (
    rf"({URI})(?<!///)(?:{USER}:{PASSWORD}@(?:{MORE}@)?|[^\s/?#]*@"
    r"|[^\s:/\[?#;]*:(?!\d+\b|\s|$)[^\s?#;]*)"
)
# Parameters, query and fragment end with the quotes, the white space or the line.
PARAMETERS = [
    rf"((['\"`]){URI}{QUOTED}*?)[?#;]{QUOTED}+",
    rf"((?={WEB}){URI}\S*?)[?#;]\S+",
    rf"((?!{WEB}){URI}\S*?)[?#;]\S.*",
]


def redacted(text: str, *uris: str) -> str:
    """Hide every credential in a text: those in URIs, and known ones wherever they stand.

    A URI loses its user, password, parameters, query and fragment. It need not be well
    formed: what SQLAlchemy, urllib or pyarrow might take as a password goes, up to the
    last `@`, whatever stands before it. A text that begins with a URI is a URI as a
    whole; within a text, a URI ends with its line or before the next URI, and its query
    with the quotes around it or with the white space that no web address may hold.

    Known are the values of variables such as `AWS_SECRET_ACCESS_KEY`, and the passwords
    and tokens in URIs that the environment or the caller names, if they are long enough
    not to be a part of ordinary words.

    Args:
        text: the text, such as a library's message.
        uris: what the text is about; their credentials are hidden in all of it.

    Example:
        >>> redacted("cannot reach s3://key:sec/ret@bucket/folder?token=1")
        'cannot reach s3://bucket/folder'
        >>> redacted("unknown host 'ss/word'", "postgresql://me:pa@ss/word@host/db")
        "unknown host '***'"
    """
    for secret in _known_secrets(tuple(os.environ.items()), uris):
        text = text.replace(secret, HIDDEN)
    text = NAMED_VALUE.sub(rf"\1{HIDDEN}", text)
    flags = re.NOFLAG
    hidden = [rf"{UNCLEAR}\S*", CREDENTIALS, *PARAMETERS]
    if re.match(URI, text):
        flags = re.DOTALL
        hidden = [f"{UNCLEAR}.*", CREDENTIALS, r"\A([^?#;]*)[?#;].+"]
    for part in hidden:
        text = re.sub(part, r"\1", text, flags=flags)
    return text


# The texts of thousands of runs are redacted in one environment.
@lru_cache(maxsize=8)
def _known_secrets(
    environment: tuple[tuple[str, str], ...], uris: tuple[str, ...]
) -> list[str]:
    """Return the secrets of the environment and of URIs as they may be written, long first."""
    found = [value for name, value in environment if SECRET_NAME.search(name)]
    for uri in [*(value for _, value in environment), *uris]:
        for password in re.findall(r"\A[\w+.:-]*//[^:/]*:(.*)@", uri, re.DOTALL):
            # A parser that ends the password early takes its parts for host and path.
            found += [password, *re.split("[@/?#]", password), *password.split("@", 1)]
        parameters = re.findall(r"[?&;#]([^=&;#]*)=([^&;#]*)", uri)
        found += [value for name, value in parameters if SECRET_NAME.search(name)]
    found += [
        write(secret) for secret in found for write in (quote_plus, quote, unquote)
    ]
    long_enough = {secret for secret in found if len(secret) >= SHORTEST_SECRET}
    return sorted(long_enough, key=len, reverse=True)
