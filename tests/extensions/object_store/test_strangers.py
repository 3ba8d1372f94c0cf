"""The store's port is open to every user of the machine; it answers those who know its key."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping

import pytest

from pytest_multihost.extensions.object_store.store import CONTROL, ObjectStore, serving

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """The URL of a store with a bucket and an object."""
    with serving() as endpoint:
        ObjectStore(endpoint, "ckpt").create_bucket()
        assert ask(f"{endpoint}/ckpt/a", "PUT", b"data") == 200
        yield endpoint


def ask(url: str, method: str = "GET", data: bytes | None = None, **headers: str) -> int:
    """Return the status of the answer to a request."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(url, data, named, method=method)  # noqa: S310 - ours
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - ours
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def bare(endpoint: str) -> str:
    """Return the URL without the key, as a port scan shows it."""
    return endpoint.rpartition("/")[0]


@pytest.mark.parametrize("key", ["", "/x", "/%00", "/.", "//", "/..%2f"])
@pytest.mark.parametrize("path", ["/ckpt/a", CONTROL, "/", "/moto-api/reset", "/ckpt?list-type=2"])
def test_a_request_without_the_key_is_refused(endpoint: str, key: str, path: str) -> None:
    """For an object, the rules, the list of buckets and moto's own pages."""
    for method in ("GET", "PUT", "POST", "DELETE"):
        assert ask(f"{bare(endpoint)}{key}{path}", method, b"{}") == 403
    assert ask(f"{endpoint}/ckpt/a") == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site"},
    ],
    ids=str,
)
def test_a_page_of_a_browser_is_refused(endpoint: str, headers: Mapping[str, str]) -> None:
    """Even if it knows the key."""
    assert ask(f"{endpoint}/ckpt/a", **headers) == 403
    rule = json.dumps({"status": 500}).encode()
    assert ask(f"{endpoint}{CONTROL}", "POST", rule, **headers) == 403
    assert ObjectStore(endpoint, "ckpt").fired() == ()


@pytest.mark.parametrize("service", ["lambda", "batch", "sts", "iam", "moto_api"])
def test_it_has_no_other_service(endpoint: str, service: str) -> None:
    """Some of moto's start containers; the request is taken for one to S3."""
    scope = f"AWS4-HMAC-SHA256 Credential=a/20200101/us-east-1/{service}/aws4_request, Signature=0"
    sent = {"Authorization": scope, "Host": f"{service}.us-east-1.amazonaws.com"}
    target = {"X_Amz_Target": "AWSLambda.ListFunctions"}
    assert ask(f"{endpoint}/2015-03-31/functions", "GET", **sent, **target) in range(400, 500)
    assert ask(f"{endpoint}/moto-api/reset", "POST", b"", **sent) >= 400
    assert ask(f"{endpoint}/ckpt/a") == 200


@pytest.mark.parametrize(
    "name", ["../../_multihost", "../_multihost", "..", "../../../x", "a/../b"]
)
def test_the_name_of_an_object_leads_to_no_rule_and_around_no_key(endpoint: str, name: str) -> None:
    """Clients shorten `..` in a URL before they send it, as tensorstore does."""
    store = ObjectStore(endpoint, "ckpt")
    store.fail(503, key="/ckpt/c")
    url = f"{endpoint}/ckpt/{name}"
    short = urllib.parse.urljoin(url, urllib.parse.urlparse(url).path)
    for sent in (url, short):
        status = ask(sent, "PUT", b"other")
        assert status in (200, 403, 404)
        assert status == 403 or sent.startswith(endpoint)
        ask(sent, "DELETE")
    assert len(store.fired()) == 1
    assert ask(f"{endpoint}/ckpt/c") == 503
    store.heal()
    assert ask(f"{endpoint}/ckpt/a") == 200


def test_clients_with_the_key_use_it_as_before(endpoint: str) -> None:
    """Rules, and S3 clients: their signature is as good as none."""
    store = ObjectStore(endpoint, "ckpt")
    store.fail(503, key="/ckpt/b")
    assert ask(f"{endpoint}/ckpt/b") == 503
    assert [each.struck for each in store.fired()] == [1]
    store.heal()
    signed = "AWS4-HMAC-SHA256 Credential=x/20200101/us-east-1/s3/aws4_request, Signature=0"
    assert ask(f"{endpoint}/ckpt/a", Authorization=signed) == 200
