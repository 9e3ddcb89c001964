"""Recall in the language of each turn: its words are found whatever their ending, and beside every other language's."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from memory_kit import Database, say
from parkkeeper.database import statements
from parkkeeper.memory import IdempotencyConflict, InvalidTurn, MemoryStore
from parkkeeper.memory.extractors.chunks import Chunks
from parkkeeper.migrations import migrate

#: For each code its configuration, and two forms of one word.
FORMS = {
    "ar": ("arabic", "كتاب", "الكتاب"),
    "hy": ("armenian", "քաղաք", "քաղաքը"),
    "eu": ("basque", "lagun", "lagunak"),
    "ca": ("catalan", "gat", "gats"),
    "da": ("danish", "hund", "hunde"),
    "nl": ("dutch", "boek", "boeken"),
    "en": ("english", "runs", "running"),
    "et": ("estonian", "raamat", "raamatud"),
    "fi": ("finnish", "talo", "talossa"),
    "fr": ("french", "chat", "chats"),
    "de": ("german", "Haus", "Häuser"),
    "el": ("greek", "άνθρωπος", "άνθρωποι"),
    "hi": ("hindi", "किताब", "किताबें"),
    "hu": ("hungarian", "ház", "házban"),
    "id": ("indonesian", "buku", "bukunya"),
    "ga": ("irish", "fear", "bhfear"),
    "it": ("italian", "libro", "libri"),
    "lt": ("lithuanian", "namas", "namai"),
    "ne": ("nepali", "किताब", "किताबको"),
    "nb": ("norwegian", "hund", "hunden"),
    "pt": ("portuguese", "livro", "livros"),
    "ro": ("romanian", "casa", "case"),
    "ru": ("russian", "яблоко", "яблоками"),
    "sr": ("serbian", "књига", "књиге"),
    "es": ("spanish", "libro", "libros"),
    "sv": ("swedish", "hund", "hundar"),
    "ta": ("tamil", "புத்தகம்", "புத்தகங்கள்"),
    "tr": ("turkish", "ev", "evler"),
    "yi": ("yiddish", "שטוב", "שטובן"),
}


def remember(store: MemoryStore, language: str | None, *texts: str, scope: str = "s") -> None:
    store.append_many(scope, [{"messages": say(text), "language": language} for text in texts])
    assert store.form_batch(Chunks()).formed == len(texts)


def found(store: MemoryStore, query: str, scope: str = "s") -> list[str]:
    return [memory.text for memory in store.recall(scope, query).memories]


def test_a_turn_is_found_in_its_language(store: MemoryStore) -> None:
    for language, text, query in (
        ("en", "She runs every morning", "running"),
        ("en-GB", "She runs every morning", "running"),
        ("english", "She runs every morning", "RUNNING"),
        ("de", "Zwei alte Häuser am See", "Haus"),
        ("ru", "Я люблю зелёные ЯБЛОКИ", "яблоко"),
        ("ja", "私は東京タワーが好きです", "東京"),
        ("zh-Hant", "东京的咖啡很好喝", "咖啡"),
        ("th", "ผมชอบกาแฟร้อน", "กาแฟ"),
        ("en", "mixed 東京 text", "東京"),
    ):
        scope = f"{language} {query}"
        remember(store, language, text, scope=scope)
        assert found(store, query, scope) == [text]
        assert store.recall(scope, query).freshness == store.freshness(scope)


def test_words_of_a_language_without_a_configuration_are_compared_as_they_are(
    store: MemoryStore, db: Database
) -> None:
    for language in ("tlh", "ja", "simple", None):
        remember(store, language, "she runs", scope=str(language))
        assert found(store, "RUNS", str(language)) == ["she runs"]
        assert found(store, "running", str(language)) == []
    assert db("SELECT * FROM {schema}.scope_language") == []


def test_every_configuration_of_the_server_has_a_code_and_finds_other_forms_of_a_word(
    store: MemoryStore, db: Database
) -> None:
    known = {name for (name,) in db("SELECT cfgname FROM pg_ts_config WHERE cfgname <> 'simple'")}
    assert known <= {configuration for configuration, _, _ in FORMS.values()}
    of = "SELECT {schema}.search_configuration(%s)::text"
    words = "SELECT tsvector_to_array(to_tsvector({schema}.search_configuration(%s), %s))"
    apart = []
    for code, (configuration, one, other) in FORMS.items():
        expected = configuration if configuration in known else "simple"
        assert {db.one(of, (language,)) for language in (code, f"{code}-x", configuration)} == {expected}
        first, second = db.one(words, (code, one)), db.one(words, (code, other))
        if expected != "simple" and (first != second or not first):
            apart.append((code, first, second))
    assert apart == []


def test_a_scope_of_many_languages_is_asked_in_all_of_them_and_another_scopes_play_no_part(
    store: MemoryStore, db: Database
) -> None:
    remember(store, "en", "She runs", "running late", "the walk")
    remember(store, "de", "Häuser und running gags")
    remember(store, None, "running")
    remember(store, "en", "runs", scope="t")
    assert set(found(store, "Haus running")) == {
        "She runs",
        "running late",
        "Häuser und running gags",
        "running",
    }
    assert found(store, "Haus running")[0] == "Häuser und running gags"
    assert found(store, "running", "t") == ["runs"]
    assert db("SELECT * FROM {schema}.scope_language ORDER BY 1, 2") == [
        ("s", "english"),
        ("s", "german"),
        ("t", "english"),
    ]


def test_a_wrong_language_does_not_hide_the_words_themselves(store: MemoryStore) -> None:
    remember(store, "en", "Я люблю зелёный чай")
    remember(store, "ru", "She runs every morning")
    assert found(store, "ЧАЙ") == ["Я люблю зелёный чай"]
    assert found(store, "runs") == ["She runs every morning"]


def test_a_rebuild_keeps_the_language(store: MemoryStore) -> None:
    remember(store, "en", "She runs")
    assert store.rebuild("s", Chunks()).rebuilt == 1
    assert found(store, "running") == ["She runs"]


def test_memories_from_before_there_were_languages_are_found_as_before(
    connection: psycopg.Connection[Any], namespace: str, db: Database
) -> None:
    migrate(connection, namespace, "memory", target=18)
    former = (
        "INSERT INTO {schema}.watermark VALUES ('s', 0)",
        "INSERT INTO {schema}.watermark_formed (scope, formed_offset, formed_strict_offset, formed) "
        "VALUES ('s', 0, 0, 1)",
        "INSERT INTO {schema}.observation (scope, log_offset, occurred_at, formed_at) VALUES ('s', 0, now(), now())",
        "INSERT INTO {schema}.projection_dependency (source_id, derived_kind) "
        "SELECT observation_id, 'memory' FROM {schema}.observation",
        "INSERT INTO {schema}.memory (memory_id, scope, kind, text, extractor, extractor_version) "
        "SELECT derived_id, 's', 'message', 'she runs', 'chunks', '1' FROM {schema}.projection_dependency",
    )
    for statement in former:
        db(statement)
    filenode = db.one("SELECT pg_relation_filenode('{schema}.memory')")
    migrate(connection, namespace, "memory")
    store = MemoryStore(connection, namespace)
    remember(store, "en", "it runs")
    assert set(found(store, "runs")) == {"she runs", "it runs"}
    assert found(store, "running") == ["it runs"]
    assert db.one("SELECT pg_relation_filenode('{schema}.memory')") == filenode, "the table was rewritten"
    db("DELETE FROM {schema}.memory")
    db(former[-1] + " LIMIT 1")  # as a release that knows of no language does while both run
    assert found(store, "she") == ["she runs"]


def test_the_language_is_part_of_a_turn_that_is_repeated(store: MemoryStore, db: Database) -> None:
    first = store.append("s", say("x"), language="EN_gb", idempotency_key="k")
    assert db.turn(0, "language") == "en-gb"
    assert store.append("s", say("x"), language="en-GB", idempotency_key="k").log_offset == first.log_offset
    with pytest.raises(IdempotencyConflict):
        store.append("s", say("x"), language="de", idempotency_key="k")
    with pytest.raises(IdempotencyConflict):
        store.append("s", say("x"), idempotency_key="k")


@pytest.mark.parametrize("language", ["", "e", "en gb", "en\x00", "MARKER'--", "x" * 36, 5, "en-"])
def test_what_is_no_language_is_refused_and_not_shown(store: MemoryStore, language: Any) -> None:
    with pytest.raises(
        InvalidTurn, match="language is refused: None, a language tag such as de or pt-BR"
    ) as no:
        store.append("s", say("x"), language=language)
    assert "MARKER" not in str(no.value)


def test_a_dropped_scope_leaves_no_language_unless_turns_came_meanwhile(
    store: MemoryStore, db: Database
) -> None:
    remember(store, "en", "runs")
    assert store.drop("s", reason="test").clean
    assert db("SELECT * FROM {schema}.scope_language") == []
    remember(store, "en", "runs")
    assert found(store, "running") == ["runs"]


def test_recall_in_many_languages_goes_by_the_index(store: MemoryStore, db: Database) -> None:
    store.append_many("crowd", [{"messages": say(*[f"green {'y' * 300}"] * 100), "language": "en"}] * 60)
    store.append("s", say("greens"), language="en")
    store.append("s", say("Häuser"), language="de")
    store.form_batch(Chunks())
    db("ANALYZE {schema}.memory")
    reading = statements("memory/reading")
    asked = {"scope": "s", "text": "greens Haus"}
    (words,) = db.connection.execute(reading.render("words", db.namespace), asked).fetchone()  # type: ignore[misc]
    assert set(words) == {"greens", "green", "haus"}
    values = {"scope": "s", "words": "'green' | 'greens' | 'haus'", "scope_word": "'\x01s'", "limit": 10}
    explain = b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + reading.render("recall", db.namespace)
    plan = db.connection.execute(explain, values).fetchone()[0][0]["Plan"]  # type: ignore[index]
    assert "memory_search_idx" in str(plan)
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 60
