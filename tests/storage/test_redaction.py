"""A URI that holds a password is refused, and the environment's secrets are hidden."""

import pytest

from raysafl.storage.redaction import redacted, refuse_password


@pytest.mark.parametrize(
    "uri",
    [
        "s3://key:hunter2@bucket/x",
        "s3://key:12/hunter2@bucket/x",
        "s3://key:p@hunter2@bucket/x?scheme=http",
        "s3:/key:hunter2@bucket/x",
        "//key:hunter2@bucket/x",
        "postgresql://me:hunter2\n@host/db",
        "mysql+pymysql://:hunter2@host/db",
        "http://me:hunter2@127.0.0.1:5000",
    ],
)
def test_a_uri_with_a_password_is_refused_and_the_password_is_not_shown(
    uri: str,
) -> None:
    with pytest.raises(ValueError, match="holds a password") as error:
        refuse_password(uri)
    assert "hunter2" not in str(error.value) and "PGPASSWORD" in str(error.value)


@pytest.mark.parametrize(
    "uri",
    [
        "sqlite:////home/ann@work/mlflow.db",
        "http://127.0.0.1:5000",
        "https://ann@mlflow.example.org/x",
        "s3://bucket/x:1/y@z?endpoint_override=http://127.0.0.1:9000",
        "/data/p=1:2/ann@work",
        "results/s",
        "auto",
    ],
)
def test_a_uri_without_a_password_is_taken(uri: str) -> None:
    assert refuse_password(uri) == uri


def test_secrets_of_the_environment_are_hidden_wherever_they_stand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalr/XUtn+FEMI")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "correct horse")
    monkeypatch.setenv("OTHER_PASSWORD", "correct horse battery")
    monkeypatch.setenv("HF_TOKEN", "on")  # too short to be looked for
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "parallelism")
    text = "wJalr/XUtn+FEMI; Bearer correct horse, correct horse battery on parallelism"
    assert redacted(text) == "***; Bearer ***, *** on parallelism"


def test_without_secrets_a_text_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.environ", {"HOME": "/home/ann"})
    text = "Authorization: Bearer X; s3://bucket/x?a=b; /home/ann"
    assert redacted(text) == text
