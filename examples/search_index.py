"""A search index that is kept up to date: SQLite's full-text search beside the store, filled by a stream.

The index has the token that it has reached, in the same transaction as what it indexed: it is right after any crash.
"""

from __future__ import annotations

import sqlite3
from typing import Any

import headrace


class SearchIndex:
    """The words of the articles' titles and bodies."""

    def __init__(self, articles: Any, path: str = ":memory:") -> None:
        self._articles = articles
        self._database = sqlite3.connect(path)
        self._database.execute("CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5(id UNINDEXED, title, body)")
        self._database.execute("CREATE TABLE IF NOT EXISTS position (token TEXT)")
        row = self._database.execute("SELECT token FROM position").fetchone()
        token = {"_data": row[0]} if row else None
        self._stream = articles.watch(full_document="updateLookup", fields=["title", "body"], resume_after=token)
        if token is None:
            for article in articles.find():
                self._put(article)
            self._commit(self._stream.resume_token)

    def refresh(self) -> int:
        """Take in what has changed since the last time; how many changes."""
        count = 0
        while (event := self._stream.try_next()) is not None:
            count += 1
            if event.document_key is not None:
                self._database.execute("DELETE FROM words WHERE id = ?", (str(event.document_id),))
                if event.full_document is not None:
                    self._put(event.full_document)
        if count:
            self._commit(self._stream.resume_token)
        return count

    def search(self, words: str) -> list[str]:
        """The ids of the articles that match, the best first; of what is committed now."""
        self.refresh()
        rows = self._database.execute("SELECT id FROM words WHERE words MATCH ? ORDER BY rank", (words,))
        return [row[0] for row in rows]

    def _put(self, article: Any) -> None:
        values = (str(article["_id"]), article.get("title", ""), article.get("body", ""))
        self._database.execute("INSERT INTO words VALUES (?, ?, ?)", values)

    def _commit(self, token: Any) -> None:
        self._database.execute("DELETE FROM position")
        self._database.execute("INSERT INTO position VALUES (?)", (token["_data"],))
        self._database.commit()


def main(path: str | None = None) -> list[list[str]]:
    """Search while articles come, change and go."""
    with headrace.open(path) as store:
        articles = store["blog"]["articles"]
        articles.insert_one({"_id": "lmdb", "title": "Pages", "body": "A tree of pages in one file"})
        index = SearchIndex(articles)
        answers = [index.search("tree")]
        articles.insert_one({"_id": "oak", "title": "The oak tree", "body": "A tree, and another tree"})
        answers.append(index.search("tree"))
        articles.update_one({"_id": "lmdb"}, {"$set": {"body": "One file"}})
        articles.delete_one({"_id": "oak"})
        return [*answers, index.search("tree"), index.search("file")]


if __name__ == "__main__":
    print(main())
