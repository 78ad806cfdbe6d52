"""A cache in the process that is never stale for long: changes, whoever makes them, drop what they concern.

`get` reads a document from the store once and from memory then, until the stream reports a change of it.
"""

from __future__ import annotations

import threading
from typing import Any

import headrace


class Cache:
    """Documents of a collection by `_id`."""

    def __init__(self, collection: Any) -> None:
        self._collection = collection
        self._documents: dict[Any, Any] = {}
        self._lock = threading.Lock()
        self._change_count = 0
        self.misses = 0
        self.changed = threading.Event()
        self._stream = collection.database.client.watch(  # a stream of the collection alone ends when it is dropped
            operation_types=["update", "replace", "delete", "drop", "rename", "dropDatabase"],
            filter={"ns.db": collection.database.name, "ns.coll": {"$in": [collection.name, None]}},
        )
        self._stream.on(None, self._drop)

    def get(self, key: Any) -> Any:
        """The document, or None."""
        with self._lock:
            if key in self._documents:
                return self._documents[key]
            begun = self._change_count
        document = self._collection.find_one({"_id": key})
        with self._lock:
            self.misses += 1
            if self._change_count == begun:  # or it may have been changed since it was read
                self._documents[key] = document
        return document

    def _drop(self, event: headrace.ChangeEvent) -> None:
        with self._lock:
            self._change_count += 1
            if event.document_key is None:
                self._documents.clear()
            else:
                self._documents.pop(event.document_id, None)
        self.changed.set()

    def close(self) -> None:
        """Follow no longer."""
        self._stream.close()


def main(path: str | None = None) -> list[Any]:
    """Read a price, change it behind the cache's back, and read it again."""
    with headrace.open(path) as store:
        prices = store["shop"]["prices"]
        prices.insert_one({"_id": "pen", "price": 2})
        cache = Cache(prices)
        seen = [cache.get("pen")["price"] for _ in range(3)]
        prices.update_one({"_id": "pen"}, {"$set": {"price": 3}})
        cache.changed.wait(60)
        seen += [cache.get("pen")["price"], cache.misses]
        cache.changed.clear()
        prices.drop()
        prices.insert_one({"_id": "pen", "price": 4})
        cache.changed.wait(60)
        seen.append(cache.get("pen")["price"])
        cache.close()
        return seen


if __name__ == "__main__":
    print(main())
