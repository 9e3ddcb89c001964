"""Recall: words of any script find their memories, in their scope, best first, with how far the memory reaches."""

from __future__ import annotations

import pytest

from memory_kit import failing, say
from parkkeeper.errors import InvalidArgument
from parkkeeper.memory import MemoryStore
from parkkeeper.memory.extractors.chunks import Chunks
from parkkeeper.memory.search import spaced


def remember(store: MemoryStore, *texts: str, scope: str = "s") -> None:
    store.append_many(scope, [{"messages": say(text)} for text in texts])
    store.form_batch(Chunks())


def found(store: MemoryStore, query: str, scope: str = "s") -> list[str]:
    return [memory.text for memory in store.recall(scope, query).memories]


def test_any_word_may_match_and_more_of_them_rank_higher(store: MemoryStore) -> None:
    remember(store, "I like green tea", "a green car", "nothing of it", "tea, please")
    assert found(store, "green tea")[0] == "I like green tea"
    assert set(found(store, "green tea")) == {"I like green tea", "a green car", "tea, please"}
    assert found(store, "GREEN car?")[0] == "a green car"
    assert [m.text for m in store.recall("s", "green tea", limit=1).memories] == ["I like green tea"]


def test_a_memory_says_where_it_comes_from(store: MemoryStore) -> None:
    remember(store, "first", "green")
    (memory,) = store.recall("s", "green").memories
    assert (memory.log_offset, memory.kind, memory.extractor, memory.extractor_version) == (
        1,
        "message",
        "chunks",
        "1",
    )
    assert memory.rank > 0
    assert "green" not in repr(memory)


def test_recall_keeps_to_its_scope(store: MemoryStore) -> None:
    for scope in ("s", "t", "o'neill \\ & (x)"):
        remember(store, f"green in {scope}", scope=scope)
        assert found(store, "green", scope) == [f"green in {scope}"]
    assert found(store, "green", "nobody") == []


def test_recall_carries_how_far_the_memory_reaches(store: MemoryStore) -> None:
    store.append_many("s", [{"messages": say("green")}] * 3)
    store.form_batch(failing("refusal", offsets=[1]), limit=2)
    result = store.recall("s", "green")
    assert (
        len(result.memories),
        result.freshness.formed,
        result.freshness.parked,
        result.freshness.backlog,
    ) == (
        1,
        1,
        1,
        1,
    )
    assert result.freshness == store.freshness("s")


@pytest.mark.parametrize(
    "query", ["green & !tea", "green | ( <-> ", "'green", "green\\", ":*green", "'; DROP TABLE x; -- green"]
)
def test_nothing_in_a_query_is_an_operator(store: MemoryStore, query: str) -> None:
    remember(store, "green", "blue")
    assert found(store, query) == ["green"]


@pytest.mark.parametrize("query", ["", "   ", "?!", "'"])
def test_a_query_without_a_word_finds_nothing(store: MemoryStore, query: str) -> None:
    remember(store, "green")
    assert found(store, query) == []


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("Я люблю зелёный чай", "ЧАЙ"),
        ("东京的咖啡很好喝", "咖啡"),
        ("私は東京タワーが好きです", "東京"),
        ("カタカナとひらがな", "がな"),
        ("ผมชอบกาแฟร้อน", "กาแฟ"),
        ("tea 茶 tea", "茶"),
        ("mixed東京text", "text"),
        ("서울에서 커피를 마셨다", "커피를"),
    ],
)
def test_words_are_found_in_scripts_with_and_without_spaces(
    store: MemoryStore, text: str, query: str
) -> None:
    remember(store, text, "unrelated 他の話")
    assert found(store, query) == [text]


def test_text_with_spaces_between_its_words_is_kept_once(store: MemoryStore) -> None:
    assert spaced("plain text, чай, 커피") == "plain text, чай, 커피"
    assert spaced("a東京都b").split() == ["a", "東京", "京都", "b"]
    assert spaced("茶").split() == ["茶"]


def test_the_longest_texts_of_all_scripts_can_be_stored_and_found(store: MemoryStore) -> None:
    han = "".join(chr(0x4E00 + (number * 7919) % 20_000) for number in range(65_536))
    rare = "".join(chr(0x20000 + (number * 7919) % 40_000) for number in range(65_536))
    words = " ".join(f"w{number}" for number in range(9_000))
    store.append("s", say(han, rare, words, "x" * 65_536))
    outcome = store.form_batch(Chunks())
    assert (outcome.formed, outcome.memories) == (1, 4)
    assert found(store, "w8999") == [words]


def test_a_word_without_an_end_is_cut_before_postgres_sees_it(store: MemoryStore) -> None:
    """Such a word takes a server down when its lower case is longer than it is, and minutes when it has underscores."""
    words = ["Ⱥ" * 1_000, "Ⱥ" * 683, "I" * 2_000, "_a" * 5_000, "-Ω" * 1_000]
    texts = [f"before{number} {word} after{number}" for number, word in enumerate(words)]
    remember(store, *texts)
    for number, word in enumerate(words):
        assert max(len(piece) for piece in spaced(word).split()) <= 400
        assert spaced(word).replace(" ", "") == word
        for query in (f"before{number}", f"after{number}", word):
            assert texts[number] in found(store, query)


def test_a_long_row_of_words_without_spaces_is_cut_between_words() -> None:
    row = ",".join(f"word{number}" for number in range(200))
    pieces = spaced(row).split()
    assert len(pieces) > 1 and "".join(pieces) == row
    assert all(piece.endswith(",") for piece in pieces[:-1])


@pytest.mark.parametrize("query", ["x" * 10_001, "a\x00", "\ud83d", None])
def test_a_query_outside_its_rule_is_refused(store: MemoryStore, query: str) -> None:
    with pytest.raises(InvalidArgument, match="query is refused: at most 10000 characters"):
        store.recall("s", query)
