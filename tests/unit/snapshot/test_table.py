from __future__ import annotations

import pytest

from magnitude.v1 import state_pb2
from magnitude_service.snapshot import table as table_module
from magnitude_service.snapshot.retention import expired, floor_for, prefix_bytes, prefix_of, superfluous
from magnitude_service.snapshot.table import Dead, Entry, Table, encode_index, table_of


def entry(session_id: str, version: int, sequence: int, length: int = 4096) -> Entry:
    return Entry(session_id, version, sequence, sequence << 16, length, sequence * 10**9)


def table_with(*entries: Entry) -> Table:
    table = Table()
    for each in entries:
        table.add(each, 0)
    return table


def test_a_floor_buries_what_lies_below_it_and_bytes_are_counted() -> None:
    table = table_with(entry("a", 1, 1), entry("a", 2, 2), entry("b", 1, 3, length=5000))
    table.add(entry("a", 3, 4), floor=3)
    assert list(table.sessions["a"]) == [3]
    assert table.dead == [Dead(1, 1 << 16, 4096, 4 * 10**9), Dead(2, 2 << 16, 4096, 4 * 10**9)]
    assert (table.live_bytes, table.dead_bytes) == (4096 + 8192, 8192)


def test_a_session_whose_versions_are_all_deleted_is_gone() -> None:
    table = table_with(entry("a", 1, 1), entry("a", 2, 2))
    assert [each.version for each in table.delete("a", [1, 7], 0)] == [1]
    assert [each.version for each in table.delete("a", [], 0)] == [2]
    assert table.sessions == {}
    assert table.delete("a", [], 0) == []


def test_an_index_says_all_that_the_table_does() -> None:
    table = table_with(entry("a", 1, 1), entry("b", 4, 2), entry("a", 2, 3))
    table.delete("a", [1], 99)
    again = table_of(state_pb2.StoredIndex.FromString(encode_index(table).SerializeToString()))
    assert again == table
    assert table_of(encode_index(Table())) == Table()


@pytest.mark.parametrize("column", ["offsets", "dead_offsets", "given_versions"])
def test_an_index_whose_columns_do_not_fit_is_none(column: str) -> None:
    index = encode_index(table_with(entry("a", 1, 1)))
    getattr(index, column).append(7)
    assert table_of(index) is None


def test_the_numbers_of_the_sessions_deleted_last_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "GIVEN_SESSIONS_MAX", 2)
    table = table_with(*(entry(id, 1, number) for number, id in enumerate("abcd", 1)), entry("a", 2, 5))
    table.delete("a", [2], 0)
    for id in "bcd":
        table.delete(id, [], 0)
    assert table.given == {"a": 2, "c": 1, "d": 1}, "of a session that lives it is always"
    assert [table.next_version(id) for id in "abcd"] == [3, 1, 2, 2]
    again = table_of(state_pb2.StoredIndex.FromString(encode_index(table).SerializeToString()))
    assert again is not None
    assert list(again.given) == ["a", "c", "d"]


def test_a_number_that_was_given_before_stays_the_largest() -> None:
    table = table_with(entry("a", 1, 1), entry("a", 5, 2))
    table.delete("a", [5], 0)
    table.delete("a", [1], 0)
    assert table.next_version("a") == 6
    table.add(entry("a", 6, 3), 0)
    assert (table.given, table.next_version("a")) == ({}, 7)


def test_what_was_freed_is_forgotten() -> None:
    table = table_with(entry("a", 1, 1), entry("a", 2, 2))
    table.delete("a", [], 0)
    table.forget(table.dead[:1])
    assert [dead.sequence for dead in table.dead] == [2]
    assert table.dead_bytes == 4096


def test_floors_keep_the_newest_versions() -> None:
    assert floor_for([], 1, 3) == 1
    assert floor_for([1, 2, 3], 4, 3) == 2
    assert floor_for([2, 9], 10, 1) == 10
    assert floor_for([1, 2, 3], 4, 0) == 0


def test_superfluous_versions_are_the_oldest() -> None:
    table = table_with(entry("a", 1, 1), entry("a", 2, 2), entry("a", 5, 3), entry("b", 1, 4))
    assert superfluous(table, 2) == {"a": [1]}


def test_a_session_expires_by_its_last_save() -> None:
    table = table_with(entry("old", 1, 1), entry("used", 1, 2), entry("used", 2, 100))
    assert expired(table, 60 * 10**9, 30) == ["old"]
    assert expired(table, 60 * 10**9, 0) == []


def test_prefixes_share_a_quota() -> None:
    table = table_with(entry("team/a", 1, 1), entry("team/b", 1, 2, length=1), entry("teams", 1, 3))
    assert prefix_of("team/a/b") == "team"
    assert prefix_bytes(table, "team") == 8192
