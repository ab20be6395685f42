"""Relations between the time-outs of the API server's client."""

from pipeline.kube import limits
from pipeline.kube.lease import LeaseTerms
from pipeline.settings import KubernetesSettings

BOOKMARK_SECONDS = 60.0
"""Interval of the bookmarks that the API server sends."""


def test_pauses_between_attempts_are_shorter_than_a_lease_takes_to_be_lost() -> None:
    pauses = [limits.FIRST_PAUSE_SECONDS * 2**n for n in range(limits.REQUEST_ATTEMPTS - 1)]
    longest = sum(min(pause, limits.LONGEST_PAUSE_SECONDS) for pause in pauses)
    assert longest < LeaseTerms().renew_within_seconds


def test_a_lease_is_given_up_before_it_may_be_taken() -> None:
    terms = LeaseTerms()
    assert 2 * terms.retry_seconds < terms.renew_within_seconds < terms.duration_seconds


def test_a_silent_watch_is_broken_only_after_two_bookmarks_were_missed() -> None:
    assert 2 * BOOKMARK_SECONDS < limits.WATCH_SILENCE_SECONDS < limits.WATCH_SECONDS


def test_a_request_is_given_up_before_a_watch() -> None:
    assert KubernetesSettings().request_timeout_seconds < limits.WATCH_SILENCE_SECONDS
