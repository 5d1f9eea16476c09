"""Page tokens come from anybody: what no list has given is the caller's error, never the coordinator's."""

import base64

import pytest

from coordinator.store import paging
from datacoord.errors import InvalidFieldError
from datacoord.limits import TIMESTAMP_MAX


def token(text: str) -> str:
    """A token that holds a text."""
    return base64.urlsafe_b64encode(text.encode()).decode()


@pytest.mark.parametrize("key", [str(2**63), "-" + "9" * 40, "true", "1.0", "[1]", "null", "1,2"])
def test_a_number_that_is_no_key_is_refused(key: str) -> None:
    """The driver would refuse it with an error that counts as a broken invariant of the coordinator."""
    with pytest.raises(InvalidFieldError):
        paging.read_token("segments", token(f'["segments",{key}]'), [0])


@pytest.mark.parametrize("key", ['"\\ud800"', '"a\\u0000"', '"a\\n"', "1"])
def test_a_name_that_is_no_key_is_refused(key: str) -> None:
    """Half a surrogate pair cannot even be sent to a database."""
    with pytest.raises(InvalidFieldError):
        paging.read_token("channels", token(f'["channels",{key}]'), [""])


@pytest.mark.parametrize("key", [[0], [-1], [TIMESTAMP_MAX]])
def test_what_a_list_gives_it_takes_back(key: paging.Key) -> None:
    """A page that cannot be asked for would end every list early."""
    assert paging.read_token("segments", paging.make_token("segments", key), [0]) == key
    assert paging.read_token("channels", paging.make_token("channels", ["t_1v0"]), [""]) == ["t_1v0"]
