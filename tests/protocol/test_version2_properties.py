"""Any message survives its bytes; any bytes are a message or are refused."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz import version1_check, version2_check
from penstock.protocol import version2 as v2
from penstock.protocol.frames import FrameReader, encode_frame
from protocol.version2_strategies import answers, joined, requests, uint32

KINDS = st.sampled_from(v2.Kind)

# Bytes at random mostly break a length, so these are valid streams with a few places changed.
CHANGES = st.lists(
    st.tuples(st.integers(0, 10_000), st.binary(min_size=1, max_size=4)), min_size=1, max_size=4
)


def changed(data: bytes, changes: list[tuple[int, bytes]]) -> bytes:
    for place, value in changes:
        place %= len(data)
        data = data[:place] + value + data[place + len(value) :]
    return data


@settings(max_examples=100)
@given(requests, uint32)
def test_any_request_survives_its_bytes(request: v2.Request, number: int) -> None:
    [(kind, found, body)] = FrameReader().receive(v2.encode_request(request, number))
    assert found == number
    assert v2.decode_request(kind, body) == request


@settings(max_examples=100)
@given(answers, uint32)
def test_any_answer_survives_its_bytes(answer: v2.Answer, number: int) -> None:
    [(kind, found, body)] = FrameReader().receive(v2.encode_answer(answer, number))
    assert found == number
    assert v2.decode_answer(kind, body) == answer


@settings(max_examples=100)
@given(KINDS, st.binary(max_size=200))
def test_garbage_is_refused_or_means_something_that_has_bytes(kind: int, body: bytes) -> None:
    version2_check.check_request(kind, 1, body)
    version2_check.check_answer(kind, 1, body)


@settings(max_examples=100)
@given(requests, answers, CHANGES)
def test_changed_messages_are_refused_or_mean_something_that_has_bytes(
    request: v2.Request, answer: v2.Answer, changes: list[tuple[int, bytes]]
) -> None:
    data = v2.encode_request(request, 1) + v2.encode_answer(answer, 2)
    version2_check.check(changed(data, changes))
    for message in (v2.encode_request(request, 1), v2.encode_answer(answer, 2)):
        kind, body = message[4], message[9:]
        body = changed(body, changes) if body else body
        version2_check.check(joined([(kind, 1, body)]))


@given(st.lists(st.sampled_from(version2_check.SEEDS), max_size=3), CHANGES, st.binary(max_size=50))
def test_changed_streams_of_samples_hold_what_the_fuzzer_checks(
    seeds: list[bytes], changes: list[tuple[int, bytes]], tail: bytes
) -> None:
    version2_check.check(changed(b"".join(seeds) + tail + b"\0", changes))


@given(st.lists(st.sampled_from(version1_check.SEEDS), max_size=3), CHANGES, st.binary(max_size=50))
def test_changed_packets_of_version_1_hold_what_the_fuzzer_checks(
    seeds: list[bytes], changes: list[tuple[int, bytes]], tail: bytes
) -> None:
    version1_check.check(changed(b"".join(seeds) + tail + b"\0", changes))


def test_the_samples_hold_what_the_fuzzers_check() -> None:
    for seed in version1_check.SEEDS:
        version1_check.check(seed)
    for seed in version2_check.SEEDS:
        version2_check.check(seed)
    version2_check.check(encode_frame(v2.Kind.PING, 1, b"") * 100)
